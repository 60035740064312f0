//! The simulated queues do what SQS may do, at the time of the history.

use std::{cell::RefCell, rc::Rc};

use aws_sdk_sqs::{
    Client,
    types::{DeleteMessageBatchRequestEntry, Message, QueueAttributeName, SendMessageBatchRequestEntry},
};
use ledgerline_simulation::{BEGINNING, Depth, Faults, Simulation, Store};
use ledgerline_store::{Fault, StoreError};
use serde_json::json;

const VISIBILITY_MS: u64 = 30_000;

/// A queue, its dead letters, and a client that is served at once: what happens between two calls is up to the test.
struct Line {
    sqs: Client,
    url: String,
    dead_letters: String,
}

impl Line {
    /// Two queues of the history that has begun: a third receive sends a message to the dead letters.
    async fn make(store: &Store) -> Self {
        let sqs = store.clients.sqs.clone();
        let dead_letters = sqs.create_queue().queue_name("line-dlq").send().await.unwrap().queue_url.unwrap();
        let redrive = json!({
            "deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:line-dlq",
            "maxReceiveCount": 2,
        });
        let queue = sqs
            .create_queue()
            .queue_name("line")
            .attributes(QueueAttributeName::VisibilityTimeout, (VISIBILITY_MS / 1000).to_string())
            .attributes(QueueAttributeName::RedrivePolicy, redrive.to_string());
        let url = queue.send().await.unwrap().queue_url.unwrap();
        Self { sqs, url, dead_letters }
    }

    async fn send(&self, body: &str) {
        self.sqs.send_message().queue_url(&self.url).message_body(body).send().await.unwrap();
    }

    async fn receive(&self) -> Option<Message> {
        receive(&self.sqs, &self.url, 1).await.pop()
    }

    async fn delete(&self, message: &Message) {
        let delete = self.sqs.delete_message().queue_url(&self.url);
        delete.set_receipt_handle(message.receipt_handle.clone()).send().await.unwrap();
    }

    async fn hide(&self, message: &Message, seconds: i32) -> Result<(), StoreError> {
        let change = self.sqs.change_message_visibility().queue_url(&self.url).visibility_timeout(seconds);
        let changed = change.set_receipt_handle(message.receipt_handle.clone()).send().await;
        changed.map(|_| ()).map_err(|error| StoreError::new("ChangeMessageVisibility", error))
    }
}

async fn receive(sqs: &Client, url: &str, most: i32) -> Vec<Message> {
    let receive = sqs.receive_message().queue_url(url).max_number_of_messages(most).wait_time_seconds(20);
    let receive = receive.message_system_attribute_names("All".into());
    receive.send().await.unwrap().messages.unwrap_or_default()
}

fn attribute<'m>(message: &'m Message, name: &str) -> Option<&'m str> {
    message.attributes()?.get(&name.into()).map(String::as_str)
}

fn visible(count: usize) -> Depth {
    Depth { visible: count, ..Depth::default() }
}

fn in_flight(count: usize) -> Depth {
    Depth { in_flight: count, ..Depth::default() }
}

#[tokio::test(start_paused = true)]
async fn every_sent_message_is_recorded_beside_what_the_queues_hold() {
    let store = Store::start().await;
    let mut simulation = Simulation::new(&store, 1);
    let Line { sqs, url, .. } = Line::make(&store).await;
    simulation.spawn("sender", async move {
        sqs.send_message().queue_url(&url).message_body("one").message_group_id("g").send().await.unwrap();
        let entry =
            |id: &str| SendMessageBatchRequestEntry::builder().id(id).message_body(id).build().unwrap();
        let batch = sqs.send_message_batch().queue_url(&url).entries(entry("two")).entries(entry("three"));
        assert_eq!(batch.send().await.unwrap().successful().len(), 2);
    });
    simulation.run_until_idle(&Faults::none()).await;
    let sent = simulation.take_sent();
    assert!(sent.iter().all(|message| message.queue_url.ends_with("/line")));
    let sent: Vec<_> = sent.iter().map(|message| (message.body.as_str(), message.group.as_deref())).collect();
    assert_eq!(sent, [("one", Some("g")), ("two", None), ("three", None)]);
    assert!(simulation.take_sent().is_empty());
    assert_eq!(simulation.bodies_in("line"), ["one", "two", "three"]);
    assert_eq!(simulation.depth("line"), visible(3));
}

#[tokio::test(start_paused = true)]
async fn every_history_begins_with_the_empty_queues_of_its_stage() {
    let store = Store::start().await;
    let sqs = &store.clients.sqs;
    for seed in 0..2 {
        let simulation = Simulation::new(&store, seed);
        assert_eq!(simulation.depth(&store.names.task_dead_letter_queue).total(), 0);
        let url = sqs.get_queue_url().queue_name(&store.names.task_queue).send().await;
        let url = url.unwrap().queue_url.unwrap();
        assert_eq!(simulation.depth(&url).total(), 0);
        sqs.send_message().queue_url(&url).message_body("left").send().await.unwrap();
        assert_eq!(simulation.depth(&store.names.task_queue).total(), 1);

        let missing = sqs.get_queue_url().queue_name("line").send().await;
        assert_eq!(StoreError::new("GetQueueUrl", missing.unwrap_err()).fault, Fault::Missing);
        let unsent = sqs.send_message().queue_url("http://simulated/1/line").message_body("x").send().await;
        assert_eq!(StoreError::new("SendMessage", unsent.unwrap_err()).fault, Fault::Missing);
        Line::make(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_received_message_is_hidden_until_its_visibility_ends() {
    let store = Store::start().await;
    let mut simulation = Simulation::new(&store, 1);
    let line = Line::make(&store).await;
    simulation.advance(7).await;
    line.send("a").await;
    simulation.advance(5).await;

    let first = line.receive().await.unwrap();
    assert_eq!(first.body(), Some("a"));
    assert_eq!(attribute(&first, "ApproximateReceiveCount"), Some("1"));
    assert_eq!(attribute(&first, "SentTimestamp"), Some((BEGINNING + 7).to_string().as_str()));
    simulation.advance(VISIBILITY_MS - 1).await;
    assert_eq!(line.receive().await, None);
    assert_eq!(simulation.depth("line"), in_flight(1));
    simulation.advance(1).await;
    assert_eq!(simulation.depth("line"), visible(1));

    // The receiver may want another timeout than the queue's.
    let short = line.sqs.receive_message().queue_url(&line.url).visibility_timeout(2).send().await.unwrap();
    assert_eq!(short.messages().len(), 1);
    assert_eq!(short.messages()[0].attributes(), None);
    simulation.advance(1_999).await;
    assert_eq!(simulation.depth("line"), in_flight(1));
    simulation.advance(1).await;
    assert_eq!(simulation.depth("line"), visible(1));
}

#[tokio::test(start_paused = true)]
async fn a_delayed_message_is_received_after_its_delay() {
    let store = Store::start().await;
    let mut simulation = Simulation::new(&store, 1);
    let line = Line::make(&store).await;
    let send = line.sqs.send_message().queue_url(&line.url).message_body("a").delay_seconds(10);
    send.send().await.unwrap();
    simulation.advance(9_999).await;
    assert_eq!(line.receive().await, None);
    assert_eq!(simulation.depth("line"), Depth { delayed: 1, ..Depth::default() });
    simulation.advance(1).await;
    assert!(line.receive().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn only_the_receipt_of_the_latest_receive_deletes() {
    let store = Store::start().await;
    let mut simulation = Simulation::new(&store, 1);
    let line = Line::make(&store).await;
    line.send("a").await;
    let stale = line.receive().await.unwrap();
    simulation.advance(VISIBILITY_MS).await;
    let latest = line.receive().await.unwrap();

    // Answered like any other.
    line.delete(&stale).await;
    assert_eq!(simulation.bodies_in("line"), ["a"]);
    // Late, but no other receive came since.
    simulation.advance(VISIBILITY_MS).await;
    line.delete(&latest).await;
    assert_eq!(simulation.depth("line").total(), 0);
    line.delete(&latest).await;

    let foreign = line.sqs.delete_message().queue_url(&line.dead_letters);
    let foreign = foreign.set_receipt_handle(latest.receipt_handle).send().await;
    assert!(foreign.unwrap_err().into_service_error().is_receipt_handle_is_invalid());
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_deleted_entry_by_entry() {
    let store = Store::start().await;
    let mut simulation = Simulation::new(&store, 1);
    let line = Line::make(&store).await;
    line.send("a").await;
    line.send("b").await;
    let received = receive(&line.sqs, &line.url, 10).await;
    assert_eq!(received.len(), 2);
    let delete = async |faults: Faults, simulation: &mut Simulation<'_>| {
        let receipts = received.iter().map(|message| message.receipt_handle().unwrap()).chain(["unknown"]);
        let entry = |(position, receipt)| {
            let entry = DeleteMessageBatchRequestEntry::builder().id(format!("{position}"));
            entry.receipt_handle(receipt).build().unwrap()
        };
        let entries: Vec<_> = receipts.enumerate().map(entry).collect();
        let answer = Rc::new(RefCell::new(None));
        let delete = line.sqs.delete_message_batch().queue_url(&line.url).set_entries(Some(entries));
        let heard = answer.clone();
        simulation.spawn("deleter", async move { *heard.borrow_mut() = Some(delete.send().await.unwrap()) });
        simulation.run_until_idle(&faults).await;
        answer.take().unwrap()
    };

    let refused = delete(Faults { refuse_entry: 1.0, ..Faults::none() }, &mut simulation).await;
    assert_eq!((refused.successful().len(), refused.failed().len()), (0, 3));
    assert_eq!(simulation.depth("line"), in_flight(2));
    let deleted = delete(Faults::none(), &mut simulation).await;
    assert_eq!((deleted.successful().len(), deleted.failed().len()), (2, 1));
    assert_eq!(deleted.failed()[0].code(), "ReceiptHandleIsInvalid");
    assert_eq!(simulation.depth("line").total(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_the_receiver_that_holds_a_message_extends_or_ends_its_visibility() {
    let store = Store::start().await;
    let mut simulation = Simulation::new(&store, 1);
    let line = Line::make(&store).await;
    line.send("a").await;
    let first = line.receive().await.unwrap();
    simulation.advance(VISIBILITY_MS - 1).await;
    line.hide(&first, 60).await.unwrap();
    simulation.advance(59_999).await;
    assert_eq!(line.receive().await, None);
    line.hide(&first, 0).await.unwrap();
    assert_eq!(simulation.depth("line"), visible(1));

    // No receiver has it: there is nothing to extend.
    let visible_again = line.hide(&first, 60).await.unwrap_err();
    assert_eq!(visible_again.code.as_deref(), Some("AWS.SimpleQueueService.MessageNotInflight"));
    let second = line.receive().await.unwrap();
    let stale = line.hide(&first, 0).await.unwrap_err();
    assert_eq!(stale.code.as_deref(), Some("InvalidParameterValue"));
    assert_eq!(simulation.depth("line"), in_flight(1));
    line.delete(&second).await;
    let deleted = line.hide(&second, 0).await.unwrap_err();
    assert_eq!(deleted.code.as_deref(), Some("InvalidParameterValue"));
}

#[tokio::test(start_paused = true)]
async fn a_message_received_too_often_goes_to_the_dead_letters() {
    let store = Store::start().await;
    let simulation = Simulation::new(&store, 1);
    let line = Line::make(&store).await;
    line.send("a").await;
    for receives in ["1", "2"] {
        let message = line.receive().await.unwrap();
        assert_eq!(attribute(&message, "ApproximateReceiveCount"), Some(receives));
        line.hide(&message, 0).await.unwrap();
    }
    // It moves when a receive would be one too many, not before.
    assert_eq!((simulation.depth("line"), simulation.depth("line-dlq")), (visible(1), visible(0)));
    assert_eq!(line.receive().await, None);
    assert_eq!((simulation.depth("line"), simulation.depth("line-dlq")), (visible(0), visible(1)));

    let dead = receive(&line.sqs, &line.dead_letters, 10).await.pop().unwrap();
    assert_eq!(dead.body(), Some("a"));
    assert_eq!(attribute(&dead, "ApproximateReceiveCount"), Some("1"));
    assert_eq!(attribute(&dead, "SentTimestamp"), Some(BEGINNING.to_string().as_str()));
}

/// An actor that receives once and notes what it got.
fn receiver(simulation: &mut Simulation<'_>, line: &Line, most: i32) -> Rc<RefCell<Vec<Message>>> {
    let received = Rc::new(RefCell::new(Vec::new()));
    let (heard, sqs, url) = (received.clone(), line.sqs.clone(), line.url.clone());
    simulation.spawn("receiver", async move {
        let messages = receive(&sqs, &url, most).await;
        heard.borrow_mut().extend(messages);
    });
    received
}

#[tokio::test(start_paused = true)]
async fn a_redelivered_message_has_two_receivers() {
    let store = Store::start().await;
    let mut simulation = Simulation::new(&store, 1);
    let line = Line::make(&store).await;
    line.send("a").await;
    let first = receiver(&mut simulation, &line, 10);
    simulation.run_until_idle(&Faults { redeliver: 1.0, ..Faults::none() }).await;
    assert_eq!(first.borrow().len(), 1, "once per receive");
    let first = first.take().pop().unwrap();
    // Its receiver holds it and does not learn that another one will.
    line.hide(&first, 60).await.unwrap();
    assert_eq!(simulation.depth("line"), visible(1));

    let second = receiver(&mut simulation, &line, 10);
    simulation.run_until_idle(&Faults::none()).await;
    let second = second.take().pop().unwrap();
    assert_eq!(second.message_id(), first.message_id());
    assert_eq!(attribute(&second, "ApproximateReceiveCount"), Some("2"));
    assert_eq!(simulation.depth("line"), in_flight(1));
    line.delete(&first).await;
    assert_eq!(simulation.depth("line"), in_flight(1));
    line.delete(&second).await;
    assert_eq!(simulation.depth("line").total(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_seed_decides_the_order_in_which_messages_come() {
    let store = Store::start().await;
    let mut orders = Vec::new();
    for seed in [1, 1, 2] {
        let mut simulation = Simulation::new(&store, seed);
        let line = Line::make(&store).await;
        for n in 0..20 {
            line.send(&n.to_string()).await;
        }
        let mut order = Vec::new();
        while simulation.depth("line").visible > 0 {
            let received = receiver(&mut simulation, &line, 3);
            simulation.run_until_idle(&Faults::none()).await;
            order.extend(received.take().into_iter().map(|message| message.body.unwrap()));
        }
        assert_eq!(order.len(), 20);
        orders.push(order);
    }
    assert_eq!(orders[0], orders[1]);
    assert_ne!(orders[0], orders[2]);
    assert_ne!(orders[0], (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
}
