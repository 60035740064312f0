//! The order in which the events of one name are accepted.
//!
//! A sent event is stored under its *place*, a time and its id. The sender reads the watermark of the name, chooses a
//! place after it, writes the rows, and only then raises the watermark to that place. If the watermark has passed the
//! place meanwhile, the sender writes the rows again further on. So no event is ever accepted at or behind a watermark
//! that a reader has seen, a reader can continue from there, and an event that was accepted before another one was sent
//! has the earlier place, whatever the clocks of the senders show.
//!
//! The *floor* of a tenant is the latest time that the code of a run has read (`ctx.now()`), or has asked for with
//! `since`. Senders choose no place before it: an answer lies after the time at which its run asked.

use std::sync::atomic::Ordering;

use ledgerline_event::{Millis, Name};
use ledgerline_outbox::ComponentError;
use ledgerline_store::{
    Conditional, RequestRetry, RetryCause, SentEventRecord, SentFloor, SentOrder, StoreError, back_off, keys,
};

use super::{
    SentEvent,
    send_event::{SentRow, leaves_of},
};
use crate::SentEvents;

/// Senders of versions before 0.1.0 know no watermark. A deployment lasts less than this: for so long after the first
/// process of this version started, readers look at all events of a name.
const GRACE_MS: u64 = 3_600_000;
/// Tenants whose floor one process remembers.
const MAX_REMEMBERED: usize = 1_000;

/// What became of raising the watermark.
enum Published {
    Done,
    /// It was raised past the place by another sender.
    Passed(String),
}

/// The first place for an event from `earliest` on that the watermark has not reached.
fn place_after(watermark: Option<&str>, earliest: Millis, event_id: &str, attempt: u32) -> Millis {
    match watermark {
        Some(watermark) if &*keys::sent_place(earliest, event_id) <= watermark => {
            let passed = keys::parse_sent_place(watermark).unwrap_or(earliest);
            // Further on with each attempt, so that of many senders each gets its turn.
            passed.max(earliest).plus(1 + u64::from(attempt))
        }
        Some(_) | None => earliest,
    }
}

impl SentEvents {
    /// Writes the rows of a sent event where no reader has been yet. Done again, it changes nothing that a reader sees.
    pub async fn place_sent(&self, sent: &SentEvent) -> Result<(), ComponentError> {
        let (tenant, name) = (&sent.tenant_id, &sent.event_name);
        self.senders_keep_order().await?;
        let limits = self.records.limits(tenant, name).await?;
        let mut watermark = limits.order.watermark;
        let earliest = limits.floor.map_or(sent.timestamp, |SentFloor { floor }| floor.max(sent.timestamp));
        let (mut attempt, mut retries) = (0, RequestRetry::default());
        loop {
            let place = place_after(watermark.as_deref(), earliest, &sent.event_id, attempt);
            self.records.put_all(tenant, name, &self.sent_records(sent, place).await?).await?;
            match self.publish_place(tenant, name, &keys::sent_place(place, &sent.event_id)).await? {
                Published::Done => return Ok(()),
                // The rows stay there: another process that sends the same event may have published them.
                Published::Passed(passed) => {
                    watermark = Some(passed);
                    attempt += 1;
                    back_off(&mut retries, RetryCause::LostRace).await?;
                }
            }
        }
    }

    async fn sent_records(
        &self,
        sent: &SentEvent,
        place: Millis,
    ) -> Result<Vec<(Option<u64>, SentEventRecord)>, ComponentError> {
        let mut records = Vec::new();
        for leaf in leaves_of(sent) {
            let row = if leaf.is_some() { SentRow::Index } else { SentRow::Full };
            records.push((leaf, self.sent_record(sent, place, row).await?));
        }
        Ok(records)
    }

    /// How far the events of a name are accepted.
    pub async fn sent_order(&self, tenant: &Name, event_name: &Name) -> Result<SentOrder, ComponentError> {
        Ok(self.records.order(tenant, event_name).await?)
    }

    /// Whether every sender keeps the order by now: then a reader may continue from a watermark.
    pub async fn senders_keep_order(&self) -> Result<bool, ComponentError> {
        if self.in_order.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let Some(since) = self.records.ordered_since().await? else {
            self.records.note_ordered(self.emitter.now()).await?;
            return Ok(false);
        };
        let in_order = since.plus(GRACE_MS) <= self.emitter.now();
        self.in_order.store(in_order, Ordering::Relaxed);
        Ok(in_order)
    }

    async fn publish_place(
        &self,
        tenant: &Name,
        event_name: &Name,
        place: &str,
    ) -> Result<Published, ComponentError> {
        match self.records.raise_watermark(tenant, event_name, place).await? {
            Conditional::Done(_) => Ok(Published::Done),
            Conditional::Refused(there) => match there.and_then(|there| there.watermark) {
                // The answer to this very request was lost, and the client sent it again.
                Some(watermark) if watermark == place => Ok(Published::Done),
                Some(watermark) => Ok(Published::Passed(watermark)),
                None => Err(StoreError::unreadable("UpdateItem", "a watermark is missing").into()),
            },
        }
    }

    /// From now on no event of the tenant gets a place before `floor`.
    pub async fn raise_sent_floor(&self, tenant: &Name, floor: Millis) -> Result<(), ComponentError> {
        if self.floors.lock().is_ok_and(|known| known.get(tenant).is_some_and(|known| *known >= floor)) {
            return Ok(());
        }
        let floor = match self.records.raise_floor(tenant, floor).await? {
            Conditional::Done(there) | Conditional::Refused(Some(there)) => there.floor,
            Conditional::Refused(None) => floor,
        };
        if let Ok(mut known) = self.floors.lock() {
            if known.len() >= MAX_REMEMBERED {
                known.clear();
            }
            known.insert(tenant.clone(), floor);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Millis {
        Millis::try_from(ms).unwrap()
    }

    #[test]
    fn a_place_lies_after_the_watermark_and_not_before_the_earliest_time() {
        let now = at(1_767_453_739_640);
        assert_eq!(place_after(None, now, "b", 0), now);
        assert_eq!(place_after(Some("1767453739639#z"), now, "b", 0), now);
        assert_eq!(place_after(Some("1767453739640#a"), now, "b", 0), now);
        for behind in ["1767453739640#b", "1767453739640#c", "1767453739700#a"] {
            for attempt in [0, 5] {
                let place = place_after(Some(behind), now, "b", attempt);
                assert!(*keys::sent_place(place, "b") > *behind, "{behind} {attempt}");
                assert!(place > now);
            }
        }
    }
}
