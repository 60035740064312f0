//! The state of one drainer for one tenant: lease, fence, cursors, watermarks, epochs, totals.
//!
//! Each time that the lease is acquired it gets a new fence, and every write of its holder is on condition of
//! that fence: a process that slept until another one acquired the lease changes nothing when it wakes.

use std::collections::BTreeSet;

use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem, Update, builders::UpdateBuilder};
use ledgerline_event::{Millis, Name};
use serde::{Deserialize, Serialize};

use crate::{
    AnnouncedWatermarks, Conditional, ControlTable, Epochs, Fault, MarkStamp, RequestRetry, StoreError,
    Watermarks, build_error, conditionally, dirty_marks, keys, number, read, text,
};

/// The condition of everything that a holder of the lease writes.
pub(crate) const LEASE_IS_HELD: &str = "fence = :fence AND attribute_exists(#owner)";

/// Everything a drainer knows about one tenant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainState {
    /// The visit that holds the lease.
    pub owner: Option<String>,
    /// When the lease expires.
    pub lease_until: Option<Millis>,
    /// How often the lease was acquired or broken.
    pub fence: u64,
    /// How often the holder of the lease was woken.
    pub wake: u64,
    /// Everything up to this place is finished.
    pub cursor: String,
    /// Where the drainer began: it ignores events before this place, however late they arrive.
    pub beginning: String,
    /// The places up to which a pass may have read.
    #[serde(flatten)]
    pub watermarks: AnnouncedWatermarks,
    /// The cursor of the late arrivals: the last finished pointer.
    #[serde(rename = "laneCursor")]
    pub late_cursor: String,
    /// The rewinds that still count.
    pub epochs: Epochs,
    /// How often it was rewound.
    pub rewinds: u64,
    /// Rises with every change of a subscription of this drainer.
    #[serde(rename = "subscriptions")]
    pub subscriptions_version: u64,
    /// Events that the cursors have passed.
    pub events_processed_total: u64,
    /// The last of them.
    pub last_event_id: Option<Name>,
    /// When a pass last ended.
    pub last_drained_at: Option<Millis>,
    /// When a cursor last moved.
    pub moved_at: Option<Millis>,
    /// The event before which the drain halted, or the oldest event whose start waits in a block.
    pub halted_on_event_id: Option<Name>,
    /// When the drainer tries it again.
    pub next_attempt_at: Option<Millis>,
    /// Why it stopped.
    pub last_error: Option<String>,
    /// Whether the drain halted before that event and handles nothing after it. Otherwise only its block waits.
    pub halts: bool,
    /// Places of the events that the drain has halted at, and whose starts may still have rows among the parked starts.
    #[serde(rename = "stoodBefore")]
    pub halted_at: BTreeSet<String>,
    /// How many blocks are open.
    pub blocks: u64,
    /// When the block that has failed for the longest time began to fail.
    pub blocked_since: Option<Millis>,
    /// The time of the oldest event whose start waits.
    pub blocked_event_at: Option<Millis>,
    /// Starts that passes have made.
    pub started_total: u64,
    /// When the record was made.
    pub created_at: Option<Millis>,
}

/// What became of a request for the lease.
#[derive(Debug)]
pub enum LeaseRequest {
    /// The lease is acquired and the watermarks are announced: the state as it is now.
    Acquired(Box<DrainState>),
    /// Another visit holds the lease, or has announced higher watermarks: the state as it is.
    Refused(Box<DrainState>),
    /// This drainer has no state for this tenant.
    Missing,
}

/// What became of a write on condition of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseWrite {
    /// It is written.
    Done,
    /// The writer does not hold the lease any more.
    Lost,
}

/// What became of waking the holder of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderWoken {
    /// There is a holder, and it looks again before it releases the lease.
    Woken,
    /// No visit holds the lease any more.
    NoHolder,
}

/// A rewind, planned from a state that was read.
#[derive(Clone, Copy, Debug)]
pub struct RewindWrite<'a> {
    /// The state that the plan was made from, but with the epochs that hold after the rewind.
    pub planned: &'a DrainState,
    /// The cursor after the rewind.
    pub cursor: &'a str,
}

/// What became of a rewind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewindWritten {
    /// It is written.
    Done,
    /// The drainer has moved since the plan was made.
    Moved,
}

/// Reads and changes drain states.
#[derive(Clone, Debug)]
pub struct DrainStates {
    pub(crate) table: ControlTable,
}

impl DrainStates {
    /// The drain states of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// The state of one drainer.
    pub async fn get(&self, tenant: &Name, drainer: &Name) -> Result<Option<DrainState>, StoreError> {
        self.table.get(&keys::drain(tenant, drainer)).await
    }

    /// The states of all drainers that have begun for a tenant, each with its drainer's name.
    pub async fn of_tenant(&self, tenant: &Name) -> Result<Vec<(String, DrainState)>, StoreError> {
        let answer = self.table.partition(&keys::drains(tenant)).send().await;
        let rows = answer.map_err(|error| StoreError::new("Query", error))?.items.unwrap_or_default();
        let mut states = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(drainer) = row.get("SK").and_then(|sk| sk.as_s().ok()).cloned() else { continue };
            states.push((drainer, read(row)?));
        }
        Ok(states)
    }

    /// Makes the state of a drainer that begins with the tenant's first event.
    pub async fn create(&self, tenant: &Name, drainer: &Name, now: Millis) -> Result<(), StoreError> {
        let update = self
            .table
            .update(&keys::drain(tenant, drainer))
            .update_expression("SET createdAt = if_not_exists(createdAt, :now)")
            .expression_attribute_values(":now", number(now.get()));
        conditionally::<DrainState>(update).await.map(|_| ())
    }

    /// Acquires the lease until `until` if it is free at `now`, and announces the watermarks in the same write.
    pub async fn acquire(
        &self,
        (tenant, drainer): (&Name, &Name),
        owner: &str,
        watermarks: &Watermarks,
        now: Millis,
        until: Millis,
    ) -> Result<LeaseRequest, StoreError> {
        let update = self
            .table
            .update(&keys::drain(tenant, drainer))
            .update_expression(
                "SET #owner = :owner, leaseUntil = :until, fence = if_not_exists(fence, :zero) + :one, \
                 horizon = :horizon, laneHorizon = :lane",
            )
            .condition_expression(
                "attribute_exists(PK) AND (attribute_not_exists(#owner) OR leaseUntil <= :now) \
                 AND (attribute_not_exists(horizon) OR horizon <= :horizon) \
                 AND (attribute_not_exists(laneHorizon) OR laneHorizon <= :lane)",
            )
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":owner", text(owner))
            .expression_attribute_values(":until", number(until.get()))
            .expression_attribute_values(":now", number(now.get()))
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":horizon", text(&watermarks.events))
            .expression_attribute_values(":lane", number(watermarks.late_arrivals.get()));
        Ok(match conditionally(update).await? {
            Conditional::Done(state) => LeaseRequest::Acquired(Box::new(state)),
            Conditional::Refused(Some(state)) => LeaseRequest::Refused(Box::new(state)),
            Conditional::Refused(None) => LeaseRequest::Missing,
        })
    }

    /// Wakes the holder of the lease, if there is one.
    pub async fn wake_holder(&self, tenant: &Name, drainer: &Name) -> Result<HolderWoken, StoreError> {
        let update = self
            .table
            .update(&keys::drain(tenant, drainer))
            .update_expression("SET wake = if_not_exists(wake, :zero) + :one")
            .condition_expression("attribute_exists(#owner)")
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":one", number(1));
        Ok(match conditionally::<DrainState>(update).await? {
            Conditional::Done(_) => HolderWoken::Woken,
            Conditional::Refused(_) => HolderWoken::NoHolder,
        })
    }

    /// Breaks the lease of its holder, if there is one.
    pub async fn break_lease(&self, tenant: &Name, drainer: &Name) -> Result<(), StoreError> {
        let update = self
            .table
            .update(&keys::drain(tenant, drainer))
            .update_expression("SET fence = fence + :one REMOVE #owner, leaseUntil")
            .condition_expression("attribute_exists(#owner)")
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":one", number(1));
        conditionally::<DrainState>(update).await.map(|_| ())
    }

    /// Renews the lease until `until`.
    pub async fn renew(
        &self,
        (tenant, drainer): (&Name, &Name),
        fence: u64,
        until: Millis,
    ) -> Result<LeaseWrite, StoreError> {
        let update = self
            .table
            .update(&keys::drain(tenant, drainer))
            .update_expression("SET leaseUntil = :until")
            .condition_expression(LEASE_IS_HELD)
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":until", number(until.get()))
            .expression_attribute_values(":fence", number(fence));
        Ok(conditionally::<DrainState>(update).await?.into())
    }

    /// Records that the drain is about to halt at the event at `place`.
    pub async fn record_halt(
        &self,
        (tenant, drainer): (&Name, &Name),
        fence: u64,
        place: &str,
    ) -> Result<LeaseWrite, StoreError> {
        let update = self
            .table
            .update(&keys::drain(tenant, drainer))
            .update_expression("ADD stoodBefore :place")
            .condition_expression(LEASE_IS_HELD)
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":fence", number(fence))
            .expression_attribute_values(":place", AttributeValue::Ss(vec![place.to_owned()]));
        Ok(conditionally::<DrainState>(update).await?.into())
    }

    /// Rewinds: changes cursor, epochs and fence in one write, and marks the drainer. A process that drains at the moment
    /// loses the lease.
    pub async fn rewind(
        &self,
        (tenant, drainer): (&Name, &Name),
        rewind: RewindWrite<'_>,
        stamp: &MarkStamp,
        now: Millis,
    ) -> Result<RewindWritten, StoreError> {
        let RewindWrite { planned, cursor } = rewind;
        let epoch = |rewound: &crate::Rewound| {
            let fields =
                [("from".to_owned(), text(&rewound.from)), ("epoch".to_owned(), number(rewound.epoch))];
            AttributeValue::M(fields.into())
        };
        let epochs = AttributeValue::L(planned.epochs.iter().map(epoch).collect());
        let update = self
            .table
            .update_for_transaction(&keys::drain(tenant, drainer))
            .update_expression(
                "SET #cursor = :cursor, beginning = :beginning, epochs = :epochs, fence = :next, movedAt = :now, rewinds = :rewinds \
                 REMOVE #owner, leaseUntil, haltedOnEventId, halts, nextAttemptAt, lastError",
            )
            // Neither the fence nor the cursor may have moved since the plan was made.
            .condition_expression("fence = :fence AND #cursor = :until")
            .expression_attribute_names("#cursor", "cursor")
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":cursor", text(cursor))
            .expression_attribute_values(":beginning", text(cursor.min(&planned.beginning)))
            .expression_attribute_values(":until", text(&planned.cursor))
            .expression_attribute_values(":epochs", epochs)
            .expression_attribute_values(":fence", number(planned.fence))
            .expression_attribute_values(":next", number(planned.fence + 1))
            .expression_attribute_values(":rewinds", number(planned.rewinds + 1))
            .expression_attribute_values(":now", number(now.get()));
        let mark =
            dirty_marks::mark_update_for_rewind(&self.table, (tenant, drainer), planned.fence + 1, stamp);
        match transact(&self.table, [update_item(update)?, update_item(mark)?]).await {
            Ok(()) => Ok(RewindWritten::Done),
            Err(error) if matches!(error.fault, Fault::ConditionFailed | Fault::Conflict) => {
                Ok(RewindWritten::Moved)
            }
            Err(error) => Err(error),
        }
    }
}

/// The update that counts a change of a subscription. If the drainer is new to the tenant, it begins at `begin`.
pub(crate) fn count_subscription_change(
    table: &ControlTable,
    (tenant, drainer): (&Name, &Name),
    begin: &str,
    now: Millis,
) -> UpdateBuilder {
    table
        .update_for_transaction(&keys::drain(tenant, drainer))
        .update_expression(
            "SET subscriptions = if_not_exists(subscriptions, :zero) + :one, \
             #cursor = if_not_exists(#cursor, :begin), beginning = if_not_exists(beginning, :begin), fence = if_not_exists(fence, :zero), createdAt = if_not_exists(createdAt, :now)",
        )
        .expression_attribute_names("#cursor", "cursor")
        .expression_attribute_values(":zero", number(0))
        .expression_attribute_values(":one", number(1))
        .expression_attribute_values(":begin", text(begin))
        .expression_attribute_values(":now", number(now.get()))
}

/// An update as a part of a transaction.
pub(crate) fn update_item(update: UpdateBuilder) -> Result<TransactWriteItem, StoreError> {
    let update: Update = update.build().map_err(build_error)?;
    Ok(TransactWriteItem::builder().update(update).build())
}

/// Writes all or nothing. Retries while other transactions are in the way or the table throttles.
pub(crate) async fn transact<const N: usize>(
    table: &ControlTable,
    writes: [TransactWriteItem; N],
) -> Result<(), StoreError> {
    let transaction = table.transaction().set_transact_items(Some(writes.into()));
    let mut retries = RequestRetry::default();
    loop {
        let sent = transaction.clone().send().await;
        let Err(error) = sent.map_err(|error| StoreError::new("TransactWriteItems", error)) else {
            return Ok(());
        };
        // A drain writes the same record all the time, so conflicts pass. A failed condition does not.
        retries.wait_after(error).await?;
    }
}

impl From<Conditional<DrainState>> for LeaseWrite {
    fn from(answer: Conditional<DrainState>) -> Self {
        match answer {
            Conditional::Done(_) => Self::Done,
            Conditional::Refused(_) => Self::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_row_reads_and_writes_back_with_its_attributes() {
        let mut row = crate::key_item(&keys::drain("t", "d"));
        row.extend([
            ("horizon".to_owned(), text("TIMESTAMP#5")),
            ("laneHorizon".to_owned(), number(1_767_453_739_000)),
            ("laneCursor".to_owned(), text("4#x")),
            ("fence".to_owned(), number(7)),
            ("halts".to_owned(), AttributeValue::Bool(true)),
            ("stoodBefore".to_owned(), AttributeValue::Ss(vec!["a".into()])),
        ]);
        let state: DrainState = read(row.clone()).unwrap();
        assert_eq!(state.watermarks.events.as_deref(), Some("TIMESTAMP#5"));
        assert_eq!(state.watermarks.late_arrivals.map(Millis::get), Some(1_767_453_739_000));
        assert_eq!((state.late_cursor.as_str(), state.fence, state.halts), ("4#x", 7, true));
        assert_eq!(read::<AnnouncedWatermarks>(row).unwrap(), state.watermarks);
        let written = crate::item(&keys::drain("t", "d"), &state).unwrap();
        assert_eq!(written["horizon"], text("TIMESTAMP#5"));
        assert_eq!(written["laneHorizon"], number(1_767_453_739_000));
        assert_eq!(written["laneCursor"], text("4#x"));
        let new: DrainState = read(crate::key_item(&keys::drain("t", "d"))).unwrap();
        assert_eq!(new.watermarks, AnnouncedWatermarks::default());
    }
}
