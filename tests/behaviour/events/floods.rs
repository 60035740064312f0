//! A flood of events is slowed down before events are late, and running work goes on beside it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use serde_json::json;

use ledgerline_test_support::{World, api::Caller, at, detail, event, until, without_retries};

const MAX_WAITING: usize = 300;
const FLOODERS: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_throttled_and_a_job_beside_it_ends() {
    let tasks = tempfile::tempdir().unwrap();
    let file = tasks.path().join("worker.toml");
    std::fs::write(&file, "concurrency = 2\n[tasks.step]\ncommand = \"true\"\n").unwrap();
    let world = World::with(|options| {
        options.worker = Some(file);
        options.max_waiting = MAX_WAITING;
    })
    .await;
    let done = Arc::new(AtomicBool::new(false));
    let (taken, refused, most) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let flood = (0..FLOODERS).map(|flooder| {
        let (done, taken, refused, most) = (done.clone(), taken.clone(), refused.clone(), most.clone());
        let clients = without_retries(&world.local.state.aws_endpoint);
        let (bus, queue) = (world.local.names.bus.clone(), world.local.names.ingest_queue.clone());
        let queues = world.local.embedded.queues();
        tokio::spawn(async move {
            // It ends by itself whatever becomes of the job.
            for request in 0..400 {
                if done.load(Ordering::SeqCst) {
                    return;
                }
                let entries = (0..10).map(|entry| {
                    let id = format!("e-{flooder}-{request}-{entry}");
                    PutEventsRequestEntry::builder()
                        .event_bus_name(&bus)
                        .source("task-workflow.test")
                        .detail_type("log-event")
                        .detail(detail(&event("flood", &id, at(1_767_453_739_640 + request))).to_string())
                        .build()
                });
                match clients.events.put_events().set_entries(Some(entries.collect())).send().await {
                    Ok(answer) => {
                        let failed = answer
                            .entries()
                            .iter()
                            .filter_map(|entry| entry.error_code())
                            .collect::<Vec<_>>();
                        assert!(failed.iter().all(|code| *code == "ThrottlingException"), "{failed:?}");
                        refused.fetch_add(failed.len(), Ordering::SeqCst);
                        taken.fetch_add(answer.entries().len() - failed.len(), Ordering::SeqCst);
                    }
                    Err(error) => {
                        let code = aws_sdk_eventbridge::error::ProvideErrorMetadata::code(&error);
                        assert_eq!(code, Some("ThrottlingException"), "{error:?}");
                        refused.fetch_add(10, Ordering::SeqCst);
                    }
                }
                let counts = queues.counts(&queue).unwrap();
                most.fetch_max(counts.visible + counts.in_flight, Ordering::SeqCst);
            }
        })
    });
    let flood: Vec<_> = flood.collect();
    until("the flood fills the queue", || async { (refused.load(Ordering::SeqCst) > 0).then_some(()) }).await;

    let caller = Caller::admin(&world);
    let body = json!({"jobId": "beside", "tasks": [
        {"taskId": "a", "name": "step"},
        {"taskId": "b", "name": "step", "dependsOn": ["a"]},
        {"taskId": "c", "name": "step", "dependsOn": ["b"]},
    ]});
    let (status, answer) = caller.post("/api/jobs", body).await;
    assert_eq!(status, 202, "{answer}");
    until("the job beside the flood is completed", || async {
        let (_, job) = caller.get("/api/jobs/beside").await;
        (job["state"] == "completed").then_some(())
    })
    .await;
    let still_flooding = flood.iter().any(|flooder| !flooder.is_finished());
    done.store(true, Ordering::SeqCst);
    for flooder in flood {
        flooder.await.unwrap();
    }
    assert!(still_flooding, "the job ended during the flood");
    let most = most.load(Ordering::SeqCst);
    // Requests that look at the same time may each put their ten.
    assert!(most <= MAX_WAITING + FLOODERS * 10 + 50, "{most} waited");
    world.quiet().await;
    let rows =
        ledgerline_test_support::rows_of(world.clients(), &world.local.names.events_table, "flood").await;
    assert_eq!(rows.len(), taken.load(Ordering::SeqCst), "what was acknowledged is saved");
    println!("taken {} refused {} most {most}", taken.load(Ordering::SeqCst), refused.load(Ordering::SeqCst));
    world.local.stop().await;
}

/// Figures for a person: `LEDGERLINE_FLOOD_SECONDS=60 cargo test … -- --ignored measured`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes as long as it measures"]
async fn the_rate_of_a_flood_from_eight_senders_is_printed() {
    let seconds =
        std::env::var("LEDGERLINE_FLOOD_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let world = World::start().await;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    let taken = Arc::new(AtomicUsize::new(0));
    let flood: Vec<_> = (0..FLOODERS)
        .map(|flooder| {
            let (taken, bus) = (taken.clone(), world.local.names.bus.clone());
            let clients = without_retries(&world.local.state.aws_endpoint);
            tokio::spawn(async move {
                let mut request = 0;
                while std::time::Instant::now() < end {
                    request += 1;
                    let entries = (0..10).map(|entry| {
                        let id = format!("e-{flooder}-{request}-{entry}");
                        PutEventsRequestEntry::builder()
                            .event_bus_name(&bus)
                            .source("task-workflow.test")
                            .detail_type("log-event")
                            .detail(detail(&event("flood", &id, at(1_767_453_739_640 + request))).to_string())
                            .build()
                    });
                    let answer =
                        clients.events.put_events().set_entries(Some(entries.collect())).send().await;
                    let failed = answer.map_or(10, |answer| answer.failed_entry_count());
                    taken.fetch_add(10 - failed as usize, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for flooder in flood {
        flooder.await.unwrap();
    }
    let queues = world.local.embedded.queues();
    let counts = queues.counts(&world.local.names.ingest_queue).unwrap();
    let (taken, waiting) = (taken.load(Ordering::SeqCst), counts.visible + counts.in_flight);
    let stopped = std::time::Instant::now();
    world.quiet().await;
    println!(
        "{seconds} s: {} events/s acknowledged, {} saved, {waiting} waited at the end, for {:?}",
        taken / seconds as usize,
        (taken - waiting) / seconds as usize,
        stopped.elapsed()
    );
    world.local.stop().await;
}
