//! From dead-letter messages to stored failures and one alert.
//!
//! The handler stores each failure first, then alerts. While Slack is down the messages go back to the queue, and a
//! failure that has an alert gets no second one.

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use futures::future::join_all;
use ledgerline_alert::{Delivery, Slack};
use ledgerline_event::{Millis, Name};
use ledgerline_lambda::item_failure;
use ledgerline_ledger::{Clock, telemetry::Metrics};
use ledgerline_store::{FailedDeliveries, FailedDelivery, FailureState, Payloads, keys};
use serde_json::{Value, json};

/// How many failures an alert describes in full; it counts the rest.
const DESCRIBED_IN_FULL: usize = 8;

/// Characters of a field that are kept beside the body.
const MAX_TEXT: usize = 1_000;

/// How the name of the run queue ends.
const RUN_QUEUE: &str = "-runs";
/// How the entity of a run begins.
const RUN: &str = "RUN#";

/// Stores failures and alerts.
#[allow(missing_docs)]
pub struct Handler {
    pub failed_deliveries: FailedDeliveries,
    pub payloads: Payloads,
    pub slack: Slack,
    /// The tenant that gets the failures that name none.
    pub operator_tenant: Name,
    /// How a person names this ledger on the command line: `--stage dev`, `--local`.
    pub ledger_flag: String,
    pub metrics: Metrics,
    pub clock: Clock,
}

impl Handler {
    /// Stores the failures and alerts; the messages that the answer names go back to the queue.
    pub async fn handle(&self, batch: SqsEvent) -> SqsBatchResponse {
        let now = (self.clock)();
        let kept = join_all(batch.records.iter().map(|record| async move {
            let failure = describe(record, &self.operator_tenant, now);
            (record, self.failed_deliveries.keep(failure, &self.payloads).await)
        }))
        .await;

        let mut returned: Vec<&SqsMessage> = Vec::new();
        let mut unalerted = Vec::new();
        let mut failed_deliveries = 0;
        for (record, outcome) in kept {
            match outcome {
                Ok(kept) => {
                    failed_deliveries += usize::from(kept.is_new);
                    if kept.failure.alerted_at.is_none() {
                        unalerted.push((record, kept.failure));
                    }
                }
                Err(error) => {
                    tracing::error!(message_id = record.message_id, %error, "the failure could not be stored; the message goes back to the queue");
                    returned.push(record);
                }
            }
        }
        let mut alert_failures = 0;
        if !unalerted.is_empty() {
            let failures: Vec<&FailedDelivery> = unalerted.iter().map(|(_, failure)| failure).collect();
            let text = alert_text(&failures, &self.ledger_flag);
            match self.slack.send(&text).await {
                Ok(delivery) => {
                    if delivery == Delivery::NoWebhook {
                        tracing::error!(alert = %text, "no Slack webhook is set; this is the alert");
                    }
                    self.record_alerts(&failures, now).await;
                }
                Err(error) => {
                    tracing::error!(%error, failures = failures.len(), "the failures are stored, but the alert was not sent; trying again later");
                    alert_failures = 1;
                    returned.extend(unalerted.iter().map(|(record, _)| *record));
                }
            }
        }
        self.metrics
            .count(now, &[("FailedDeliveries", failed_deliveries), ("AlertFailures", alert_failures)]);
        let mut response = SqsBatchResponse::default();
        response.batch_item_failures = returned.into_iter().map(item_failure).collect();
        response
    }

    /// Records that the alert was sent. If a write fails, a redelivered message only alerts once more.
    async fn record_alerts(&self, failures: &[&FailedDelivery], now: Millis) {
        for noted in
            join_all(failures.iter().map(|failure| self.failed_deliveries.note_alert(failure, now))).await
        {
            if let Err(error) = noted {
                tracing::warn!(%error, "could not record that an alert was sent");
            }
        }
    }
}

fn describe(record: &SqsMessage, operator_tenant: &Name, now: Millis) -> FailedDelivery {
    let body = record.body.clone().unwrap_or_default();
    let event: Value = serde_json::from_str(&body).unwrap_or_default();
    // Senders and EventBridge write these texts at any length. The record keeps as much as a person reads, so that
    // it fits the table.
    let text = |value: &Value| value.as_str().map(|text| text.chars().take(MAX_TEXT).collect::<String>());
    let attribute = |name: &str| text(&json!(record.message_attributes.get(name)?.string_value));

    // The saver names the message that it refused: refused twice, it is still one failure.
    let message_id = record.message_id.clone().unwrap_or_default();
    let origin = attribute("ORIGIN_MESSAGE_ID").unwrap_or_else(|| message_id.clone());
    let sent_at = attribute("ORIGIN_SENT_AT").or_else(|| record.attributes.get("SentTimestamp").cloned());
    let failed_at =
        sent_at.and_then(|ms| ms.parse::<u64>().ok()).and_then(|ms| Millis::try_from(ms).ok()).unwrap_or(now);

    // A message of the run queue names a tenant and a run, and nothing else.
    let run = text(&event["runId"]).filter(|_| event["detail"].is_null());
    let tenant = if run.is_some() { &event["tenantId"] } else { &event["detail"]["tenantId"] };
    let tenant = text(tenant).and_then(|tenant| Name::new("tenantId", tenant).ok());
    let source_queue_arn = record.attributes.get("DeadLetterQueueSourceArn").map_or("", String::as_str);
    let is_of_run_queue = run.is_some() || source_queue_arn.ends_with(RUN_QUEUE);
    let consumer = if is_of_run_queue { "the runner" } else { "the saver" };
    let (error_code, reason) = match (attribute("ERROR_CODE"), attribute("ERROR_MESSAGE")) {
        (Some(code), Some(message)) => (code, message),
        (Some(code), None) => (code, "EventBridge gave no further reason".into()),
        (None, _) => (
            "RETRIES_EXHAUSTED".into(),
            format!("{consumer} was given it again and again and never acknowledged it"),
        ),
    };
    FailedDelivery {
        id: keys::failure_id(failed_at, &origin),
        tenant_id: tenant.unwrap_or_else(|| operator_tenant.clone()),
        message_id,
        failed_at,
        event_type: text(&event["detail"]["eventType"]),
        detail_type: text(&event["detail-type"]),
        entity: run.map(|run| format!("{RUN}{run}")).or_else(|| text(&event["detail"]["GSI1PK"])),
        time: text(&event["time"]),
        error_code,
        reason,
        state: FailureState::Failed,
        alerted_at: None,
        redriven_at: None,
        body: Some(body),
        body_key: None,
        ttl: None,
    }
}

/// One Slack message for all failures.
fn alert_text(failures: &[&FailedDelivery], ledger_flag: &str) -> String {
    let mut lines = match failures {
        [_] => vec![":rotating_light: *Delivery failure*".to_owned()],
        many => vec![format!(":rotating_light: *{} delivery failures*", many.len())],
    };
    for failure in failures.iter().take(DESCRIBED_IN_FULL) {
        if failures.len() > 1 {
            lines.push(String::new());
        }
        let unknown = "unknown".to_owned();
        let fields = [
            ("Event type", failure.event_type.as_ref().unwrap_or(&unknown)),
            ("Detail type", failure.detail_type.as_ref().unwrap_or(&unknown)),
            ("Entity", failure.entity.as_ref().unwrap_or(&unknown)),
            ("Time", failure.time.as_ref().unwrap_or(&unknown)),
            ("Message ID", &failure.message_id),
            ("Reason", &failure.reason),
        ];
        lines.extend(fields.map(|(name, value)| format!("*{name}:* {}", escaped(value))));
        lines.push(what_to_do(failure, ledger_flag));
    }
    if let Some(more @ 1..) = failures.len().checked_sub(DESCRIBED_IN_FULL) {
        lines.push(format!("\n… and {more} more: `ledgerline {ledger_flag} failed list`"));
    }
    lines.join("\n")
}

/// The command that helps. A run needs no redrive: the sweep sends it to the runners again while it has something to
/// do.
fn what_to_do(failure: &FailedDelivery, ledger_flag: &str) -> String {
    let tenant = escaped(failure.tenant_id.as_str());
    match failure.entity.as_deref().and_then(|entity| entity.strip_prefix(RUN)) {
        Some(run) if failure.event_type.is_none() => {
            format!("*Look:* `ledgerline {ledger_flag} --tenant {tenant} run show {}`", escaped(run))
        }
        _ => format!("*Redrive:* `ledgerline {ledger_flag} --tenant {tenant} failed redrive {}`", failure.id),
    }
}

/// Escapes what Slack would take for markup, and cuts the text to what a person reads.
fn escaped(text: &str) -> String {
    let short: String = text.chars().take(300).collect();
    short.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(body: &str) -> SqsMessage {
        let mut record = SqsMessage::default();
        record.message_id = Some("m-1".into());
        record.body = Some(body.into());
        record
    }

    fn ops() -> Name {
        Name::new("tenantId", "ops").unwrap()
    }

    #[test]
    fn what_cannot_be_read_belongs_to_the_operators() {
        let failure = describe(&record("not json"), &ops(), Millis::MIN);
        assert_eq!(failure.tenant_id, ops());
        assert_eq!(failure.error_code, "RETRIES_EXHAUSTED");
        assert_eq!(failure.body.as_deref(), Some("not json"));
    }

    #[test]
    fn an_alert_has_the_fields_of_the_event() {
        let body = r#"{"detail-type":"log-event","time":"2026-01-03T15:22:19Z","detail":{"tenantId":"t","eventType":"a<b","GSI1PK":"TASK#req-1"}}"#;
        let failure = describe(&record(body), &ops(), Millis::MIN);
        let text = alert_text(&[&failure], "--stage dev");
        for line in [
            ":rotating_light: *Delivery failure*",
            "*Event type:* a&lt;b",
            "*Detail type:* log-event",
            "*Entity:* TASK#req-1",
            "*Time:* 2026-01-03T15:22:19Z",
            "*Message ID:* m-1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }

    #[test]
    fn a_failed_run_message_is_a_failure_of_its_tenant() {
        let failure = describe(&record(r#"{"tenantId":"t","runId":"wrun_1"}"#), &ops(), Millis::MIN);
        assert_eq!((failure.tenant_id.as_str(), failure.entity.as_deref()), ("t", Some("RUN#wrun_1")));
        assert!(failure.reason.starts_with("the runner"), "{}", failure.reason);
        let text = alert_text(&[&failure], "--stage dev");
        assert!(text.contains("*Look:* `ledgerline --stage dev --tenant t run show wrun_1`"), "{text}");
        assert!(!text.contains("redrive"), "{text}");

        let mut poison = record("no run");
        let source = "arn:aws:sqs:eu-central-1:123456789012:dev-runs".to_owned();
        poison.attributes.insert("DeadLetterQueueSourceArn".into(), source);
        let failure = describe(&poison, &ops(), Millis::MIN);
        assert_eq!(failure.tenant_id, ops());
        assert!(failure.reason.starts_with("the runner"), "{}", failure.reason);
    }

    #[test]
    fn many_failures_are_one_message() {
        let failure = describe(&record("{}"), &ops(), Millis::MIN);
        let text = alert_text(&[&failure; 100], "--stage dev");
        assert!(text.starts_with(":rotating_light: *100 delivery failures*"));
        assert!(text.contains("… and 92 more"));
        assert_eq!(text.matches("*Message ID:*").count(), DESCRIBED_IN_FULL);
    }
}
