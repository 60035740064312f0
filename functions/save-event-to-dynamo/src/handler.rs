//! From SQS records to events and back to per-record answers.
//!
//! A record has one of three ends: its event is in the table; or the event can never be saved, and the record is in the
//! dead-letter queue with the reason; or the record goes back to the queue.

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use aws_sdk_sqs::types::MessageAttributeValue;
use futures::future::join_all;
use ledgerline_event::{Invalid, Refusal, ValidEvent, validate};
use ledgerline_lambda::item_failure;
use ledgerline_ledger::{Clock, DETAIL_TYPE, Outcome, SaveError, Saver, telemetry::Metrics};
use ledgerline_store::StoreError;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The most characters of a reason or a code in a dead letter: a person reads a sentence, and SQS would take far more.
const MAX_REASON_CHARS: usize = 1_000;

/// Saves the events of a batch.
#[allow(missing_docs)]
pub struct Handler {
    pub saver: Saver,
    pub sqs: aws_sdk_sqs::Client,
    pub dead_letter_queue_url: String,
    pub metrics: Metrics,
    pub clock: Clock,
}

/// An EventBridge event as a rule puts it into a queue.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Delivered<'a> {
    detail_type: String,
    #[serde(borrow)]
    detail: &'a RawValue,
}

/// Why a record can never be saved.
struct Refused {
    code: &'static str,
    reason: String,
}

#[derive(Default)]
struct Counts {
    saved: usize,
    duplicate: usize,
    collapsed: usize,
    collapsed_different: usize,
    late: usize,
    refused: usize,
    failed: usize,
}

impl Handler {
    /// Saves a batch; the records that the answer names go back to the queue.
    pub async fn handle(&self, batch: SqsEvent) -> SqsBatchResponse {
        let now = (self.clock)();
        let mut counts = Counts::default();
        let mut admitted = Vec::new();
        let mut admitted_records = Vec::new();
        let mut refused = Vec::new();
        for record in &batch.records {
            match read(record.body.as_deref().unwrap_or_default(), now) {
                Ok(event) => {
                    admitted.push(event);
                    admitted_records.push(record);
                }
                Err(refusal) => refused.push((record, refusal)),
            }
        }

        let mut returned: Vec<&SqsMessage> = Vec::new();
        let answers = self.saver.save(&admitted, now).await;
        for ((answer, record), event) in answers.into_iter().zip(admitted_records).zip(&admitted) {
            match answer {
                Ok(outcome) => counts.add(&outcome, event),
                Err(error) if error.is_transient() => {
                    tracing::error!(event_id = %event.event.event_id, %error, "not saved; the record goes back to the queue");
                    returned.push(record);
                }
                Err(error) => refused.push((record, Refused::from(error))),
            }
        }

        let sent = join_all(refused.iter().map(|(record, refusal)| self.dead_letter(record, refusal))).await;
        for ((record, refusal), sent) in refused.iter().zip(sent) {
            let message_id = record.message_id.as_deref().unwrap_or_default();
            match sent {
                Ok(()) => {
                    counts.refused += 1;
                    tracing::warn!(message_id, code = refusal.code, reason = refusal.reason, "refused");
                }
                Err(error) => {
                    tracing::error!(message_id, %error, "refused, but the dead-letter queue did not take it");
                    returned.push(record);
                }
            }
        }
        counts.failed = returned.len();
        self.metrics.count(now, &counts.named());
        let mut response = SqsBatchResponse::default();
        response.batch_item_failures = returned.into_iter().map(item_failure).collect();
        response
    }

    /// The message as it came, with the reason where EventBridge itself would put it.
    async fn dead_letter(&self, record: &SqsMessage, refusal: &Refused) -> Result<(), StoreError> {
        let mut message = self
            .sqs
            .send_message()
            .queue_url(&self.dead_letter_queue_url)
            // SQS refuses an empty body; the reason says that the record had none.
            .message_body(record.body.as_deref().filter(|body| !body.is_empty()).unwrap_or("(empty)"));
        let sent_at = record.attributes.get("SentTimestamp").map(String::as_str);
        let attributes = [
            ("ERROR_CODE", Some(refusal.code)),
            ("ERROR_MESSAGE", Some(refusal.reason.as_str())),
            // With these, a record that is refused twice yields one failed delivery.
            ("ORIGIN_MESSAGE_ID", record.message_id.as_deref()),
            ("ORIGIN_SENT_AT", sent_at),
        ];
        for (name, value) in attributes {
            let Some(value) = value.filter(|value| !value.is_empty()) else { continue };
            let value =
                MessageAttributeValue::builder().data_type("String").string_value(sendable(value)).build();
            let value = value.map_err(|error| StoreError::unreadable("SendMessage", error.to_string()))?;
            message = message.message_attributes(name, value);
        }
        message.send().await.map(|_| ()).map_err(|error| StoreError::new("SendMessage", error))
    }
}

fn read(body: &str, now: ledgerline_event::Millis) -> Result<ValidEvent, Refused> {
    let delivered: Delivered<'_> = serde_json::from_str(body)
        .map_err(|error| Refusal::Unreadable(format!("not an EventBridge event: {error}")))?;
    if delivered.detail_type != DETAIL_TYPE {
        let reason = format!("`{}` is not `{DETAIL_TYPE}`", delivered.detail_type);
        return Err(Refusal::Invalid(Invalid::new("detail-type", reason)).into());
    }
    Ok(validate(delivered.detail.get(), now)?)
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self { code: refusal.code(), reason: refusal.to_string() }
    }
}

impl From<SaveError> for Refused {
    fn from(error: SaveError) -> Self {
        let code = match &error {
            SaveError::IdTaken(_) => "ID_TAKEN",
            SaveError::Store(_) => "NOT_STORABLE",
        };
        Self { code, reason: error.to_string() }
    }
}

impl Counts {
    fn add(&mut self, outcome: &Outcome, event: &ValidEvent) {
        match outcome {
            Outcome::Saved { late } => {
                self.saved += 1;
                self.late += usize::from(*late);
            }
            Outcome::Duplicate { late } => {
                self.duplicate += 1;
                self.late += usize::from(*late);
            }
            Outcome::Collapsed { first, same_content } => {
                self.collapsed += 1;
                if !same_content {
                    self.collapsed_different += 1;
                    let (key, event_id) = (event.event.idempotency_key.as_deref(), &event.event.event_id);
                    tracing::warn!(%event_id, %first, key, "collapsed onto an event with other content");
                }
            }
        }
    }

    fn named(&self) -> [(&'static str, usize); 7] {
        [
            ("Saved", self.saved),
            ("Duplicate", self.duplicate),
            ("Collapsed", self.collapsed),
            ("CollapsedDifferent", self.collapsed_different),
            ("Late", self.late),
            ("Refused", self.refused),
            ("Failed", self.failed),
        ]
    }
}

/// Text that SQS accepts: without control characters, and cut to a length that a person reads.
fn sendable(text: &str) -> String {
    text.chars().take(MAX_REASON_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
