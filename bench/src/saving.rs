//! The saver, called with what is on its queue as Lambda would call it.

use std::sync::Arc;

use anyhow::ensure;
use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use ledgerline_embedded::{Queues, Receive, Received};
use save_event_to_dynamo::Handler;

/// Messages of one batch.
pub(crate) const BATCH: usize = 10;

/// The saver and its queue.
pub(crate) struct Saving {
    pub(crate) handler: Handler,
    pub(crate) queues: Arc<Queues>,
    pub(crate) queue: String,
}

impl Saving {
    /// Saves what is on the bus. Returns how many events that were.
    pub(crate) async fn save(&self) -> anyhow::Result<usize> {
        let mut saved = 0;
        loop {
            let receive = Receive { max: BATCH, wait: None, visibility_seconds: None };
            let messages = self.queues.receive_now(&self.queue, &receive)?;
            if messages.is_empty() {
                return Ok(saved);
            }
            let mut batch = SqsEvent::default();
            batch.records = messages.iter().map(record).collect();
            let answer = self.handler.handle(batch).await;
            ensure!(answer.batch_item_failures.is_empty(), "not all was saved: {answer:?}");
            messages.iter().try_for_each(|message| self.queues.delete(&self.queue, &message.receipt))?;
            saved += messages.len();
        }
    }
}

fn record(message: &Received) -> SqsMessage {
    let mut record = SqsMessage::default();
    record.message_id = Some(message.message_id.clone());
    record.receipt_handle = Some(message.receipt.clone());
    record.body = Some(message.body.clone());
    let attributes = [
        ("ApproximateReceiveCount", message.receives.to_string()),
        ("SentTimestamp", message.sent_at.to_string()),
    ];
    record.attributes = attributes.map(|(name, value)| (name.to_owned(), value)).into();
    record
}
