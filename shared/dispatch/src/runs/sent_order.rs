//! The order in which the events of one name are accepted.
//!
//! A sent event is stored under its *place*, a time and its id. The sender reads the watermark of the name, chooses a
//! place after it, writes the rows, and only then raises the watermark to that place. If the watermark has passed the
//! place meanwhile, the sender writes the rows again further on. So no event is ever accepted at or behind a watermark
//! that a reader has seen, a reader can go on from there, and an event that was accepted before another one was sent
//! has the earlier place, whatever the clocks of the senders show.
//!
//! The *floor* of a tenant is the latest time that the code of a run has read (`ctx.now()`), or has asked for with
//! `since`. Senders choose no place before it: an answer lies after the time at which its run asked.

use std::sync::atomic::Ordering;

use ledgerline_event::{Millis, Name};
use ledgerline_ledger::{
    StoreError,
    control::{
        Item, item,
        keys::{self, ControlKey},
        read,
    },
};
use serde::{Deserialize, Serialize};

use super::{SentEvent, send::leaves_of};
use crate::{
    Dispatch, DispatchError,
    conditional::{Answer, conditionally, number, text},
    transaction::{Hindrance, Patience, busy},
};

/// Senders of the version before know no watermark. A deployment takes less than this: for so long after the first
/// process of this version came, readers look at all events of a name.
const GRACE_MS: u64 = 3_600_000;
/// Tenants whose floor one process remembers.
const MAX_REMEMBERED: usize = 1_000;

/// How far the events of one name are accepted.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SentOrder {
    /// The place of the last accepted event.
    pub(super) watermark: Option<String>,
}

/// When the first process came that accepts events in order.
#[derive(Serialize, Deserialize)]
struct Began {
    at: Millis,
}

#[derive(Deserialize)]
struct Floor {
    floor: Millis,
}

/// What became of raising the watermark.
enum Published {
    Done,
    /// It was raised past the place by another sender.
    Passed(String),
}

impl SentOrder {
    /// The first place for an event from `earliest` on that the watermark has not reached.
    fn place_after(&self, earliest: Millis, event_id: &str, attempt: u32) -> Millis {
        match &self.watermark {
            Some(watermark) if keys::sent_place(earliest, event_id) <= *watermark => {
                let passed = keys::parse_sent_place(watermark).unwrap_or(earliest);
                // Further on with each attempt, so that of many senders each gets its turn.
                passed.max(earliest).plus(1 + u64::from(attempt))
            }
            Some(_) | None => earliest,
        }
    }
}

impl Dispatch {
    /// Writes the rows of a sent event where no reader has been yet. Done again, it changes nothing that a reader sees.
    pub(super) async fn place_sent(&self, sent: &SentEvent) -> Result<(), DispatchError> {
        let (tenant, name) = (&sent.tenant_id, &sent.event_name);
        self.senders_keep_order().await?;
        let (mut order, floor) = self.sent_order_and_floor(tenant, name).await?;
        let earliest = floor.map_or(sent.timestamp, |floor| floor.max(sent.timestamp));
        let (mut attempt, mut patience) = (0, Patience::default());
        loop {
            let place = order.place_after(earliest, &sent.event_id, attempt);
            self.control.put_all(self.sent_rows(sent, place).await?).await?;
            match self.publish_place(tenant, name, &keys::sent_place(place, &sent.event_id)).await? {
                Published::Done => return Ok(()),
                // The rows stay there: another process that sends the same event may have published them.
                Published::Passed(watermark) => {
                    order.watermark = Some(watermark);
                    attempt += 1;
                    busy(&mut patience, Hindrance::Behind).await?;
                }
            }
        }
    }

    async fn sent_rows(&self, sent: &SentEvent, place: Millis) -> Result<Vec<Item>, DispatchError> {
        let mut rows = Vec::new();
        for leaf in leaves_of(sent) {
            let key = keys::sent_event(&sent.tenant_id, &sent.event_name, leaf, place, &sent.event_id);
            rows.push(item(&key, &self.sent_row(sent, place, leaf.is_none()).await?)?);
        }
        Ok(rows)
    }

    async fn sent_order_and_floor(
        &self,
        tenant: &Name,
        event_name: &Name,
    ) -> Result<(SentOrder, Option<Millis>), DispatchError> {
        let (order, floor) = (keys::sent_order(tenant, event_name), keys::sent_floor(tenant));
        let mut found = (SentOrder::default(), None);
        for row in self.control.get_all(&[order.clone(), floor]).await? {
            match is_at(&row, &order) {
                true => found.0 = read(row)?,
                false => found.1 = Some(read::<Floor>(row)?.floor),
            }
        }
        Ok(found)
    }

    /// How far the events of a name are accepted.
    pub(super) async fn sent_order(
        &self,
        tenant: &Name,
        event_name: &Name,
    ) -> Result<SentOrder, DispatchError> {
        Ok(self.control.get(&keys::sent_order(tenant, event_name)).await?.unwrap_or_default())
    }

    /// Whether every sender keeps the order by now: then a reader may go on from a watermark.
    pub(super) async fn senders_keep_order(&self) -> Result<bool, DispatchError> {
        if self.sent_in_order.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let key = keys::sent_order_began();
        let Some(began) = self.control.get::<Began>(&key).await? else {
            self.control.put_new(&key, &Began { at: self.now() }).await?;
            return Ok(false);
        };
        let in_order = began.at.plus(GRACE_MS) <= self.now();
        self.sent_in_order.store(in_order, Ordering::Relaxed);
        Ok(in_order)
    }

    async fn publish_place(
        &self,
        tenant: &Name,
        event_name: &Name,
        place: &str,
    ) -> Result<Published, DispatchError> {
        let update = self
            .control
            .update(&keys::sent_order(tenant, event_name))
            .update_expression("SET watermark = :place")
            .condition_expression("attribute_not_exists(watermark) OR watermark < :place")
            .expression_attribute_values(":place", text(place));
        match conditionally::<SentOrder>(update).await? {
            Answer::Done(_) => Ok(Published::Done),
            Answer::Refused(there) => match there.and_then(|there| there.watermark) {
                // The answer to this very request was lost, and the client sent it again.
                Some(watermark) if watermark == place => Ok(Published::Done),
                Some(watermark) => Ok(Published::Passed(watermark)),
                None => Err(StoreError::unreadable("UpdateItem", "a watermark is missing").into()),
            },
        }
    }

    /// From now on no event of the tenant gets a place before `floor`.
    pub async fn raise_sent_floor(&self, tenant: &Name, floor: Millis) -> Result<(), DispatchError> {
        if self.sent_floors.lock().is_ok_and(|known| known.get(tenant).is_some_and(|known| *known >= floor)) {
            return Ok(());
        }
        let update = self
            .control
            .update(&keys::sent_floor(tenant))
            .update_expression("SET #floor = :floor")
            .condition_expression("attribute_not_exists(#floor) OR #floor < :floor")
            .expression_attribute_names("#floor", "floor")
            .expression_attribute_values(":floor", number(floor.get()));
        let floor = match conditionally::<Floor>(update).await? {
            Answer::Done(there) | Answer::Refused(Some(there)) => there.floor,
            Answer::Refused(None) => floor,
        };
        if let Ok(mut known) = self.sent_floors.lock() {
            if known.len() >= MAX_REMEMBERED {
                known.clear();
            }
            known.insert(tenant.clone(), floor);
        }
        Ok(())
    }
}

fn is_at(row: &Item, key: &ControlKey) -> bool {
    row.get("PK").and_then(|pk| pk.as_s().ok()) == Some(&key.pk)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Millis {
        Millis::try_from(ms).unwrap()
    }

    fn order(watermark: Option<&str>) -> SentOrder {
        SentOrder { watermark: watermark.map(str::to_owned) }
    }

    #[test]
    fn a_place_lies_after_the_watermark_and_not_before_the_earliest_time() {
        let now = at(1_767_453_739_640);
        assert_eq!(order(None).place_after(now, "b", 0), now);
        assert_eq!(order(Some("1767453739639#z")).place_after(now, "b", 0), now);
        assert_eq!(order(Some("1767453739640#a")).place_after(now, "b", 0), now);
        for behind in ["1767453739640#b", "1767453739640#c", "1767453739700#a"] {
            for attempt in [0, 5] {
                let place = order(Some(behind)).place_after(now, "b", attempt);
                assert!(*keys::sent_place(place, "b") > *behind, "{behind} {attempt}");
                assert!(place > now);
            }
        }
    }
}
