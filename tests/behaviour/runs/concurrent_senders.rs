//! One run, and sixty who want it at the same moment.

use futures::future::join_all;
use serde_json::json;

use ledgerline_test_support::{
    World,
    api::Caller,
    external_runs::{appended, begun, id, log},
    until,
};

const CROWD: u32 = 60;

async fn wait_until_logged(caller: &Caller<'_>, event_type: &str) {
    until("all of them are in the log", || async {
        let types = log(caller, "r").await;
        let there = types.iter().filter(|logged| *logged == event_type).count();
        let crowd = CROWD as usize;
        assert!(there <= crowd, "{there}");
        (there == crowd).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_that_come_at_once_are_all_taken_once() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    begun(&caller, "r").await;
    appended(&caller, "r", "hook_created", Some(&id("hook", 1)), json!({"token": "till"})).await;
    let posts = (0..CROWD).map(|payload| caller.post("/api/hooks/till", json!(payload)));
    for (status, answer) in join_all(posts).await {
        assert_eq!(status, 202, "{answer}");
    }
    wait_until_logged(&caller, "hook_received").await;
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_are_sent_at_once_are_all_accepted_and_come_once() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    begun(&caller, "r").await;
    for number in 0..CROWD {
        let waits = json!({"eventName": "paid", "matchCriteria": {"order": number}});
        appended(&caller, "r", "wait_created", Some(&id("wait", number)), waits).await;
    }
    let sends = (0..CROWD)
        .map(|number| caller.post("/api/events/send", json!({"event": "paid", "match": {"order": number}})));
    for (status, answer) in join_all(sends).await {
        assert_eq!(status, 202, "{answer}");
    }
    wait_until_logged(&caller, "wait_completed").await;
    world.local.stop().await;
}
