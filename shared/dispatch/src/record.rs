//! The record of one drainer and tenant: lease, fence, cursors, horizons, epochs, totals.
//!
//! Each time that the lease is acquired it gets a new fence, and every write of its holder is on condition of
//! that fence: a process that slept until another one acquired the lease changes nothing when it wakes.

use std::collections::BTreeSet;

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_event::{Millis, Name, keys::moment};
use ledgerline_ledger::{
    StoreError,
    control::{ControlTable, keys},
};
use serde::{Deserialize, Serialize};

use crate::{
    Epochs,
    blocks::Oldest,
    conditional::{Answer, conditionally, number, text},
};

/// How long a lease lasts without being renewed.
pub const LEASE_MS: u64 = 60_000;
/// How far behind the clock the horizon is kept, so that events that arrive in time are read in order.
pub const SETTLE_MS: u64 = 5_000;

/// Everything a drainer knows about one tenant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainRecord {
    /// The visit that holds the lease.
    pub owner: Option<String>,
    /// Until when.
    pub lease_until: Option<Millis>,
    /// How often the lease was acquired, or taken away.
    pub fence: u64,
    /// How often the holder of the lease was woken.
    pub wake: u64,
    /// Everything up to this place is finished.
    pub cursor: String,
    /// Where the drainer began: it ignores events before this place, however late they arrive.
    pub beginning: String,
    /// A pass may have read past any place up to this one.
    pub horizon: Option<String>,
    /// The cursor of the late lane: the last finished pointer.
    pub lane_cursor: String,
    /// A pass may have read past any pointer with a stamp up to this one.
    pub lane_horizon: Option<Millis>,
    /// The rewinds that still count.
    pub epochs: Epochs,
    /// How often it was rewound.
    pub rewinds: u64,
    /// Rises with every change of a subscription of this drainer.
    pub subscriptions: u64,
    /// Events that the cursors have passed.
    pub events_processed_total: u64,
    /// The last of them.
    pub last_event_id: Option<Name>,
    /// When a pass last ended.
    pub last_drained_at: Option<Millis>,
    /// When a cursor last moved.
    pub moved_at: Option<Millis>,
    /// The event before which the drain stopped.
    pub halted_on_event_id: Option<Name>,
    /// When it is tried again.
    pub next_attempt_at: Option<Millis>,
    /// Why it stopped.
    pub last_error: Option<String>,
    /// Whether nothing after that event is handled: otherwise only what belongs with it waits.
    pub halts: bool,
    /// Places of events that the drain stood before, and whose starts may still have rows that say so.
    pub stood_before: BTreeSet<String>,
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

/// The horizons that one pass reads up to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Horizons {
    pub(crate) main: String,
    pub(crate) lane: Millis,
}

impl Horizons {
    pub(crate) fn at(now: Millis) -> Self {
        Self { main: moment(now.minus(SETTLE_MS)), lane: now.minus(SETTLE_MS) }
    }

    /// Never below what was published before, whatever this clock says.
    fn not_below(self, record: &DrainRecord) -> Self {
        Self {
            main: record.horizon.clone().map_or(self.main.clone(), |published| published.max(self.main)),
            lane: record.lane_horizon.map_or(self.lane, |published| published.max(self.lane)),
        }
    }
}

/// A lease that is held, as far as we know.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) tenant: Name,
    pub(crate) drainer: Name,
    pub(crate) record: DrainRecord,
    pub(crate) horizons: Horizons,
}

/// What became of asking for the lease.
#[derive(Debug)]
pub(crate) enum Acquired {
    Held(Box<Lease>),
    /// Another process holds it; once woken, that process looks again before it releases the lease.
    Contended {
        fence: u64,
    },
    /// This drainer has nothing to do for this tenant.
    Nothing,
}

/// What a pass has achieved since the last write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) cursor: Option<String>,
    pub(crate) lane_cursor: Option<String>,
    pub(crate) processed: u64,
    pub(crate) last_event_id: Option<Name>,
    pub(crate) started: u64,
    pub(crate) halted: Option<Halted>,
    /// The oldest start that waits, once the open blocks are known.
    pub(crate) blocked: Option<Option<Oldest>>,
    /// Places of events that the drain stood before, and that have no more rows.
    pub(crate) left: Vec<String>,
    /// What a service did not do.
    pub(crate) trouble: Option<String>,
}

impl Progress {
    /// The event that people are shown as the one that the drain stands before: the one that halts
    /// everything, or the oldest whose start waits.
    pub(crate) fn shown(&self) -> Option<&Halted> {
        let blocked = || self.blocked.as_ref()?.as_ref().map(|oldest| &oldest.halted);
        self.halted.as_ref().or_else(blocked)
    }
}

/// Why a drain stands before an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halted {
    /// The event.
    pub event_id: Name,
    /// When it is tried again.
    pub until: Millis,
    /// What went wrong.
    pub reason: String,
}

/// What is done with the lease together with the progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Go on with this pass.
    Keep,
    /// Begin the next pass: publish a new horizon.
    Again,
    /// Release the lease, unless a wake-up has come.
    Release,
}

/// What became of a write on condition of the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Done,
    /// A wake-up has come: one more pass is due, and nothing of the progress is written yet.
    Woken {
        wake: u64,
    },
    /// This visit does not hold the lease any more.
    Lost,
}

/// Reads and changes drain records.
#[derive(Clone, Debug)]
pub(crate) struct DrainRecords {
    pub(crate) control: ControlTable,
}

impl DrainRecords {
    pub(crate) async fn get(&self, tenant: &Name, drainer: &Name) -> Result<Option<DrainRecord>, StoreError> {
        self.control.get(&keys::drain(tenant, drainer)).await
    }

    /// Makes the record of a drainer that begins at the beginning, unless there is one.
    pub(crate) async fn create(&self, tenant: &Name, drainer: &Name, now: Millis) -> Result<(), StoreError> {
        let update = self
            .control
            .update(&keys::drain(tenant, drainer))
            .update_expression("SET createdAt = if_not_exists(createdAt, :now)")
            .expression_attribute_values(":now", number(now.get()));
        conditionally::<DrainRecord>(update).await.map(|_| ())
    }

    /// Acquires the lease if it is free, and publishes the horizons in the same write.
    pub(crate) async fn acquire(
        &self,
        tenant: &Name,
        drainer: &Name,
        owner: &str,
        now: Millis,
    ) -> Result<Acquired, StoreError> {
        let mut horizons = Horizons::at(now);
        loop {
            let update = self
                .control
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
                .expression_attribute_values(":until", number(now.plus(LEASE_MS).get()))
                .expression_attribute_values(":now", number(now.get()))
                .expression_attribute_values(":zero", number(0))
                .expression_attribute_values(":one", number(1))
                .expression_attribute_values(":horizon", text(&horizons.main))
                .expression_attribute_values(":lane", number(horizons.lane.get()));
            let refused = match conditionally(update).await? {
                Answer::Done(record) => {
                    let (tenant, drainer) = (tenant.clone(), drainer.clone());
                    return Ok(Acquired::Held(Box::new(Lease { tenant, drainer, record, horizons })));
                }
                Answer::Refused(None) => return Ok(Acquired::Nothing),
                Answer::Refused(Some(record)) => record,
            };
            // The answer to our own request was lost, and it was sent again.
            if refused.owner.as_deref() == Some(owner) {
                let (tenant, drainer) = (tenant.clone(), drainer.clone());
                let horizons = horizons.not_below(&refused);
                let lease = Lease { tenant, drainer, record: refused, horizons };
                return Ok(Acquired::Held(Box::new(lease)));
            }
            if refused.owner.is_some() && refused.lease_until.is_some_and(|until| until > now) {
                return Ok(Acquired::Contended { fence: refused.fence });
            }
            // A clock ahead of ours has published more: read up to there.
            horizons = horizons.not_below(&refused);
        }
    }

    /// Wakes the holder of the lease; `false` if there is no holder any more.
    pub(crate) async fn wake(&self, tenant: &Name, drainer: &Name) -> Result<bool, StoreError> {
        let update = self
            .control
            .update(&keys::drain(tenant, drainer))
            .update_expression("SET wake = if_not_exists(wake, :zero) + :one")
            .condition_expression("attribute_exists(#owner)")
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":one", number(1));
        Ok(matches!(conditionally::<DrainRecord>(update).await?, Answer::Done(_)))
    }

    /// Takes the lease away from its holder, if there is one.
    pub(crate) async fn break_lease(&self, tenant: &Name, drainer: &Name) -> Result<(), StoreError> {
        let update = self
            .control
            .update(&keys::drain(tenant, drainer))
            .update_expression("SET fence = fence + :one REMOVE #owner, leaseUntil")
            .condition_expression("attribute_exists(#owner)")
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":one", number(1));
        conditionally::<DrainRecord>(update).await.map(|_| ())
    }

    /// Renews the lease; `false` if this visit does not hold it any more.
    pub(crate) async fn renew(&self, lease: &Lease, now: Millis) -> Result<bool, StoreError> {
        let update = self
            .control
            .update(&keys::drain(&lease.tenant, &lease.drainer))
            .update_expression("SET leaseUntil = :until")
            .condition_expression("fence = :fence AND attribute_exists(#owner)")
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":until", number(now.plus(LEASE_MS).get()))
            .expression_attribute_values(":fence", number(lease.record.fence));
        Ok(matches!(conditionally::<DrainRecord>(update).await?, Answer::Done(_)))
    }

    /// Notes that the drain is about to stand before an event; `false` if this visit does not hold the lease
    /// any more.
    pub(crate) async fn stand_before(
        &self,
        tenant: &Name,
        drainer: &Name,
        fence: u64,
        place: &str,
    ) -> Result<bool, StoreError> {
        let update = self
            .control
            .update(&keys::drain(tenant, drainer))
            .update_expression("ADD stoodBefore :place")
            .condition_expression("fence = :fence AND attribute_exists(#owner)")
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":fence", number(fence))
            .expression_attribute_values(":place", AttributeValue::Ss(vec![place.to_owned()]));
        Ok(matches!(conditionally::<DrainRecord>(update).await?, Answer::Done(_)))
    }

    /// Writes what a pass has achieved, if the lease is still ours.
    pub(crate) async fn write(
        &self,
        lease: &mut Lease,
        progress: &Progress,
        then: Then,
        now: Millis,
    ) -> Result<Written, StoreError> {
        let mut set = vec![
            "lastDrainedAt = :now".to_owned(),
            "eventsProcessedTotal = if_not_exists(eventsProcessedTotal, :zero) + :processed".to_owned(),
            "startedTotal = if_not_exists(startedTotal, :zero) + :started".to_owned(),
        ];
        let mut remove: Vec<&str> = Vec::new();
        let mut update = self
            .control
            .update(&keys::drain(&lease.tenant, &lease.drainer))
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":now", number(now.get()))
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":processed", number(progress.processed))
            .expression_attribute_values(":started", number(progress.started))
            .expression_attribute_values(":fence", number(lease.record.fence));
        let texts = [
            ("#cursor", ":cursor", progress.cursor.as_deref()),
            ("laneCursor", ":laneCursor", progress.lane_cursor.as_deref()),
            ("lastEventId", ":last", progress.last_event_id.as_deref()),
        ];
        for (attribute, placeholder, value) in texts {
            if let Some(value) = value {
                set.push(format!("{attribute} = {placeholder}"));
                if let Some(name) = attribute.strip_prefix('#') {
                    update = update.expression_attribute_names(attribute, name);
                }
                update = update.expression_attribute_values(placeholder, text(value));
            }
        }
        if progress.cursor.is_some() || progress.lane_cursor.is_some() {
            set.push("movedAt = :now".into());
        }
        match progress.shown() {
            Some(halted) => {
                set.push("haltedOnEventId = :halted, nextAttemptAt = :next".into());
                update = update
                    .expression_attribute_values(":halted", text(&halted.event_id))
                    .expression_attribute_values(":next", number(halted.until.get()));
            }
            // Trouble before the blocks were known leaves what is shown of them.
            None if progress.blocked.is_none() => {}
            None => remove.extend(["haltedOnEventId", "nextAttemptAt"]),
        }
        match progress.halted {
            Some(_) => {
                set.push("halts = :halts".into());
                update = update.expression_attribute_values(":halts", AttributeValue::Bool(true));
            }
            None => remove.push("halts"),
        }
        match &progress.blocked {
            Some(Some(oldest)) => {
                set.push("blockedSince = :since, blockedEventAt = :eventAt".into());
                update = update
                    .expression_attribute_values(":since", number(oldest.since.get()))
                    .expression_attribute_values(":eventAt", number(oldest.event_at.get()));
            }
            Some(None) => remove.extend(["blockedSince", "blockedEventAt"]),
            None => {}
        }
        match progress.trouble.as_ref().or(progress.shown().map(|halted| &halted.reason)) {
            Some(error) => {
                set.push("lastError = :error".into());
                update = update.expression_attribute_values(":error", text(error));
            }
            None => remove.push("lastError"),
        }
        let mut condition = "fence = :fence AND attribute_exists(#owner)".to_owned();
        let mut horizons = lease.horizons.clone();
        match then {
            Then::Release => {
                remove.extend(["#owner", "leaseUntil"]);
                condition.push_str(" AND (attribute_not_exists(wake) OR wake = :wake)");
                update = update.expression_attribute_values(":wake", number(lease.record.wake));
            }
            Then::Keep | Then::Again => {
                set.push("leaseUntil = :until".into());
                update = update.expression_attribute_values(":until", number(now.plus(LEASE_MS).get()));
            }
        }
        if then == Then::Again {
            horizons = Horizons::at(now).not_below(&lease.record);
            set.push("horizon = :horizon, laneHorizon = :lane".into());
            update = update
                .expression_attribute_values(":horizon", text(&horizons.main))
                .expression_attribute_values(":lane", number(horizons.lane.get()));
        }
        let mut expression = format!("SET {}", set.join(", "));
        if !remove.is_empty() {
            expression.push_str(" REMOVE ");
            expression.push_str(&remove.join(", "));
        }
        if !progress.left.is_empty() {
            expression.push_str(" DELETE stoodBefore :left");
            update = update.expression_attribute_values(":left", AttributeValue::Ss(progress.left.clone()));
        }
        let update = update.update_expression(expression).condition_expression(condition);
        match conditionally::<DrainRecord>(update).await? {
            Answer::Done(record) => {
                // The release must still see a wake-up that came during the pass.
                let wake = if then == Then::Again { record.wake } else { lease.record.wake };
                lease.record = DrainRecord { wake, ..record };
                lease.horizons = horizons;
                Ok(Written::Done)
            }
            Answer::Refused(Some(record)) if record.fence == lease.record.fence && record.owner.is_some() => {
                Ok(Written::Woken { wake: record.wake })
            }
            Answer::Refused(_) => Ok(Written::Lost),
        }
    }
}
