//! Calls a function with the messages of its queue, as Lambda's event source mapping does.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent, SqsMessage, SqsMessageAttribute};
use ledgerline_embedded::{Queues, Receive, Received};
use tokio::sync::watch;

use super::{EventSource, REGION};

/// The longest batching window of local mode. On AWS a batch may wait longer; here a user waits at a terminal.
const LONGEST_WINDOW: Duration = Duration::from_secs(1);
const LONG_POLL: Duration = Duration::from_secs(20);
/// The most messages that a queue returns at once.
const RECEIVE_MAX: usize = 10;

/// Polls the queue of an event source.
#[derive(Clone)]
pub(super) struct QueuePoller {
    pub(super) queues: Arc<Queues>,
    pub(super) source: EventSource,
    pub(super) stopped: watch::Receiver<bool>,
}

impl QueuePoller {
    /// Calls `handle` with one batch after the other until local mode stops. Deletes the messages that it does not report
    /// as failed; the queue redelivers the others.
    pub(super) async fn run<F>(mut self, handle: impl Fn(SqsEvent) -> F)
    where
        F: Future<Output = SqsBatchResponse> + Send + 'static,
    {
        loop {
            let batch = tokio::select! {
                biased;
                _ = self.stopped.wait_for(|stop| *stop) => return,
                batch = receive(&self.queues, &self.source) => batch,
            };
            if batch.is_empty() {
                continue;
            }
            let mut event = SqsEvent::default();
            event.records = batch.iter().map(|message| record(message, &self.source.queue)).collect();
            // As on AWS, a handler that panics gives its batch back and nothing more.
            let answer = match tokio::spawn(handle(event)).await {
                Ok(answer) => answer,
                Err(error) => {
                    tracing::error!(%error, function = self.source.function, "the function crashed; its messages will be redelivered");
                    continue;
                }
            };
            let failed = |message: &Received| {
                answer.batch_item_failures.iter().any(|failure| failure.item_identifier == message.message_id)
            };
            for message in batch.iter().filter(|message| !failed(message)) {
                if let Err(error) = self.queues.delete(&self.source.queue, &message.receipt) {
                    tracing::warn!(%error, queue = self.source.queue, "could not delete a handled message; it will be redelivered");
                }
            }
        }
    }
}

/// Receives a batch of what is on the queue, up to the batch size; with a batching window it waits for more.
async fn receive(queues: &Queues, source: &EventSource) -> Vec<Received> {
    let mut batch = Vec::new();
    let window = Duration::from_secs(source.window_seconds).min(LONGEST_WINDOW);
    let mut until: Option<Instant> = None;
    while batch.len() < source.batch_size {
        let wait = match until {
            None => LONG_POLL,
            Some(end) => end.saturating_duration_since(Instant::now()),
        };
        let max = RECEIVE_MAX.min(source.batch_size - batch.len());
        let received =
            queues.receive(&source.queue, Receive { max, wait: Some(wait), visibility_seconds: None }).await;
        match received {
            Ok(messages) if messages.is_empty() => break,
            Ok(messages) => batch.extend(messages),
            Err(error) => {
                tracing::error!(%error, queue = source.queue, "could not receive");
                tokio::time::sleep(Duration::from_secs(1)).await;
                break;
            }
        }
        let end = *until.get_or_insert_with(|| Instant::now() + window);
        if Instant::now() >= end {
            break;
        }
    }
    batch
}

fn record(message: &Received, queue: &str) -> SqsMessage {
    let mut record = SqsMessage::default();
    record.message_id = Some(message.message_id.clone());
    record.receipt_handle = Some(message.receipt.clone());
    record.body = Some(message.body.clone());
    record.attributes = [
        ("SentTimestamp", message.sent_at.to_string()),
        ("ApproximateReceiveCount", message.receives.to_string()),
        ("ApproximateFirstReceiveTimestamp", message.first_received_at.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let optional =
        [("MessageGroupId", &message.group), ("DeadLetterQueueSourceArn", &message.dead_letter_source)];
    for (name, value) in optional {
        if let Some(value) = value {
            record.attributes.insert(name.to_owned(), value.clone());
        }
    }
    for (name, value) in &message.attributes {
        let mut attribute = SqsMessageAttribute::default();
        attribute.string_value = value.string_value.clone();
        attribute.data_type = Some(value.data_type.clone());
        record.message_attributes.insert(name.clone(), attribute);
    }
    record.event_source = Some("aws:sqs".into());
    record.event_source_arn = Some(format!("arn:aws:sqs:{}:000000000000:{queue}", REGION));
    record
}
