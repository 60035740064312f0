//! Events as the ingest queue delivers them: EventBridge's envelope in the body of an SQS record.

use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use ledgerline_event::{Event, Keyed};
use ledgerline_ledger::DETAIL_TYPE;
use serde_json::json;

/// A batch of these events.
pub(crate) fn batch(events: &[Event]) -> anyhow::Result<SqsEvent> {
    let mut batch = SqsEvent::default();
    batch.records = events.iter().map(record).collect::<anyhow::Result<_>>()?;
    Ok(batch)
}

fn record(event: &Event) -> anyhow::Result<SqsMessage> {
    let keys = event.keys();
    let body = json!({
        "version": "0",
        "id": "7bf73129-1428-4cd3-a780-95db273d1602",
        "detail-type": DETAIL_TYPE,
        "source": format!("task-workflow.{}", event.app_name),
        "account": "000000000000",
        "time": event.timestamp.to_rfc3339(),
        "region": "us-east-1",
        "resources": [],
        "detail": Keyed { keys: &keys, event },
    });
    let mut record = SqsMessage::default();
    record.message_id = Some(event.event_id.to_string());
    record.receipt_handle = Some(event.event_id.to_string());
    record.body = Some(body.to_string());
    record.event_source = Some("aws:sqs".to_owned());
    record.aws_region = Some("us-east-1".to_owned());
    record.attributes = [("ApproximateReceiveCount", "1"), ("SentTimestamp", "1767453739640")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    Ok(record)
}
