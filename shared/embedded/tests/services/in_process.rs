//! Clients in the same process get the same answers as those on the port.

use std::sync::Arc;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::{Put, TransactWriteItem};
use ledgerline_embedded::{InProcess, Moment, Verdict};

use crate::dynamo::{table, text};
use crate::world::World;

/// The code and the message of a refusal, as the client gets them.
fn refusal<E: ProvideErrorMetadata>(error: SdkError<E>) -> (String, String) {
    (error.code().unwrap_or_default().to_owned(), error.message().unwrap_or_default().to_owned())
}

fn both(world: &World) -> [aws_sdk_dynamodb::Client; 2] {
    let http: InProcess = world.embedded.http_client();
    let config = world.dynamo.config().to_builder().http_client(http).build();
    [world.dynamo.clone(), aws_sdk_dynamodb::Client::from_conf(config)]
}

#[tokio::test]
async fn a_table_answers_both_ways_alike() {
    let world = World::in_memory().await;
    table(&world, "items").await;
    let mut answers = Vec::new();
    for dynamo in both(&world) {
        let mut answer = Vec::new();
        let put = || dynamo.put_item().table_name("items").item("pk", text("a")).item("v", text("é"));
        put().send().await.unwrap();
        let condition = put().condition_expression("attribute_not_exists(pk)").send();
        answer.push(refusal(condition.await.unwrap_err()));
        answer.push(refusal(put().condition_expression("no such").send().await.unwrap_err()));
        answer.push(refusal(dynamo.put_item().table_name("items").send().await.unwrap_err()));
        answer.push(refusal(
            dynamo.get_item().table_name("none").key("pk", text("a")).send().await.unwrap_err(),
        ));
        answer.push(refusal(dynamo.query().table_name("items").send().await.unwrap_err()));
        let twice = Put::builder().table_name("items").item("pk", text("b")).build().unwrap();
        let twice = TransactWriteItem::builder().put(twice).build();
        let twice = dynamo.transact_write_items().transact_items(twice.clone()).transact_items(twice).send();
        answer.push(refusal(twice.await.unwrap_err()));
        let got = dynamo.get_item().table_name("items").key("pk", text("a")).send().await.unwrap();
        answer.push(("item".into(), format!("{:?}", got.item.unwrap()["v"])));
        let query = dynamo.query().table_name("items").key_condition_expression("pk = :pk");
        let found = query.expression_attribute_values(":pk", text("a")).send().await.unwrap();
        answer.push(("items".into(), found.count.to_string()));
        answers.push(answer);
    }
    assert_eq!(answers[0], answers[1]);
}

#[tokio::test]
async fn a_client_that_outlives_the_services_hears_so() {
    let world = World::in_memory().await;
    table(&world, "items").await;
    let [_, dynamo] = both(&world);
    world.embedded.stop().await;
    let error = dynamo.get_item().table_name("items").key("pk", text("a")).send().await.unwrap_err();
    assert!(matches!(error, SdkError::DispatchFailure(_)), "{error:?}");
}

#[tokio::test]
async fn an_abandoned_receive_takes_no_message() {
    let (comes, mut came) = tokio::sync::mpsc::unbounded_channel();
    let world = World::with_interceptor(Arc::new(move |call, moment| {
        if call.operation == "ReceiveMessage" && matches!(moment, Moment::Before) {
            comes.send(()).unwrap();
        }
        Box::pin(async { Verdict::Proceed })
    }))
    .await;
    let http = world.embedded.http_client();
    let sqs = aws_sdk_sqs::Client::from_conf(world.sqs.config().to_builder().http_client(http).build());
    let queue = world.queue("q").await;
    tokio::select! {
        _ = sqs.receive_message().queue_url(&queue).wait_time_seconds(20).send() => panic!("there is nothing"),
        _ = came.recv() => {}
    }
    world.send(&queue, "m").await;
    assert_eq!(world.receive(&queue).await.len(), 1);
}
