use std::time::Instant;

use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use ledgerline_ledger::Clients;

use ledgerline_test_support::{at, detail, event, scan, until};

use crate::binary::start;

#[tokio::test(flavor = "multi_thread")]
async fn killed_under_load_every_answered_event_is_in_the_table_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut answered = Vec::new();
    let mut sequence = 0_u64;
    for _ in 0..3 {
        let (mut child, state) = start(folder.path(), &[]).await;
        let clients = Clients::at_endpoint(&state.aws_endpoint, &state.region);
        // Killed by its id in the middle of the stream, after a number of answers that differs each time.
        let lifetime = 60 + fastrand::usize(..100);
        let began = Instant::now();
        for _ in 0..lifetime {
            let ids: Vec<String> = (0..10).map(|n| format!("e-{sequence}-{n}")).collect();
            sequence += 1;
            let entries = ids.iter().map(|id| {
                PutEventsRequestEntry::builder()
                    .event_bus_name("ledgerline-local")
                    .source("task-workflow.test")
                    .detail_type("log-event")
                    .detail(detail(&event("t", id, at(1_767_453_739_640 + sequence))).to_string())
                    .build()
            });
            let answer = clients.events.put_events().set_entries(Some(entries.collect())).send().await;
            if answer.is_ok_and(|answer| answer.failed_entry_count() == 0) {
                answered.extend(ids);
            }
        }
        println!("{} events answered so far, {:?} for this round", answered.len(), began.elapsed());
        child.kill();
    }

    let (mut child, state) = start(folder.path(), &[]).await;
    let clients = Clients::at_endpoint(&state.aws_endpoint, &state.region);
    until("every answered event is in the table", || async {
        let rows = scan(&clients, "events-local").await;
        let saved: std::collections::HashSet<_> =
            rows.iter().map(|row| row["eventId"].as_s().unwrap().clone()).collect();
        assert_eq!(saved.len(), rows.len(), "none twice");
        answered.iter().all(|id| saved.contains(id)).then_some(())
    })
    .await;
    child.kill();
}
