//! Recording an event for a caller who wants to know whether it is new.

use ledgerline_event::{Event, Name, content_hash};
use ledgerline_ledger::Emitter;
use ledgerline_store::keys;
use serde::Serialize;

use crate::{ComponentError, Effects, KeyedRequest, Made, Outbox, PendingEffects, idempotency_expires_at};

/// An event that is on its way to the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedEvent {
    /// Its id, or that of the first event with the same key.
    pub event_id: Name,
    /// Whether there was an event with the same key before.
    pub collapsed: bool,
}

impl Outbox {
    /// Emits an event. One whose idempotency key is taken collapses onto the first with that key, whatever it says.
    ///
    /// The saver collapses events with one key too, however they come. But it does so after the bus has accepted
    /// them: the row that is written here tells a caller at once which event stays.
    pub async fn record_event(
        &self,
        emitter: &Emitter,
        event: Event,
    ) -> Result<RecordedEvent, ComponentError> {
        let event_id = event.event_id.clone();
        let Some(key) = event.idempotency_key.clone() else {
            emitter.send_sealed(vec![emitter.seal(event).await?]).await?;
            return Ok(RecordedEvent { event_id, collapsed: false });
        };
        let tenant = event.tenant_id.clone();
        let row = keys::record_request(&tenant, &key);
        let keyed = KeyedRequest { row, content_hash: content_hash(&event), any_content: true };
        if let Some(first) = self.markers.get(&tenant, &key, self.emitter.now()).await? {
            self.note_other_content(&first.event_id, &first.content_hash, &keyed);
            return Ok(RecordedEvent { event_id: first.event_id, collapsed: true });
        }
        if let Some(first) = self.repeated(&keyed).await?
            && let Some(made) = first.made
        {
            self.note_other_content(&made, &first.content_hash, &keyed);
            return Ok(RecordedEvent { event_id: made, collapsed: true });
        }
        let effects = Effects { events: vec![emitter.seal(event).await?], ..Effects::default() };
        let key = keys::record_claim(&tenant, &event_id);
        let ttl = Some(idempotency_expires_at(self.emitter.now()));
        let pending = PendingEffects { key, effects, started: Some(event_id.clone()), ttl };
        Ok(match self.execute_once(pending, Some(&keyed)).await? {
            Made::Before(Some(event_id)) => RecordedEvent { event_id, collapsed: true },
            Made::Before(None) | Made::Now => RecordedEvent { event_id, collapsed: false },
        })
    }

    fn note_other_content(&self, first: &Name, content_hash: &str, keyed: &KeyedRequest) {
        if content_hash != keyed.content_hash {
            tracing::warn!(%first, "collapsed onto an event with other content");
            self.metrics.count(self.emitter.now(), &[("CollapsedDifferent", 1)]);
        }
    }
}
