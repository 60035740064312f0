//! Runs: their logs, their records, and what the ledger tells of them.

use ledgerline_event::{LogEvent, keys as places};
use ledgerline_store::keys;
use ledgerline_verify::{Mode, Standing};
use ledgerline_workflow::{Ctx, Error, Workflows};
use serde_json::{Value, json};

use super::{agrees, found, set, verify};
use ledgerline_test_support::{Ledger, name, text};

async fn greets_and_waits(ctx: Ctx, _: Value) -> Result<(), Error> {
    ctx.step("greet", || async { Ok::<_, Error>("hello".to_owned()) }).await?;
    ctx.wait_for_event("never").await?;
    Ok(())
}

/// A run that waits, settled, and its events.
async fn a_run() -> (Ledger, String, Vec<LogEvent>) {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("greet", "1", greets_and_waits));
    let run_id = ledger.start_run("greet", Value::Null).await;
    ledger.run_all(&runner).await;
    ledger.deliver().await;
    ledger.advance(120_000);
    let events = ledger.log(&run_id).await;
    (ledger, run_id.to_string(), events)
}

async fn delete_from_ledger(ledger: &Ledger, event: &LogEvent) {
    let delete = ledger.store.clients.dynamo.delete_item().table_name(&ledger.store.names.events_table);
    let delete = delete.key("PK", text(&places::partition("t")));
    let place = places::place(event.timestamp, &event.event_id);
    delete.key("SK", text(&place)).send().await.unwrap();
}

#[tokio::test]
async fn log_events_that_the_ledger_lacks_are_found_and_emitted_again() {
    let (ledger, run_id, events) = a_run().await;
    let verified = verify(&ledger, Mode::Report).await;
    agrees(&verified);
    assert_eq!(verified.runs, 1);

    delete_from_ledger(&ledger, &events[2]).await;
    delete_from_ledger(&ledger, &events[4]).await;
    let verified = verify(&ledger, Mode::Report).await;
    assert_eq!(found(&verified), [(run_id.as_str(), "run-events-missing", Standing::Fault)]);
    let detail = &verified.differences[0].detail;
    let expected =
        format!("2 of 6 events are not in the ledger, the first of them step_created {}", events[2].event_id);
    assert_eq!(detail, &expected);

    let verified = verify(&ledger, Mode::Rebuild).await;
    assert_eq!(found(&verified), [(run_id.as_str(), "run-events-missing", Standing::Rebuilt)]);
    ledger.deliver().await;
    agrees(&verify(&ledger, Mode::Report).await);
    ledger.assert_told(&run_id).await;
}

#[tokio::test]
async fn log_events_of_a_moment_ago_may_be_under_way() {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("greet", "1", greets_and_waits));
    ledger.start_run("greet", Value::Null).await;
    ledger.run_all(&runner).await;
    agrees(&verify(&ledger, Mode::Report).await);
}

#[tokio::test]
async fn a_run_record_that_differs_from_its_log_is_rebuilt() {
    let (ledger, run_id, _) = a_run().await;
    let key = keys::run("t", &run_id);
    set(&ledger, &key, "state", text("completed")).await;
    let verified = verify(&ledger, Mode::Report).await;
    assert_eq!(found(&verified), [(run_id.as_str(), "run-record-different", Standing::Fault)]);
    assert_eq!(verified.differences[0].detail, "its record says completed, its log running");
    verify(&ledger, Mode::Rebuild).await;
    agrees(&verify(&ledger, Mode::Report).await);

    set(&ledger, &key, "listIn", text(&keys::runs_in("t", "failed"))).await;
    let verified = verify(&ledger, Mode::Rebuild).await;
    assert_eq!(found(&verified), [(run_id.as_str(), "run-record-different", Standing::Rebuilt)]);
    agrees(&verify(&ledger, Mode::Report).await);
    let listed =
        ledger.stage.runs.runs(&name("t"), Some(ledgerline_event::RunState::Running), 10, None).await;
    assert_eq!(listed.unwrap().items.len(), 1);
}

#[tokio::test]
async fn run_events_without_a_log_and_runs_without_a_due_time_are_reported() {
    let (ledger, run_id, _) = a_run().await;
    for run in [run_id.as_str(), "nobody"] {
        let emitter = ledger.emitter("t").with_scope(|scope| scope.workflow_run_id = Some(run.to_owned()));
        let event = emitter.event("step_created").entity("STEP", "step_x");
        event.properties(json!({"correlationId": "step_x"})).emit().await.unwrap();
    }
    ledger.deliver().await;
    let key = keys::run("t", &run_id);
    set(&ledger, &key, "dueAt", aws_sdk_dynamodb::types::AttributeValue::N("1767000000000".into())).await;
    let verified = verify(&ledger, Mode::Rebuild).await;
    let expected = [
        ("nobody", "run-missing", Standing::Fault),
        (run_id.as_str(), "run-events-of-nobody", Standing::Fault),
        (run_id.as_str(), "run-overdue", Standing::Fault),
    ];
    assert_eq!(found(&verified), expected);
}
