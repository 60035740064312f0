//! What brings a drainer to a tenant: wake-ups, marks, and the rounds that visit every tenant.
//!
//! A sweep has a deadline. Until then it resumes claims and, at the same time, visits tenants: marked ones and those of rounds in
//! turn. It sends alerts last, with a deadline of their own. The next sweep begins with what this one did not reach.

use std::{collections::BTreeSet, time::Duration};

use futures::future::join;
use ledgerline_event::{Millis, Name};
use ledgerline_store::{StoreError, keys::ControlKey};
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout_at},
};

use crate::{
    Sweep,
    dirty_marks::Visit,
    visits::{SweepStage, Tour},
};
use ledgerline_outbox::{ComponentError, SweepProgress, Sweeper, rotate_after};

/// How long a sweep takes, unless its caller says so: a little less than the time between two.
const BUDGET: Duration = Duration::from_secs(100);

/// A sweep reserves this part of its time to check drainers for stalls.
const STALL_CHECKS_BUDGET: Duration = Duration::from_secs(10);

/// How long the check of one drainer and tenant may take.
const STALL_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// A caller that runs no sweeps visits a tenant that is left to them again after this long.
const LEFT_TO_SWEEPS_MS: u64 = 60_000;

/// What a sweep did.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Swept {
    pub visited: usize,
    pub claims_repeated: usize,
    pub trouble: usize,
    /// Tenants to visit again…
    pub again: BTreeSet<Name>,
    /// …and the soonest time of it.
    pub again_at: Option<Millis>,
    /// Tenants that are not finished and have no mark: only the caller can come back to them.
    pub unmarked: BTreeSet<Name>,
}

impl Sweep {
    /// Visits tenants that have new events. A visit that fails leaves a mark and does not affect the others.
    pub async fn wake(
        &self,
        tenants: BTreeSet<Name>,
        deadline: Option<Instant>,
    ) -> Result<Swept, ComponentError> {
        let visits = tenants.into_iter().flat_map(|tenant| {
            self.drainers.prompt().map(move |drainer| (tenant.clone(), drainer.id.clone()))
        });
        let (left, visits) = visits.partition(|visit| self.slow_visits.is_left_to_sweeps(visit));
        let left: BTreeSet<Visit> = left;
        let visits: BTreeSet<Visit> = visits;
        let again: BTreeSet<Name> = left.iter().map(|(tenant, _)| tenant.clone()).collect();
        let marking = Box::pin(self.mark_unvisited(left.into_iter().collect()));
        let (mut swept, mut unmarked) = join(Box::pin(self.visit_or_mark(visits, deadline)), marking).await;
        for tenant in again {
            swept.again(tenant, Some(self.emitter.now().plus(LEFT_TO_SWEEPS_MS)));
        }
        swept.unmarked.append(&mut unmarked);
        Ok(swept)
    }

    /// Resumes overdue claims, visits every tenant that has a mark or whose round is due, and sends alerts.
    pub async fn sweep(&self, deadline: Option<Instant>) -> Result<Swept, ComponentError> {
        let deadline = deadline.unwrap_or_else(|| Instant::now() + BUDGET);
        let mut alerts = Vec::new();
        let swept = Box::pin(self.sweep_until(deadline, &mut alerts)).await;
        if swept.as_ref().is_ok_and(|swept| swept.trouble == 0 || swept.visited > 0) {
            Sweeper::Dispatcher.note_end(&self.outbox).await;
        }
        Box::pin(self.outbox.send_due_alerts(alerts)).await;
        swept
    }

    async fn sweep_until(
        &self,
        deadline: Instant,
        alerts: &mut Vec<ControlKey>,
    ) -> Result<Swept, ComponentError> {
        // At the same time: a claim whose service does not answer keeps no tenant waiting.
        let claims = Box::pin(self.outbox.resume_overdue(deadline));
        let (claims, swept) = join(claims, Box::pin(self.visit_until(deadline, alerts))).await;
        let mut swept = swept?;
        swept.claims_repeated = claims?;
        Ok(swept)
    }

    /// Visits every tenant that has a mark or whose round is due.
    async fn visit_until(
        &self,
        deadline: Instant,
        alerts: &mut Vec<ControlKey>,
    ) -> Result<Swept, ComponentError> {
        let mut swept = Swept::default();
        let mut tour = self.tour(&mut swept).await?;
        // A tenant that is not visited keeps its mark, or its round has not passed it.
        let left = deadline.saturating_duration_since(Instant::now());
        let visits_end = deadline - (left / 4).min(STALL_CHECKS_BUDGET);
        self.visit_all(&mut tour, Some(visits_end), &mut swept, alerts).await;
        self.store_progress(&mut tour, SweepStage::Ended).await;
        let mut marked: Vec<&Visit> = tour.marked.keys().collect();
        fastrand::shuffle(&mut marked);
        for (tenant, drainer) in marked {
            if Instant::now() >= deadline {
                break;
            }
            let given_up_at = deadline.min(Instant::now() + STALL_CHECK_TIMEOUT);
            match timeout_at(given_up_at, self.drains.alert_stall(tenant, drainer)).await {
                Ok(Ok(alert)) => alerts.extend(alert),
                Ok(Err(error)) => {
                    tracing::error!(%tenant, %drainer, %error, "could not check the drainer for a stall")
                }
                Err(_) => tracing::error!(%tenant, %drainer, "timed out checking the drainer for a stall"),
            }
        }
        Ok(swept)
    }

    /// What a sweep visits: the tenants with a mark from where the last sweep stopped, and the rest of each round.
    async fn tour(&self, swept: &mut Swept) -> Result<Tour, ComponentError> {
        let (marked, unread) = self.marks.marked().await;
        swept.trouble += unread;
        // A drainer with a schedule of its own waits for its round.
        let is_prompt = |drainer: &Name| self.drainers.prompt().any(|prompt| prompt.id == *drainer);
        let visits: Vec<Visit> = marked.keys().filter(|(_, drainer)| is_prompt(drainer)).cloned().collect();
        let cursor = match visits.is_empty() {
            true => None,
            false => self.marks.records.sweep_cursor().await?,
        };
        let cursor_is_stored = cursor.is_some();
        let after = match cursor {
            Some(cursor) => Some(cursor),
            None if visits.is_empty() => None,
            None => Some(visits[fastrand::usize(..visits.len())].0.clone()),
        };
        let visits = rotate_after(visits, after.as_deref(), |(tenant, _)| tenant);
        let mut sequences = vec![SweepProgress::new(visits)];
        let mut rounds = Vec::new();
        // Read when the first round is due.
        let tenants = OnceCell::new();
        for drainer in self.drainers.iter() {
            match self.take_round(drainer, &tenants).await {
                Ok(None) => {}
                Ok(Some((round, progress))) => {
                    rounds.push(round);
                    sequences.push(progress);
                }
                Err(error) => {
                    tracing::error!(drainer = %drainer.id, %error, "could not start the round; the next sweep does");
                    swept.trouble += 1;
                }
            }
        }
        Ok(Tour { marked, sequences, rounds, stores_cursor: true, cursor_is_stored, ..Tour::default() })
    }

    pub(crate) async fn tenants(&self) -> Result<Vec<Name>, StoreError> {
        self.tenants.all().await
    }

    /// Breaks every lease. Call only when no other process is running.
    pub async fn break_leases(&self) -> Result<(), ComponentError> {
        for tenant in self.tenants().await? {
            for drainer in self.drainers.iter() {
                self.drains.states.break_lease(&tenant, &drainer.id).await?;
            }
        }
        Ok(())
    }

    /// Visits every tenant once, for every drainer.
    pub async fn visit_all_tenants(&self, deadline: Option<Instant>) -> Result<Swept, ComponentError> {
        let visits =
            self.tenants().await?.into_iter().flat_map(|tenant| {
                self.drainers.iter().map(move |drainer| (tenant.clone(), drainer.id.clone()))
            });
        Ok(Box::pin(self.visit_or_mark(visits.collect(), deadline)).await)
    }

    /// Visits while there is time, and marks the rest.
    async fn visit_or_mark(&self, visits: BTreeSet<Visit>, deadline: Option<Instant>) -> Swept {
        let mut swept = Swept::default();
        let mut tour = Tour::of(visits);
        // A sweep sends the alerts that are claimed here: the caller's batch must not wait for Slack.
        let unvisited = self.visit_all(&mut tour, deadline, &mut swept, &mut Vec::new()).await;
        swept.unmarked.append(&mut self.mark_unvisited(unvisited).await);
        swept
    }
}

impl Swept {
    pub(crate) fn again(&mut self, tenant: Name, at: Option<Millis>) {
        let Some(at) = at else { return };
        self.again.insert(tenant);
        self.again_at = Some(self.again_at.map_or(at, |earlier| earlier.min(at)));
    }
}
