use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ledgerline_embedded::{Interceptor, Moment, Service, Verdict};

use crate::dynamo::{table, text};
use crate::world::World;

/// Fails the first PutItem at the given moment.
fn once(at: fn(Moment) -> bool) -> Interceptor {
    let armed = Arc::new(AtomicBool::new(true));
    Arc::new(move |call, moment| {
        let fails = call.operation == "PutItem" && at(moment) && armed.swap(false, Ordering::SeqCst);
        Box::pin(async move {
            tokio::task::yield_now().await;
            match fails {
                true => Verdict::Fail { status: 400, code: "ProvisionedThroughputExceededException".into() },
                false => Verdict::Proceed,
            }
        })
    })
}

async fn put_twice(world: &World) -> [bool; 2] {
    table(world, "items").await;
    let put = || {
        let put = world.dynamo.put_item().table_name("items").item("pk", text("a"));
        put.condition_expression("attribute_not_exists(pk)").send()
    };
    let error = put().await.unwrap_err().into_service_error();
    assert!(error.is_provisioned_throughput_exceeded_exception(), "{error:?}");
    let found = world.dynamo.get_item().table_name("items").key("pk", text("a")).send().await.unwrap();
    [found.item.is_some(), put().await.is_ok()]
}

#[tokio::test]
async fn a_request_failed_before_changes_nothing() {
    let world = World::with_interceptor(once(|moment| moment == Moment::Before)).await;
    assert_eq!(put_twice(&world).await, [false, true]);
}

#[tokio::test]
async fn a_lost_answer_leaves_the_write_applied() {
    let world = World::with_interceptor(once(|moment| moment == Moment::After { status: 200 })).await;
    assert_eq!(put_twice(&world).await, [true, false]);
}

#[tokio::test]
async fn an_injected_fault_is_understood_in_every_protocol() {
    let interceptor: Interceptor =
        Arc::new(|_, _| Box::pin(async { Verdict::Fail { status: 503, code: "ServiceUnavailable".into() } }));
    let world = World::with_interceptor(interceptor).await;
    use aws_sdk_sqs::error::ProvideErrorMetadata;
    let code = world.sqs.list_queues().send().await.unwrap_err().into_service_error();
    assert_eq!(code.code(), Some("ServiceUnavailable"));
    let code = world.events.list_event_buses().send().await.unwrap_err().into_service_error();
    assert_eq!(code.code(), Some("ServiceUnavailable"));
    let code = world.s3.get_object().bucket("bucket").key("k").send().await.unwrap_err();
    assert_eq!(code.into_service_error().code(), Some("ServiceUnavailable"));
    let code = world.ssm.get_parameter().name("p").send().await.unwrap_err().into_service_error();
    assert_eq!(code.code(), Some("ServiceUnavailable"));
}

#[tokio::test]
async fn requests_are_counted_until_reset() {
    let world = World::in_memory().await;
    let queue = world.queue("q").await;
    world.send(&queue, "a").await;
    world.send(&queue, "b").await;
    let requests = world.embedded.requests();
    assert_eq!(requests[&(Service::Sqs, "SendMessage".to_owned())], 2);
    assert_eq!(requests.len(), 2);
    world.embedded.reset_requests();
    assert!(world.embedded.requests().is_empty());
}
