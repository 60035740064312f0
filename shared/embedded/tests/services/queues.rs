use std::time::{Duration, Instant};

use aws_sdk_sqs::error::ProvideErrorMetadata;
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry, MessageAttributeValue,
    MessageSystemAttributeName, SendMessageBatchRequestEntry,
};

use crate::world::World;

#[tokio::test]
async fn a_message_arrives_with_its_attributes_and_checksums() {
    let world = World::in_memory().await;
    let queue = world.queue("q").await;
    let text = MessageAttributeValue::builder().data_type("String").string_value("välue").build().unwrap();
    let bytes = MessageAttributeValue::builder()
        .data_type("Binary.png")
        .binary_value(Blob::new([0u8, 255]))
        .build()
        .unwrap();
    let sent = world
        .sqs
        .send_message()
        .queue_url(&queue)
        .message_body("hello")
        .message_attributes("b.text", text.clone())
        .message_attributes("a.bytes", bytes)
        .message_group_id("tenant")
        .send()
        .await
        .unwrap();
    assert_eq!(sent.md5_of_message_body(), Some("5d41402abc4b2a76b9719d911017c592"));

    let message = world.receive(&queue).await.remove(0);
    assert_eq!(message.message_id, sent.message_id);
    assert_eq!(message.md5_of_body(), sent.md5_of_message_body());
    assert_eq!(message.md5_of_message_attributes(), sent.md5_of_message_attributes());
    // Worked out apart from this code, by the algorithm AWS publishes.
    assert_eq!(message.md5_of_message_attributes(), Some("6492033d27af24ccc4a07de85ee6e606"));
    assert_eq!(message.message_attributes().unwrap()["b.text"], text);
    let system = message.attributes().unwrap();
    assert_eq!(system[&MessageSystemAttributeName::MessageGroupId], "tenant");
    assert_eq!(system[&MessageSystemAttributeName::ApproximateReceiveCount], "1");
    assert_eq!(system[&MessageSystemAttributeName::SentTimestamp], "1767453739000");

    let selected = {
        world.pass(30);
        let received = world.sqs.receive_message().queue_url(&queue).message_attribute_names("b.*");
        received.send().await.unwrap().messages.unwrap().remove(0)
    };
    assert_eq!(selected.message_attributes().unwrap().len(), 1);
    assert!(selected.attributes().is_none());
}

#[tokio::test]
async fn an_unacknowledged_message_reappears_after_its_visibility_timeout() {
    let world = World::in_memory().await;
    let queue = world.queue_with("q", &[("VisibilityTimeout", "60")]).await;
    world.send(&queue, "once").await;
    let first = world.receive(&queue).await.remove(0);
    world.pass(59);
    assert!(world.receive(&queue).await.is_empty());
    world.pass(1);
    let second = world.receive(&queue).await.remove(0);
    assert_eq!(second.attributes().unwrap()[&MessageSystemAttributeName::ApproximateReceiveCount], "2");

    let delete = |receipt: &str| world.sqs.delete_message().queue_url(&queue).receipt_handle(receipt).send();
    delete(first.receipt_handle().unwrap()).await.unwrap();
    world.pass(60);
    let third = world.receive(&queue).await.remove(0);
    delete(third.receipt_handle().unwrap()).await.unwrap();
    delete(third.receipt_handle().unwrap()).await.unwrap();
    world.pass(3600);
    assert!(world.receive(&queue).await.is_empty());
}

#[tokio::test]
async fn visibility_can_be_extended_and_given_up() {
    let world = World::in_memory().await;
    let queue = world.queue("q").await;
    world.send(&queue, "work").await;
    let receipt = world.receive(&queue).await.remove(0).receipt_handle.unwrap();
    let change = |seconds| {
        world
            .sqs
            .change_message_visibility()
            .queue_url(&queue)
            .receipt_handle(&receipt)
            .visibility_timeout(seconds)
            .send()
    };
    change(120).await.unwrap();
    world.pass(119);
    assert!(world.receive(&queue).await.is_empty());
    change(0).await.unwrap();
    let error = change(10).await.unwrap_err().into_service_error();
    assert!(error.is_message_not_inflight(), "{error:?}");
    assert_eq!(world.bodies(&queue).await, ["work"]);
}

#[tokio::test]
async fn a_delayed_message_waits_for_its_time() {
    let world = World::in_memory().await;
    let queue = world.queue_with("q", &[("DelaySeconds", "10")]).await;
    world.send(&queue, "queue's delay").await;
    let own = world.sqs.send_message().queue_url(&queue).message_body("own delay").delay_seconds(0);
    own.send().await.unwrap();
    assert_eq!(world.bodies(&queue).await, ["own delay"]);
    let counts = world.embedded.queues().counts("q").unwrap();
    assert_eq!((counts.visible, counts.in_flight, counts.delayed), (0, 1, 1));
    world.pass(10);
    assert_eq!(world.bodies(&queue).await, ["queue's delay"]);
}

#[tokio::test]
async fn a_message_older_than_the_retention_is_gone() {
    let world = World::in_memory().await;
    let queue = world.queue_with("q", &[("MessageRetentionPeriod", "60")]).await;
    world.send(&queue, "old").await;
    world.pass(59);
    assert_eq!(world.embedded.queues().counts("q").unwrap().visible, 1);
    world.pass(1);
    assert!(world.receive(&queue).await.is_empty());
}

#[tokio::test]
async fn one_tenants_backlog_does_not_starve_another() {
    let world = World::in_memory().await;
    let queue = world.queue("q").await;
    let send = async |group: &str, body: &str| {
        let message = world.sqs.send_message().queue_url(&queue).message_body(body).message_group_id(group);
        message.send().await.unwrap();
    };
    for n in 0..30 {
        send("large", &format!("large {n}")).await;
    }
    assert_eq!(world.bodies(&queue).await.len(), 10);
    send("small", "small").await;
    assert_eq!(world.bodies(&queue).await[..2], ["small", "large 10"]);
}

#[tokio::test]
async fn a_long_poll_wakes_when_a_message_arrives() {
    let world = World::in_memory().await;
    let queue = world.queue("q").await;
    let poll = world.sqs.receive_message().queue_url(&queue).wait_time_seconds(20).send();
    let started = Instant::now();
    let (received, ()) = tokio::join!(poll, async {
        while world.embedded.requests().keys().all(|(_, operation)| operation != "ReceiveMessage") {
            tokio::task::yield_now().await;
        }
        world.send(&queue, "here").await;
    });
    assert_eq!(received.unwrap().messages().len(), 1);
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_long_poll_wakes_when_the_clock_makes_a_message_visible() {
    let world = World::in_memory().await;
    let queue = world.queue("q").await;
    world.send(&queue, "again").await;
    world.receive(&queue).await;
    world.embedded.reset_requests();
    let poll = world.sqs.receive_message().queue_url(&queue).wait_time_seconds(20).send();
    let started = Instant::now();
    let (received, ()) = tokio::join!(poll, async {
        while world.embedded.requests().is_empty() {
            tokio::task::yield_now().await;
        }
        world.pass(30);
    });
    assert_eq!(received.unwrap().messages().len(), 1);
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_poll_given_up_by_its_client_takes_no_message() {
    let world = World::in_memory().await;
    let queue = world.queue("q").await;
    let poll = world.sqs.receive_message().queue_url(&queue).wait_time_seconds(20).send();
    tokio::select! {
        _ = poll => panic!("nothing was sent"),
        () = async {
            while world.embedded.requests().keys().all(|(_, operation)| operation != "ReceiveMessage") {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    world.send(&queue, "for the living").await;
    assert_eq!(world.bodies(&queue).await, ["for the living"]);
}

#[tokio::test]
async fn stopping_ends_a_long_poll() {
    let world = World::in_memory().await;
    let queue = world.queue("q").await;
    let sqs = world.sqs.clone();
    let poll = tokio::spawn(async move {
        sqs.receive_message().queue_url(queue).wait_time_seconds(20).send().await.unwrap()
    });
    while world.embedded.requests().len() < 2 {
        tokio::task::yield_now().await;
    }
    let started = Instant::now();
    world.embedded.stop().await;
    assert!(poll.await.unwrap().messages().is_empty());
    assert!(started.elapsed() < Duration::from_secs(4));
}

#[tokio::test]
async fn batches_answer_per_entry() {
    let world = World::in_memory().await;
    let queue = world.queue("q").await;
    let entry = |id: &str, body: &str| {
        SendMessageBatchRequestEntry::builder().id(id).message_body(body).build().unwrap()
    };
    let batch = |entries| world.sqs.send_message_batch().queue_url(&queue).set_entries(Some(entries)).send();
    let sent = batch(vec![entry("a", "one"), entry("b", "bad \u{1}"), entry("c", "two")]).await.unwrap();
    assert_eq!(sent.successful().iter().map(|s| s.id()).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(sent.failed()[0].code(), "InvalidMessageContents");

    let received = world.receive(&queue).await;
    let receipt = |n: usize| received[n].receipt_handle().unwrap();
    let hide = |id: &str, receipt: &str| {
        ChangeMessageVisibilityBatchRequestEntry::builder()
            .id(id)
            .receipt_handle(receipt)
            .visibility_timeout(0)
            .build()
            .unwrap()
    };
    let hidden = world.sqs.change_message_visibility_batch().queue_url(&queue);
    let hidden = hidden.entries(hide("a", receipt(0))).entries(hide("b", "nonsense")).send().await.unwrap();
    assert_eq!((hidden.successful().len(), hidden.failed()[0].code()), (1, "ReceiptHandleIsInvalid"));

    let delete = |id: &str, receipt: &str| {
        DeleteMessageBatchRequestEntry::builder().id(id).receipt_handle(receipt).build().unwrap()
    };
    let deleted = world.sqs.delete_message_batch().queue_url(&queue);
    let deleted = deleted.entries(delete("a", receipt(1))).entries(delete("b", "LL9-1-1"));
    let deleted = deleted.send().await.unwrap();
    assert_eq!((deleted.successful().len(), deleted.failed()[0].id()), (1, "b"));
    assert_eq!(world.bodies(&queue).await, ["one"]);

    for (entries, code) in [
        (vec![], "EmptyBatchRequest"),
        (vec![entry("a", "x"), entry("a", "y")], "BatchEntryIdsNotDistinct"),
        ((0..11).map(|n| entry(&n.to_string(), "x")).collect(), "TooManyEntriesInBatchRequest"),
        (vec![entry("a", &"x".repeat(600_000)), entry("b", &"x".repeat(600_000))], "BatchRequestTooLong"),
    ] {
        let error = batch(entries).await.unwrap_err().into_service_error();
        // SDKs show the code of the older protocol, as they do with AWS.
        assert_eq!(error.code(), Some(&*format!("AWS.SimpleQueueService.{code}")), "{error:?}");
    }
}

#[tokio::test]
async fn refusals_carry_the_codes_of_aws() {
    let world = World::in_memory().await;
    let queue = world.queue("q").await;
    let send = |url: &str, body: String| world.sqs.send_message().queue_url(url).message_body(body).send();
    send(&queue, "x".repeat(1_048_576)).await.unwrap();
    let error = send(&queue, "x".repeat(1_048_577)).await.unwrap_err().into_service_error();
    assert_eq!(error.code(), Some("InvalidParameterValue"));
    let error = send("http://127.0.0.1:1/000000000000/none", "x".into()).await.unwrap_err();
    assert!(error.into_service_error().is_queue_does_not_exist());
    let error = world.sqs.delete_message().queue_url(&queue).receipt_handle("?").send().await.unwrap_err();
    assert!(error.into_service_error().is_receipt_handle_is_invalid());
    let error = world.sqs.get_queue_url().queue_name("none").send().await.unwrap_err().into_service_error();
    assert!(error.is_queue_does_not_exist());
    let error = world.sqs.tag_queue().queue_url(&queue).tags("a", "b").send().await.unwrap_err();
    assert_eq!(error.into_service_error().code(), Some("UnknownOperationException"));
    let other = world.sqs.create_queue().queue_name("q").attributes("DelaySeconds".into(), "5").send().await;
    assert!(other.unwrap_err().into_service_error().is_queue_name_exists());
}

#[tokio::test]
async fn queues_are_listed_described_changed_purged_and_deleted() {
    let world = World::in_memory().await;
    let queue = world.queue("b-2").await;
    for name in ["b-1", "a", "b-2"] {
        world.queue(name).await;
    }
    let listed = world.sqs.list_queues().queue_name_prefix("b").send().await.unwrap();
    assert_eq!(listed.queue_urls(), [queue.replace("b-2", "b-1"), queue.clone()]);

    let set = world.sqs.set_queue_attributes().queue_url(&queue);
    set.attributes("VisibilityTimeout".into(), "7").send().await.unwrap();
    world.send(&queue, "x").await;
    let all = world.sqs.get_queue_attributes().queue_url(&queue).attribute_names("All".into());
    let all = all.send().await.unwrap().attributes.unwrap();
    assert_eq!(all[&"VisibilityTimeout".into()], "7");
    assert_eq!(all[&"ApproximateNumberOfMessages".into()], "1");
    assert_eq!(all[&"QueueArn".into()], "arn:aws:sqs:us-east-1:000000000000:b-2");

    world.sqs.purge_queue().queue_url(&queue).send().await.unwrap();
    assert!(world.receive(&queue).await.is_empty());
    world.sqs.delete_queue().queue_url(&queue).send().await.unwrap();
    assert!(world.sqs.get_queue_url().queue_name("b-2").send().await.is_err());
}
