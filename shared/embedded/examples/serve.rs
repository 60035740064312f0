//! Serves the embedded AWS on a port and from a folder until Ctrl-C:
//! `cargo run -p ledgerline-embedded --example serve -- 4566 .embedded`

use ledgerline_embedded::{Embedded, Options};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().map_or(Ok(4566), |port| port.parse())?;
    let data = arguments.next().map(Into::into);
    let embedded = Embedded::start(Options { port, data, ..Options::default() }).await?;
    println!("export AWS_ENDPOINT_URL={}", embedded.endpoint());
    tokio::signal::ctrl_c().await?;
    embedded.stop().await;
    Ok(())
}
