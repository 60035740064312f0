use aws_sdk_sqs::types::{MessageAttributeValue, MessageSystemAttributeName};

use crate::world::World;

const POLICY: &str =
    r#"{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:q-dlq","maxReceiveCount":"2"}"#;

#[tokio::test]
async fn a_message_received_too_often_moves_to_the_dead_letter_queue_as_it_is() {
    let world = World::in_memory().await;
    let dead = world.queue("q-dlq").await;
    let queue = world.queue_with("q", &[("RedrivePolicy", POLICY)]).await;
    let kind = MessageAttributeValue::builder().data_type("String").string_value("k").build().unwrap();
    let sent = world.sqs.send_message().queue_url(&queue).message_body("poison");
    let sent = sent.message_attributes("kind", kind.clone()).message_group_id("g").send().await.unwrap();
    for _ in 0..2 {
        assert_eq!(world.bodies(&queue).await, ["poison"]);
        world.pass(30);
    }
    assert!(world.receive(&queue).await.is_empty());

    let message = world.receive(&dead).await.remove(0);
    assert_eq!(message.message_id, sent.message_id);
    assert_eq!(message.body(), Some("poison"));
    assert_eq!(message.message_attributes().unwrap()["kind"], kind);
    let system = message.attributes().unwrap();
    assert_eq!(
        system[&MessageSystemAttributeName::DeadLetterQueueSourceArn],
        "arn:aws:sqs:us-east-1:000000000000:q"
    );
    assert_eq!(system[&MessageSystemAttributeName::SentTimestamp], "1767453739000");
    assert_eq!(system[&MessageSystemAttributeName::MessageGroupId], "g");
    assert_eq!(world.embedded.queues().counts("q").unwrap(), Default::default());
}

#[tokio::test]
async fn a_dead_letter_does_not_take_the_place_of_a_good_message() {
    let world = World::in_memory().await;
    world.queue("q-dlq").await;
    let queue = world.queue_with("q", &[("RedrivePolicy", POLICY)]).await;
    world.send(&queue, "poison").await;
    for _ in 0..2 {
        world.receive(&queue).await;
        world.pass(30);
    }
    world.send(&queue, "good").await;
    let received = world.sqs.receive_message().queue_url(&queue).send().await.unwrap();
    assert_eq!(received.messages()[0].body(), Some("good"));
    assert_eq!(world.embedded.queues().counts("q-dlq").unwrap().visible, 1);
}

#[tokio::test]
async fn without_its_dead_letter_queue_a_message_keeps_coming_back() {
    let world = World::in_memory().await;
    let queue = world.queue_with("q", &[("RedrivePolicy", POLICY)]).await;
    world.send(&queue, "stubborn").await;
    for _ in 0..4 {
        assert_eq!(world.bodies(&queue).await, ["stubborn"]);
        world.pass(30);
    }
}
