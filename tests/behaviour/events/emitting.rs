use std::sync::{Arc, Mutex};

use axum::{Json, Router, extract::State, routing::post};
use ledgerline_event::{Kind, catalogue::TaskPending};
use ledgerline_ledger::{EmitError, Emitter, Names};
use serde_json::{Value, json};

use ledgerline_test_support::{World, at, event, name, without_retries};

/// A bus that answers as it is told: for each request, the error code of each entry.
type Script = Arc<Mutex<(Vec<Vec<Option<&'static str>>>, Vec<Vec<Value>>)>>;

async fn scripted_bus(answers: Vec<Vec<Option<&'static str>>>) -> (Emitter, Script) {
    async fn put_events(State(script): State<Script>, body: String) -> Json<Value> {
        let mut script = script.lock().unwrap();
        let request: Value = serde_json::from_str(&body).unwrap();
        let entries = request["Entries"].as_array().unwrap().clone();
        let codes = if script.0.is_empty() { vec![None; entries.len()] } else { script.0.remove(0) };
        script.1.push(entries);
        let answers: Vec<Value> = codes
            .iter()
            .map(|code| match code {
                None => json!({"EventId": "x"}),
                Some(code) => json!({"ErrorCode": code, "ErrorMessage": "said the bus"}),
            })
            .collect();
        let failed = codes.iter().flatten().count();
        Json(json!({"FailedEntryCount": failed, "Entries": answers}))
    }
    let script: Script = Arc::new(Mutex::new((answers, Vec::new())));
    let app = Router::new().route("/", post(put_events)).with_state(script.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let clients = without_retries(&format!("http://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (Emitter::new(&clients, &Names::of_stage("test"), name("t"), name("shop")), script)
}

#[tokio::test]
async fn failed_entries_of_a_batch_are_sent_again_and_each_outcome_is_returned() {
    let busy = Some("ThrottlingException");
    let (emitter, script) = scripted_bus(vec![
        vec![None, busy, Some("MalformedDetail"), busy],
        vec![busy],
        vec![None],
        vec![None],
    ])
    .await;
    let drafts = (0..4).map(|n| emitter.event("x").entity("T", format!("{n}"))).collect();
    let fates = emitter.emit_all(drafts).await;
    let accepted: Vec<bool> = fates.iter().map(Result::is_ok).collect();
    assert_eq!(accepted, [true, true, false, true]);
    assert!(matches!(&fates[2], Err(EmitError::NotAccepted { code, .. }) if code == "MalformedDetail"));
    let sizes: Vec<usize> = script.lock().unwrap().1.iter().map(Vec::len).collect();
    assert_eq!(sizes, [4, 1, 1, 1]);
}

#[tokio::test]
async fn the_bus_gets_source_detail_type_and_time_and_ids_rise() {
    let (emitter, script) = scripted_bus(vec![]).await;
    let drafts =
        (0..12).map(|n| emitter.event("x").entity("T", format!("{n}")).at(at(1_767_453_739_640))).collect();
    let ids: Vec<_> = emitter.emit_all(drafts).await.into_iter().map(Result::unwrap).collect();
    assert!(ids.is_sorted() && ids.iter().all(|id| Kind::of(id) == Some(Kind::Event)), "{ids:?}");
    let requests = script.lock().unwrap().1.clone();
    assert_eq!(requests.iter().map(Vec::len).collect::<Vec<_>>(), [10, 2]);
    let entry = &requests[0][0];
    assert_eq!(entry["Source"], "task-workflow.shop");
    assert_eq!(entry["DetailType"], "log-event");
    assert_eq!(entry["EventBusName"], "ledgerline-test");
    assert_eq!(entry["Time"].as_f64(), Some(1_767_453_739.64));
}

#[tokio::test]
async fn one_bad_event_does_not_take_the_others_with_it() {
    let (emitter, script) = scripted_bus(vec![]).await;
    let drafts = vec![
        emitter.event("ok").entity("T", "1"),
        emitter.event("bad").entity("T", "a#b"),
        emitter.event("no entity"),
        emitter.event("ok").entity("T", "2"),
    ];
    let fates = emitter.emit_all(drafts).await;
    assert!(fates[0].is_ok() && fates[3].is_ok());
    assert!(fates[1].as_ref().unwrap_err().to_string().starts_with("entityId: `a#b`"));
    assert!(fates[2].as_ref().unwrap_err().to_string().starts_with("entityId: is missing"));
    assert_eq!(script.lock().unwrap().1.len(), 1);
}

#[tokio::test]
async fn an_event_that_is_emitted_while_another_is_handled_names_its_cause() {
    let (emitter, script) = scripted_bus(vec![]).await;
    let mut cause = event("tenant-7", "e-1", at(1_767_453_739_640));
    cause.workflow_run_id = Some("wrun_1".into());
    cause.context.via = vec!["sub_1".into()];
    let pending =
        TaskPending { request_id: "req-1".into(), job_id: None, name: "scrape".into(), depends_on: None };
    emitter.handling(&cause).catalogued("req-1", pending).emit().await.unwrap();
    let detail: Value =
        serde_json::from_str(script.lock().unwrap().1[0][0]["Detail"].as_str().unwrap()).unwrap();
    assert_eq!(detail["tenantId"], "tenant-7");
    assert_eq!(detail["causedBy"], "event:price.changed:e-1");
    assert_eq!(detail["workflowRunId"], "wrun_1");
    assert_eq!(detail["context"]["via"], json!(["sub_1"]));
    assert_eq!(detail["PK"], "TENANT#tenant-7");
    assert_eq!(detail["properties"], json!({"requestId": "req-1", "name": "scrape"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_event_is_sent_whose_payload_could_not_be_stored() {
    let world = World::with(|options| {
        options.interceptor = Some(Arc::new(|call, _| {
            let puts_payload =
                call.service == ledgerline_embedded::Service::S3 && call.operation == "PutObject";
            Box::pin(async move {
                match puts_payload {
                    true => ledgerline_embedded::Verdict::Fail { status: 403, code: "AccessDenied".into() },
                    false => ledgerline_embedded::Verdict::Proceed,
                }
            })
        }));
    })
    .await;
    let emitter = Emitter::new(world.clients(), &world.local.names, name("local"), name("test"));
    let large = emitter.event("x").entity("T", "1").properties(json!({"output": "x".repeat(300_000)}));
    assert!(matches!(large.emit().await, Err(EmitError::Overflow(_))));
    assert!(emitter.event("x").entity("T", "1").emit().await.is_ok());
    world.quiet().await;
    assert_eq!(world.rows().await.len(), 1);
    world.local.stop().await;
}
