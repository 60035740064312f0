//! Rewinding a drainer: everything after a point is handled again, under a new epoch (and so
//! starts again), or under the same one (and only what had no start starts).

use std::time::Duration;

use ledgerline_event::{Invalid, Millis, Name, keys::moment};
use ledgerline_ledger::Found;
use ledgerline_store::{DrainState, RewindWrite, RewindWritten};
use serde::Serialize;
use tokio::time::Instant;

use crate::{DrainerState, Drains};
use ledgerline_outbox::ComponentError;

/// How often a rewind that another process drains is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A rewind as it will be, or was, done.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rewind {
    /// Which drainer.
    pub drainer_id: Name,
    /// The first place that is handled again.
    pub from: String,
    /// Everything up to here was finished before.
    pub until: String,
    /// Only what had no start is started.
    pub missing_only: bool,
    /// The epoch of what is handled again.
    pub epoch: u64,
    /// How many events lie between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<u64>,
    /// How many starts it has led to so far, once it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// Whether the drainer is back where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caught_up: Option<bool>,
    #[serde(skip)]
    cursor: String,
    #[serde(skip)]
    state: DrainState,
}

impl Rewind {
    /// Notes how far the drainer is; `true` if it is back where it was. What other processes start counts too: the
    /// drain state has the total of all of them.
    pub fn note(&mut self, state: &DrainerState) -> bool {
        // If `until` is a bare time, no event may bring the cursor there again: to have nothing left to pass
        // is as good.
        let caught_up = state.cursor >= self.until || !state.behind;
        self.started = Some(state.started_total.saturating_sub(self.state.started_total));
        self.caught_up = Some(caught_up);
        caught_up
    }
}

impl Drains {
    /// What rewinding `drainer` to a time or an event would do.
    pub async fn plan_rewind(
        &self,
        tenant: &Name,
        drainer: &str,
        to: &str,
        missing_only: bool,
        counted: bool,
    ) -> Result<Rewind, ComponentError> {
        let drainer = self.drainers.for_subscriptions("drainerId", drainer)?.id.clone();
        let before = self.states.get(tenant, &drainer).await?.ok_or_else(|| {
            ComponentError::Refused(format!(
                "`{drainer}` has not begun for this tenant: nothing subscribes yet"
            ))
        })?;
        let (from, cursor) = self.point(tenant, to).await?;
        if from > before.cursor {
            let at = ledgerline_event::keys::time_of(&before.cursor)
                .map_or_else(|| "the beginning".into(), Millis::to_rfc3339);
            let reason = format!("lies after the cursor, which is at {at}: there is nothing to go back over");
            return Err(Invalid::new("to", reason).into());
        }
        let epochs = match missing_only {
            true => before.epochs.clone(),
            false => before.epochs.rewind(&from).ok_or_else(|| {
                ComponentError::Refused("this drainer has been rewound too often; use missingOnly".into())
            })?,
        };
        let events = match counted {
            true => Some(self.timeline.count(tenant, &from, &before.cursor).await?),
            false => None,
        };
        let (until, epoch) = (before.cursor.clone(), epochs.of(&from));
        let state = DrainState { epochs, ..before };
        Ok(Rewind {
            drainer_id: drainer,
            from,
            until,
            missing_only,
            epoch,
            events,
            started: None,
            caught_up: None,
            cursor,
            state,
        })
    }

    /// Drains, or waits for the process that holds the lease, until a rewind is caught up with. Notes what it
    /// has led to.
    pub async fn follow_rewind(
        &self,
        tenant: &Name,
        rewind: &mut Rewind,
        deadline: Instant,
    ) -> Result<(), ComponentError> {
        loop {
            let drained = self.drain(tenant, &rewind.drainer_id, Some(deadline)).await?;
            let states = self.drainer_states(tenant).await?;
            let Some(state) = states.iter().find(|state| state.drainer_id == rewind.drainer_id) else {
                return Ok(());
            };
            if rewind.note(state) || state.halted || Instant::now() >= deadline {
                return Ok(());
            }
            if drained.skipped_due_to_lock {
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// The first place at or after `to`, and the cursor just before it.
    async fn point(&self, tenant: &Name, to: &str) -> Result<(String, String), ComponentError> {
        if let Ok(time) = Millis::parse("to", to) {
            if time > self.emitter.now() {
                return Err(Invalid::new("to", format!("{} lies in the future", time.to_rfc3339())).into());
            }
            return Ok((moment(time), moment(time)));
        }
        let sk = match self.timeline.find(tenant, to).await? {
            Found::At(sk) => sk,
            Found::NotSince(place) => {
                let since = ledgerline_event::keys::time_of(&place).map_or(place, Millis::to_rfc3339);
                let reason = format!("no event since {since} is called `{to}`: give its time instead");
                return Err(Invalid::new("to", reason).into());
            }
            Found::Nowhere => {
                if to.parse::<u64>().is_ok() {
                    Millis::parse("to", to)?;
                }
                let reason =
                    format!("`{to}` is neither a time (13 digits or RFC 3339) nor an event of this tenant");
                return Err(Invalid::new("to", reason).into());
            }
        };
        let before = self.timeline.before(tenant, &sk).await?.unwrap_or_default();
        Ok((sk, before))
    }

    /// Rewinds: changes cursor, epochs and fence in one write. A process that drains at the moment loses the lease.
    pub async fn rewind(&self, tenant: &Name, rewind: &Rewind) -> Result<(), ComponentError> {
        let planned = RewindWrite { planned: &rewind.state, cursor: &rewind.cursor };
        let (whose, stamp) = ((tenant, &rewind.drainer_id), self.marks.stamp());
        match self.states.rewind(whose, planned, &stamp, self.emitter.now()).await? {
            RewindWritten::Done => Ok(()),
            RewindWritten::Moved => Err(ComponentError::Refused(
                "the drainer moved while the rewind was prepared; try again".into(),
            )),
        }
    }

    /// Rewinds as planned by [`Drains::plan_rewind`] to the same `to`. A working drainer moves its cursor about once a page,
    /// and each move makes the plan stale: then this plans again, so often in all.
    pub async fn rewind_patiently(
        &self,
        tenant: &Name,
        plan: Rewind,
        to: &str,
        attempts: usize,
    ) -> Result<Rewind, ComponentError> {
        let mut plan = plan;
        for _ in 1..attempts {
            match self.rewind(tenant, &plan).await {
                Ok(()) => return Ok(plan),
                Err(ComponentError::Refused(_)) => {
                    // Counting the events takes the longest; their number still holds, since the drainer has only moved on.
                    let events = plan.events;
                    plan = self.plan_rewind(tenant, &plan.drainer_id, to, plan.missing_only, false).await?;
                    plan.events = events;
                }
                Err(error) => return Err(error),
            }
        }
        self.rewind(tenant, &plan).await?;
        Ok(plan)
    }
}
