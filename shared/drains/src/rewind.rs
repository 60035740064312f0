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

/// The interval at which a rewind that another process drains is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// What a rewind starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewindScope {
    /// Everything that matches, in a new epoch.
    Everything,
    /// Only what has no start.
    MissingOnly,
}

impl RewindScope {
    /// The scope of a request that says `missingOnly`, or does not.
    pub const fn of(missing_only: bool) -> Self {
        if missing_only { Self::MissingOnly } else { Self::Everything }
    }
}

/// Whether the plan of a rewind counts the events that it goes back over, which takes the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountEvents {
    /// It counts them.
    Yes,
    /// It leaves the count out.
    No,
}

/// A rewind as it is planned, or as it was done.
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
    /// How many events lie between, if they were counted.
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
    /// Updates the counts of the rewind from the drainer's state. Returns `true` if the drainer is back where it was. Starts of
    /// other processes count too: the drain state has the total of all of them.
    pub fn update(&mut self, state: &DrainerState) -> bool {
        // If `until` is a bare time, maybe no event brings the cursor there again. Then it is enough that nothing is left to
        // pass.
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
        scope: RewindScope,
        count: CountEvents,
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
        let epochs = match scope {
            RewindScope::MissingOnly => before.epochs.clone(),
            RewindScope::Everything => before.epochs.rewind(&from).ok_or_else(|| {
                ComponentError::Refused("this drainer has been rewound too often; use missingOnly".into())
            })?,
        };
        let events = match count {
            CountEvents::Yes => Some(self.timeline.count(tenant, &from, &before.cursor).await?),
            CountEvents::No => None,
        };
        let (until, epoch) = (before.cursor.clone(), epochs.of(&from));
        let state = DrainState { epochs, ..before };
        Ok(Rewind {
            drainer_id: drainer,
            from,
            until,
            missing_only: scope == RewindScope::MissingOnly,
            epoch,
            events,
            started: None,
            caught_up: None,
            cursor,
            state,
        })
    }

    /// Drains, or waits for the process that holds the lease, until the drainer is back where it was before the rewind, and
    /// updates the counts of `rewind`.
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
            if rewind.update(state) || state.halted || Instant::now() >= deadline {
                return Ok(());
            }
            if drained.skipped_due_to_lock {
                tokio::time::sleep(CHECK_INTERVAL).await;
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
            Found::NotReached(place) => {
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
        let (drain_key, stamp) = ((tenant, &rewind.drainer_id), self.marks.stamp());
        match self.states.rewind(drain_key, planned, &stamp, self.emitter.now()).await? {
            RewindWritten::Done => Ok(()),
            RewindWritten::Moved => Err(ComponentError::Refused(
                "the drainer moved while the rewind was prepared; try again".into(),
            )),
        }
    }

    /// Rewinds as planned by [`Drains::plan_rewind`] to the same `to`. A working drainer moves its cursor about once a page,
    /// and each move makes the plan stale: then this plans again, with `attempts` in all.
    pub async fn rewind_with_retries(
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
                    let scope = RewindScope::of(plan.missing_only);
                    plan = self.plan_rewind(tenant, &plan.drainer_id, to, scope, CountEvents::No).await?;
                    plan.events = events;
                }
                Err(error) => return Err(error),
            }
        }
        self.rewind(tenant, &plan).await?;
        Ok(plan)
    }
}
