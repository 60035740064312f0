use std::collections::BTreeMap;

use aws_sdk_s3::primitives::ByteStream;
use ledgerline_embedded::{Embedded, Options, Outgoing, Receive, StartError};

use crate::dynamo::{table, text};
use crate::world::World;

#[tokio::test]
async fn everything_acknowledged_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::in_folder(folder.path()).await;
    let queue = world.queue_with("q", &[("VisibilityTimeout", "60")]).await;
    table(&world, "items").await;
    world.dynamo.put_item().table_name("items").item("pk", text("a")).send().await.unwrap();
    for body in ["in flight", "waiting"] {
        world.send(&queue, body).await;
    }
    let delayed = world.sqs.send_message().queue_url(&queue).message_body("delayed").delay_seconds(20);
    delayed.send().await.unwrap();
    let first = world.sqs.receive_message().queue_url(&queue).send().await.unwrap().messages.unwrap();
    world.events.create_event_bus().name("bus").send().await.unwrap();
    let rule = world.events.put_rule().event_bus_name("bus").name("r").event_pattern(r#"{"source":["a"]}"#);
    rule.send().await.unwrap();
    world.s3.create_bucket().bucket("bucket").send().await.unwrap();
    let object = world.s3.put_object().bucket("bucket").key("k").body(ByteStream::from_static(b"body"));
    object.send().await.unwrap();
    world.ssm.put_parameter().name("p").value("v").send().await.unwrap();
    world.embedded.stop().await;

    let world = World::in_folder(folder.path()).await;
    let item = world.dynamo.get_item().table_name("items").key("pk", text("a")).send().await.unwrap();
    assert!(item.item.is_some());
    // The URL still names the port of before.
    assert_eq!(world.bodies(&queue).await, ["waiting"]);
    world.pass(20);
    assert_eq!(world.bodies(&queue).await, ["delayed"]);
    let delete = world.sqs.delete_message().queue_url(&queue);
    delete.receipt_handle(first[0].receipt_handle().unwrap()).send().await.unwrap();
    world.pass(60);
    assert_eq!(world.bodies(&queue).await, ["waiting", "delayed"]);
    let rules = world.events.list_rules().event_bus_name("bus").send().await.unwrap();
    assert_eq!(rules.rules().len(), 1);
    let object = world.s3.get_object().bucket("bucket").key("k").send().await.unwrap();
    assert_eq!(object.body.collect().await.unwrap().to_vec(), b"body");
    let parameter = world.ssm.get_parameter().name("p").send().await.unwrap();
    assert_eq!(parameter.parameter().unwrap().value(), Some("v"));
    world.embedded.stop().await;
}

#[tokio::test]
async fn a_receipt_of_a_deleted_message_never_names_a_later_one() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::in_folder(folder.path()).await;
    let queues = world.embedded.queues();
    queues.create("q", BTreeMap::new()).unwrap();
    queues.send("q", Outgoing::new("first")).unwrap();
    let receive = Receive { max: 1, wait: None, visibility_seconds: None };
    let first = queues.receive("q", receive.clone()).await.unwrap().remove(0);
    queues.delete("q", &first.receipt).unwrap();
    drop(queues);
    world.embedded.stop().await;

    let world = World::in_folder(folder.path()).await;
    let queues = world.embedded.queues();
    queues.send("q", Outgoing::new("second")).unwrap();
    let second = queues.receive("q", receive).await.unwrap().remove(0);
    assert_ne!(first.receipt, second.receipt);
    queues.delete("q", &first.receipt).unwrap();
    assert_eq!(queues.counts("q").unwrap().in_flight, 1);
}

#[tokio::test]
async fn a_folder_and_a_port_serve_one_process_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::in_folder(folder.path()).await;
    let again = Options { data: Some(folder.path().into()), ..Options::default() };
    assert!(matches!(Embedded::start(again.clone()).await, Err(StartError::FolderInUse(_))));
    let port = world.embedded.endpoint().rsplit(':').next().unwrap().parse().unwrap();
    let taken = Embedded::start(Options { port, ..Options::default() }).await;
    assert!(matches!(taken, Err(StartError::PortTaken(taken)) if taken == port));
    world.embedded.stop().await;
    Embedded::start(again).await.unwrap().stop().await;
}
