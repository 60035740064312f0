//! Sending events to runs. The sender first writes the event under every leaf of its match ([`super::sent_order`]), and only
//! then looks for waits that it fits and notifies their runs; a run first registers a wait, and only then looks for events. So
//! one of the two sees the other. A sender completes no wait: the run takes the oldest event that fits.

use futures::{FutureExt, StreamExt, stream};
use ledgerline_event::{
    Invalid, Millis, Name,
    containment::{check_match, contains},
    match_index::event_leaves,
};
use ledgerline_ledger::{Emitter, check_storable};
use ledgerline_store::{SentEventRecord, StoreError, keys};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{EventSender, Runs, SentEvents};
use ledgerline_outbox::{
    ComponentError, Effects, KeyedRequest, Made, PendingEffects, SentEvent, check_idempotency_key,
};

/// A match is stored under each of its leaves: it should be short.
const MATCH_BYTES: usize = 8_000;
/// Larger data lies in the payload bucket.
const INLINE_BYTES: usize = 50_000;
/// Leaves that are looked at at the same time.
const MAX_CONCURRENT: usize = 16;

/// A request to send an event to runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs)]
pub struct EventSubmission {
    pub event: String,
    #[serde(default)]
    pub data: Value,
    #[serde(default = "empty_match")]
    pub r#match: Value,
    /// A repeated request with this key returns the first event's id.
    #[serde(default)]
    pub idempotency_key: Option<String>,
}

/// An event that is on its way to runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct SubmittedEvent {
    pub event_id: Name,
    /// Whether it was sent before.
    pub collapsed: bool,
}

/// The run that sends an event: with a fixed id, so a repeat is idempotent.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct SendingRun<'a> {
    pub run_id: &'a Name,
    /// The id that the event gets.
    pub event_id: Name,
}

/// The rows of a sent event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentRow {
    /// The row under a leaf of its match: it leads to the full row.
    Index,
    /// The one row that holds the event itself.
    Full,
}

fn empty_match() -> Value {
    Value::Object(Map::new())
}

/// The leaves under which a sent event is written; `None` for its full row.
pub(crate) fn leaves_of(sent: &SentEvent) -> Vec<Option<u64>> {
    event_leaves(&sent.sent_match).into_iter().map(Some).chain([None]).collect()
}

impl EventSubmission {
    /// The idempotency key of the request, if it has one, with the hash of its content.
    fn keyed(&self, tenant: &str) -> Result<Option<KeyedRequest>, Invalid> {
        let Some(key) = &self.idempotency_key else { return Ok(None) };
        check_idempotency_key("idempotencyKey", key)?;
        let asked = json!({ "event": self.event, "data": self.data, "match": self.r#match });
        let content_hash = ledgerline_outbox::short_hash(&[&asked.to_string()]);
        Ok(Some(KeyedRequest { row: keys::send_request(tenant, key), content_hash, any_content: false }))
    }
}

/// Whether a sent event has what a wait asks for, as JSON.
fn fits(sent: &SentEvent, criteria: &str) -> bool {
    serde_json::from_str(criteria).is_ok_and(|criteria: Value| contains(&sent.sent_match, &criteria))
}

impl EventSender {
    /// Sends an event to the runs that wait for it, now or later. `from` is the run that sends it, if a run does.
    pub async fn send_event(
        &self,
        emitter: &Emitter,
        submission: EventSubmission,
        from: Option<SendingRun<'_>>,
    ) -> Result<SubmittedEvent, ComponentError> {
        let event_name = Name::new("event", submission.event.as_str())?;
        if let Some(beginning) = ledgerline_subscription::reserved_beginning(&event_name) {
            let reason = format!("`{event_name}` cannot be sent: `{beginning}…` are the system's own events");
            return Err(Invalid::new("event", reason).into());
        }
        let keyed = submission.keyed(&emitter.scope().tenant)?;
        if let Some(keyed) = &keyed
            && let Some(event_id) = self.outbox.repeated(keyed).await?.and_then(|first| first.made)
        {
            return Ok(SubmittedEvent { event_id, collapsed: true });
        }
        let (run_id, event_id) = from.map(|from| (from.run_id, from.event_id)).unzip();
        let sent = SentEvent {
            tenant_id: emitter.scope().tenant.clone(),
            event_id: event_id.unwrap_or_else(|| self.emitter.new_event_id()),
            event_name,
            data: submission.data,
            sent_match: submission.r#match,
            source_type: if run_id.is_some() { "workflow" } else { "external" }.to_owned(),
            source_instance_id: run_id.cloned(),
            timestamp: emitter.now(),
        };
        let event_id = sent.event_id.clone();
        let key = keys::send_claim(&sent.tenant_id, &event_id);
        let effects = self.runs.sent.sent_effects(emitter, sent).await?;
        let pending = PendingEffects { key, effects, started: Some(event_id.clone()), ttl: None };
        Ok(match self.outbox.execute_once(pending, keyed.as_ref()).await? {
            Made::Before(Some(event_id)) => SubmittedEvent { event_id, collapsed: true },
            // `Before(None)`: the claim of this event id exists and does not name its event. The id is the same.
            Made::Before(None) | Made::Now => SubmittedEvent { event_id, collapsed: false },
        })
    }
}

impl SentEvents {
    /// The effects of sending an event: it goes to runs, and it is also an ordinary event of the ledger.
    pub async fn sent_effects(&self, emitter: &Emitter, sent: SentEvent) -> Result<Effects, ComponentError> {
        check_match("match", &sent.sent_match)?;
        let size = sent.sent_match.to_string().len();
        if size > MATCH_BYTES {
            let reason =
                format!("has {size} bytes; at most {MATCH_BYTES} are allowed: put the rest into data");
            return Err(Invalid::new("match", reason).into());
        }
        check_storable(&sent.data.to_string()).map_err(|reason| Invalid::new("data", reason))?;
        check_storable(&sent.sent_match.to_string()).map_err(|reason| Invalid::new("match", reason))?;
        let properties = json!({
            "eventName": sent.event_name,
            "data": sent.data,
            "matchCriteria": sent.sent_match,
            "sourceType": sent.source_type,
            "sourceInstanceId": sent.source_instance_id,
        });
        let event = emitter
            .event(sent.event_name.as_str())
            .entity("EVENT", sent.event_id.as_str())
            .event_id(sent.event_id.clone())
            .at(sent.timestamp)
            .properties(properties)
            .build_plain()?;
        let events = vec![emitter.seal(event).await?];
        Ok(Effects { events, sends: vec![sent], ..Effects::default() })
    }

    /// A row of a sent event at a place.
    pub async fn sent_record(
        &self,
        sent: &SentEvent,
        place: Millis,
        kind: SentRow,
    ) -> Result<SentEventRecord, ComponentError> {
        let mut row = SentEventRecord {
            event_id: sent.event_id.clone(),
            timestamp: place,
            sent_match: sent.sent_match.to_string(),
            event: None,
            event_key: None,
        };
        if kind == SentRow::Full {
            let json = serde_json::to_string(sent)
                .map_err(|error| StoreError::unreadable("PutItem", error.to_string()))?;
            if json.len() <= INLINE_BYTES {
                row.event = Some(json);
            } else {
                let key = format!("sent/{}.json", sent.event_id);
                self.payloads.put(&key, json.into_bytes()).await?;
                row.event_key = Some(key);
            }
        }
        Ok(row)
    }

    /// A sent event, whole.
    pub async fn sent_event(
        &self,
        tenant: &Name,
        event_name: &str,
        mut row: SentEventRecord,
    ) -> Result<Option<SentEvent>, ComponentError> {
        if row.event.is_none() && row.event_key.is_none() {
            let Some(whole) = self.records.whole(tenant, event_name, &row).await? else { return Ok(None) };
            row = whole;
        }
        let json = match (row.event, row.event_key) {
            (Some(json), _) => Some(json.into_bytes()),
            (None, Some(key)) => self.payloads.get(&key).await?,
            (None, None) => None,
        };
        let Some(json) = json else { return Ok(None) };
        let event = serde_json::from_slice(&json);
        Ok(Some(event.map_err(|error| StoreError::unreadable("reading a sent event", error.to_string()))?))
    }
}

impl Runs {
    /// Writes the rows of a sent event and notifies the runs that wait for it. Repeating it changes nothing.
    pub async fn deliver_sent(&self, sent: &SentEvent) -> Result<(), ComponentError> {
        self.sent.place_sent(sent).await?;
        let lookups: Vec<_> =
            leaves_of(sent).into_iter().map(|leaf| self.notify_waiters(sent, leaf).boxed()).collect();
        let looked: Vec<Result<(), ComponentError>> =
            stream::iter(lookups).buffer_unordered(MAX_CONCURRENT).collect().await;
        looked.into_iter().collect::<Result<(), _>>().map_err(|error| match error {
            ComponentError::Store(error) => ComponentError::NotNotified(error),
            other => other,
        })
    }

    async fn notify_waiters(&self, sent: &SentEvent, leaf: Option<u64>) -> Result<(), ComponentError> {
        let mut waiters = self.waits.waiters(&sent.tenant_id, &sent.event_name, leaf);
        let mut trouble = None;
        while let Some(waiter) = waiters.next().await? {
            if !waiter.wait.match_criteria.as_deref().is_some_and(|criteria| fits(sent, criteria)) {
                continue;
            }
            // If one run cannot be notified, the others must not wait for it.
            if let Err(error) = self.notify_run(&sent.tenant_id, &waiter).await {
                tracing::error!(run_id = %waiter.wait.run_id, event_id = %sent.event_id, %error, "a run was not notified; the sweep retries");
                trouble = Some(error);
            }
        }
        trouble.map_or(Ok(()), Err)
    }
}
