//! What a pass writes into the drain state: how far it has come, what waits, and what becomes of the lease.

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_event::{Millis, Name};

use crate::drain_states::LEASE_IS_HELD;
use crate::{
    Conditional, DrainState, DrainStates, StoreError, Watermarks, conditionally, keys, number, text,
};

/// What a pass has achieved since the last write.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The last finished event.
    pub cursor: Option<String>,
    /// The last finished pointer of a late arrival.
    pub late_cursor: Option<String>,
    /// Events that the cursors have passed.
    pub processed: u64,
    /// The last of them.
    pub last_event_id: Option<Name>,
    /// Starts that were made.
    pub started: u64,
    /// The event that halts everything after it.
    pub halted: Option<Halted>,
    /// The oldest start that waits.
    pub blocked: Blocked,
    /// Places of events that the drain has halted at, and whose starts have no rows any more.
    pub no_longer_halted_at: Vec<String>,
    /// The error that ended the pass.
    pub trouble: Option<String>,
}

/// Whether starts wait.
#[derive(Clone, Debug, Default)]
pub enum Blocked {
    /// The open blocks were not read.
    #[default]
    Unknown,
    /// No block is open.
    Nothing,
    /// Some wait; this is the oldest.
    Oldest(Oldest),
}

/// The oldest start that waits.
#[derive(Clone, Debug)]
pub struct Oldest {
    /// Its event, when it is tried again, and why it failed.
    pub halted: Halted,
    /// The time of the event.
    pub event_at: Millis,
    /// Since when the block that has failed for the longest time fails.
    pub since: Millis,
}

/// An event whose start the drainer tries again later, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halted {
    /// The event.
    pub event_id: Name,
    /// When it is tried again.
    pub until: Millis,
    /// What went wrong.
    pub reason: String,
}

/// What becomes of the lease in the write of the progress.
#[derive(Clone, Copy, Debug)]
pub enum LeaseChange<'a> {
    /// It is renewed.
    Renew {
        /// When it expires.
        until: Millis,
    },
    /// It is renewed, and the next pass is announced.
    Announce {
        /// When it expires.
        until: Millis,
        /// Up to where the next pass reads.
        watermarks: &'a Watermarks,
    },
    /// It is released, unless the holder was woken again.
    Release {
        /// How often the holder was woken, as far as it knows.
        wake: u64,
    },
}

impl Progress {
    /// The event that people are shown as the one that the drainer is halted on: the one that halts everything, or the
    /// oldest whose start waits.
    pub fn shown(&self) -> Option<&Halted> {
        let blocked = match &self.blocked {
            Blocked::Oldest(oldest) => Some(&oldest.halted),
            Blocked::Unknown | Blocked::Nothing => None,
        };
        self.halted.as_ref().or(blocked)
    }
}

impl DrainStates {
    /// Writes what a pass has achieved, on condition of the lease.
    pub async fn write_progress(
        &self,
        (tenant, drainer): (&Name, &Name),
        fence: u64,
        progress: &Progress,
        change: LeaseChange<'_>,
        now: Millis,
    ) -> Result<Conditional<DrainState>, StoreError> {
        let mut set = vec![
            "lastDrainedAt = :now".to_owned(),
            "eventsProcessedTotal = if_not_exists(eventsProcessedTotal, :zero) + :processed".to_owned(),
            "startedTotal = if_not_exists(startedTotal, :zero) + :started".to_owned(),
        ];
        let mut remove: Vec<&str> = Vec::new();
        let mut update = self
            .table
            .update(&keys::drain(tenant, drainer))
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":now", number(now.get()))
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":processed", number(progress.processed))
            .expression_attribute_values(":started", number(progress.started))
            .expression_attribute_values(":fence", number(fence));
        let texts = [
            ("#cursor", ":cursor", progress.cursor.as_deref()),
            ("laneCursor", ":laneCursor", progress.late_cursor.as_deref()),
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
        if progress.cursor.is_some() || progress.late_cursor.is_some() {
            set.push("movedAt = :now".into());
        }
        match (progress.shown(), &progress.blocked) {
            (Some(halted), _) => {
                set.push("haltedOnEventId = :halted, nextAttemptAt = :next".into());
                update = update
                    .expression_attribute_values(":halted", text(&halted.event_id))
                    .expression_attribute_values(":next", number(halted.until.get()));
            }
            // The pass ended before it read the blocks: what was stored about them stays.
            (None, Blocked::Unknown) => {}
            (None, Blocked::Nothing | Blocked::Oldest(_)) => {
                remove.extend(["haltedOnEventId", "nextAttemptAt"]);
            }
        }
        match progress.halted {
            Some(_) => {
                set.push("halts = :halts".into());
                update = update.expression_attribute_values(":halts", AttributeValue::Bool(true));
            }
            None => remove.push("halts"),
        }
        match &progress.blocked {
            Blocked::Oldest(oldest) => {
                set.push("blockedSince = :since, blockedEventAt = :eventAt".into());
                update = update
                    .expression_attribute_values(":since", number(oldest.since.get()))
                    .expression_attribute_values(":eventAt", number(oldest.event_at.get()));
            }
            Blocked::Nothing => remove.extend(["blockedSince", "blockedEventAt"]),
            Blocked::Unknown => {}
        }
        match progress.trouble.as_ref().or(progress.shown().map(|halted| &halted.reason)) {
            Some(error) => {
                set.push("lastError = :error".into());
                update = update.expression_attribute_values(":error", text(error));
            }
            None => remove.push("lastError"),
        }
        let mut condition = LEASE_IS_HELD.to_owned();
        match change {
            LeaseChange::Release { wake } => {
                remove.extend(["#owner", "leaseUntil"]);
                condition.push_str(" AND (attribute_not_exists(wake) OR wake = :wake)");
                update = update.expression_attribute_values(":wake", number(wake));
            }
            LeaseChange::Renew { until } | LeaseChange::Announce { until, .. } => {
                set.push("leaseUntil = :until".into());
                update = update.expression_attribute_values(":until", number(until.get()));
            }
        }
        if let LeaseChange::Announce { watermarks, .. } = change {
            set.push("horizon = :horizon, laneHorizon = :lane".into());
            update = update
                .expression_attribute_values(":horizon", text(&watermarks.events))
                .expression_attribute_values(":lane", number(watermarks.late_arrivals.get()));
        }
        let mut expression = format!("SET {}", set.join(", "));
        if !remove.is_empty() {
            expression.push_str(" REMOVE ");
            expression.push_str(&remove.join(", "));
        }
        if !progress.no_longer_halted_at.is_empty() {
            expression.push_str(" DELETE stoodBefore :left");
            let left = AttributeValue::Ss(progress.no_longer_halted_at.clone());
            update = update.expression_attribute_values(":left", left);
        }
        conditionally(update.update_expression(expression).condition_expression(condition)).await
    }
}
