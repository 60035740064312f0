//! How far a drainer is behind, and whether it has stalled.
//!
//! Lag is the age of the oldest settled event that the cursor has not passed or whose start waits in a block. A drainer
//! has stalled if it is over an hour behind and has not moved for some minutes, or if a block has failed for over an hour.
//! One that is behind because it was rewound, or is new to a long ledger, moves and has not stalled.

use ledgerline_event::{Millis, Name, keys::moment};
use ledgerline_store::{
    DrainState, StoreError,
    keys::{self, ControlKey},
};
use serde::Serialize;

use crate::{Drains, SETTLE_MS};
use ledgerline_outbox::{Claimed, ComponentError, Effects, PendingEffects, alert_text};

/// A drainer that is further behind than this has stalled…
pub const STALL_MS: u64 = 3_600_000;
/// …unless its cursor has moved within this time.
const MOVING_MS: u64 = 5 * 60_000;

/// Where a drainer stands with a tenant.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct DrainerState {
    pub drainer_id: Name,
    /// Everything up to here is finished.
    pub cursor: String,
    pub last_event_id: Option<Name>,
    pub last_drained_at: Option<Millis>,
    pub events_processed_total: u64,
    /// Starts that its passes have made.
    pub started_total: u64,
    pub lag_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub halted_on_event_id: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    pub epoch: u64,
    /// Nothing after `haltedOnEventId` is handled: its subscription says halt.
    pub halted: bool,
    /// Blocks of starts that wait; everything else goes on.
    pub blocks: u64,
    /// Whether there is something that the cursors have not passed.
    #[serde(skip)]
    pub behind: bool,
    /// Over an hour behind and not moving.
    pub stalled: bool,
}

impl Drains {
    /// What a drainer has stored about a tenant.
    pub async fn drain_state(&self, tenant: &Name, drainer: &Name) -> Result<Option<DrainState>, StoreError> {
        self.states.get(tenant, drainer).await
    }

    /// All drainers that have begun for a tenant.
    pub async fn drainer_states(&self, tenant: &Name) -> Result<Vec<DrainerState>, ComponentError> {
        let stored = self.states.of_tenant(tenant).await?;
        let mut states = Vec::with_capacity(stored.len());
        for (drainer, state) in stored {
            let drainer = Name::new("drainerId", drainer)?;
            states.push(self.state(tenant, drainer, state).await?);
        }
        Ok(states)
    }

    async fn state(
        &self,
        tenant: &Name,
        drainer_id: Name,
        stored: DrainState,
    ) -> Result<DrainerState, ComponentError> {
        let now = self.emitter.now();
        let (next, _) = self.timeline.after(tenant, &stored.cursor, 1).await?;
        let settled = moment(now.minus(SETTLE_MS));
        let lag_ms = next
            .first()
            .filter(|place| place.sk <= settled)
            .map_or(0, |place| now.get().saturating_sub(place.event.timestamp.get()));
        let late = self.oldest_pointer(tenant, &stored.late_cursor).await?;
        let late_lag_ms = late
            .filter(|stamp| *stamp <= now.minus(SETTLE_MS))
            .map_or(0, |stamp| now.get().saturating_sub(stamp.get()));
        let age = |time: Option<Millis>| time.map_or(0, |time| now.get().saturating_sub(time.get()));
        let blocks = stored.blocks;
        let (blocked_since, blocked_event_at) = match blocks {
            0 => (None, None),
            _ => (stored.blocked_since, stored.blocked_event_at),
        };
        let unpassed_ms = lag_ms.max(late_lag_ms);
        let lag_ms = unpassed_ms.max(age(blocked_event_at));
        let moved_at = stored.moved_at.or(stored.created_at);
        let moving = moved_at.is_some_and(|moved| now.get().saturating_sub(moved.get()) < MOVING_MS);
        // A drainer with a period may be behind by that much.
        let every =
            self.drainers.iter().find(|drainer| drainer.id == drainer_id).and_then(|drainer| drainer.every);
        let allowed =
            STALL_MS + every.map_or(0, |every| u64::try_from(every.as_millis()).unwrap_or(u64::MAX / 2));
        Ok(DrainerState {
            drainer_id,
            lag_ms,
            stalled: (unpassed_ms > allowed && !moving) || age(blocked_since) > allowed,
            behind: unpassed_ms > 0,
            halted: stored.halts,
            blocks,
            started_total: stored.started_total,
            epoch: stored.epochs.latest(),
            cursor: stored.cursor,
            last_event_id: stored.last_event_id,
            last_drained_at: stored.last_drained_at,
            events_processed_total: stored.events_processed_total,
            halted_on_event_id: stored.halted_on_event_id,
            next_attempt_at: stored.next_attempt_at,
            last_error: stored.last_error,
        })
    }

    /// If a drainer has stalled, claims an alert about it, once for the place where it is. Measures how far it is behind.
    pub(crate) async fn alert_stall(
        &self,
        tenant: &Name,
        drainer: &Name,
    ) -> Result<Option<ControlKey>, ComponentError> {
        let Some(stored) = self.states.get(tenant, drainer).await? else { return Ok(None) };
        let state = self.state(tenant, drainer.clone(), stored).await?;
        self.metrics.gauge(self.emitter.now(), "LagMs", state.lag_ms);
        if !state.stalled {
            return Ok(None);
        }
        let text = format!(
            ":rotating_light: *A drainer stands still*\n*Drainer* {}\n*Tenant* {tenant}\n*Behind by* {} minutes\n\
             *Reason* {}\n`ledgerline {} --tenant '{tenant}' drainers`",
            state.drainer_id,
            state.lag_ms / 60_000,
            state.last_error.as_deref().unwrap_or("unknown; see the dispatcher's log"),
            self.ledger_flag,
        );
        // While starts wait in blocks, the cursor goes on moving: the place of the stall is the event that waits.
        let place = match &state.halted_on_event_id {
            Some(event) if state.blocks > 0 => event.as_str(),
            _ => &state.cursor,
        };
        let key = keys::stall_claim(tenant, &state.drainer_id, place);
        let effects = Effects { alert: Some(alert_text(text)), ..Effects::default() };
        let pending = PendingEffects { key: key.clone(), effects, started: None, ttl: None };
        if let Claimed::New = self.outbox.claim(&pending).await? {
            self.metrics.count(self.emitter.now(), &[("Stalled", 1)]);
            return Ok(Some(key));
        }
        Ok(None)
    }
}
