//! Emitting events from a Rust program. Start `ledgerline local` first, then
//!
//! ```text
//! cargo run --example emit
//! ```

use ledgerline_event::{
    Name,
    catalogue::{TaskCompleted, Usage},
};
use ledgerline_ledger::{Clients, Emitter, Names};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // On AWS: `Clients::from_environment().await` and the stage that was deployed.
    let endpoint = std::env::var("AWS_ENDPOINT_URL").unwrap_or_else(|_| "http://127.0.0.1:4566".into());
    let clients = Clients::at_endpoint(&endpoint, "us-east-1");
    let names = Names::of_stage("local");
    let ledger =
        Emitter::new(&clients, &names, Name::new("tenant", "local")?, Name::new("app", "price-watch")?);

    // Any event: what happened, to what, and what there is to say about it.
    let first = ledger
        .event("price.changed")
        .entity("ITEM", "10472")
        .properties(json!({ "old": 1.42, "new": 1.48 }))
        .idempotency_key("price.changed:10472:2026-05-25")
        .emit()
        .await?;
    println!("{first}");

    // An event of the catalogue is typed, and knows its entity type.
    let completed = TaskCompleted {
        request_id: "req-123".into(),
        job_id: None,
        output: json!({ "pages": 3 }),
        duration_ms: 45_000,
        exit_code: 0,
        usage: Some(Usage { input_tokens: Some(12_000), ..Usage::default() }),
    };
    println!("{}", ledger.catalogued("req-123", completed).emit().await?);

    // Many events travel in as few requests as possible; each has a result of its own.
    let drafts = (1..=25).map(|n| ledger.event("page.scraped").entity("PAGE", format!("p-{n}"))).collect();
    for result in ledger.emit_all(drafts).await {
        match result {
            Ok(event_id) => println!("{event_id}"),
            Err(error) => eprintln!("not emitted: {error}"),
        }
    }
    Ok(())
}
