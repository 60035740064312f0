//! Checks the health of running tasks once a minute.
//!
//! Only tenants with a mark are looked at, and of them only the list of tasks under way: a check costs in proportion to
//! those. The list is derived and a moment behind. It says where to look; whether a task is taken from its worker is
//! decided by the task's record.

mod alert_changes;
mod busy_tenants;
mod classify;
mod lost_workers;

use std::{collections::HashSet, time::Duration};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use ledgerline_event::{
    Millis, Name, Seconds, TaskSummary,
    catalogue::{HealthSummary, TaskHealthCheck, TaskState},
};
use ledgerline_ledger::{Emitter, telemetry::Metrics};
use ledgerline_store::{
    BusyMark, BusyMarks, ControlTable, HealthCheckCursor, HealthCheckCursors, Payloads,
    keys::{self, ControlKey},
};
use tokio::time::{Instant, timeout_at};

pub use self::classify::Thresholds;
use self::{
    alert_changes::{Changes, Checked},
    classify::{classify, count},
    lost_workers::{LostTask, is_overdue},
};
use crate::Tasks;
use crate::tasks::seal;
use ledgerline_outbox::{
    Claimed, ComponentError, Effects, Outbox, PendingEffects, SweepProgress, Sweeper, rotate_after,
};

/// How often tasks are looked at.
const MINUTE_MS: u64 = 60_000;
/// How long the claims of a minute's check are kept.
const REMEMBERED_SECONDS: u64 = 24 * 60 * 60;
/// Tenants that are checked at the same time.
const CHECKED_AT_ONCE: usize = 4;
/// Tasks that are listed with one request.
const LISTED_AT_ONCE: usize = 1_000;

/// How long a check takes at most, unless its caller says so. The function has two minutes.
const BUDGET: Duration = Duration::from_secs(75);

/// The check of a tenant that takes this much longer than the time of all is given up.
const OVERRUN: Duration = Duration::from_secs(10);

/// How often a check stores its position.
const NOTED_EVERY: Duration = Duration::from_secs(5);

/// The health check.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Health {
    pub busy: BusyMarks,
    pub places: HealthCheckCursors,
    pub payloads: Payloads,
    pub emitter: Emitter,
    pub metrics: Metrics,
    /// How a person names this ledger on the command line.
    pub ledger_flag: String,
    pub tasks: Tasks,
    pub outbox: Outbox,
}

/// What a check found and did, of all tenants together.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct HealthChecked {
    pub tenants: usize,
    pub tasks: HealthSummary,
    /// Tasks without a worker whose message was sent again.
    pub given_back: usize,
    /// Tasks that no worker had taken for ten days whose message was sent again.
    pub enqueued_again: usize,
    pub alerts: usize,
    /// What could not be done; the next check tries again.
    pub trouble: usize,
}

/// Whether the table may hold the place where a check stopped.
#[derive(Clone, Copy)]
enum StoredPlace {
    Present,
    Absent,
}

/// The same of one tenant.
#[derive(Default)]
struct TenantChecked {
    tasks: HealthSummary,
    given_back: usize,
    alert: Option<ControlKey>,
    trouble: usize,
}

impl Health {
    /// Checks `tasks`.
    pub fn new(
        control: ControlTable,
        payloads: Payloads,
        emitter: Emitter,
        metrics: Metrics,
        ledger_flag: String,
        tasks: Tasks,
        outbox: Outbox,
    ) -> Self {
        let (busy, places) = (BusyMarks::new(control.clone()), HealthCheckCursors::new(control));
        Self { busy, places, payloads, emitter, metrics, ledger_flag, tasks, outbox }
    }

    /// Looks at every task that is being worked on: emits how they fare, enqueues those that have lost their worker, and
    /// alerts people of what has changed. Trouble with one tenant leaves the others alone.
    pub async fn check_health(&self, thresholds: &Thresholds) -> Result<HealthChecked, ComponentError> {
        self.check_health_until(thresholds, Instant::now() + BUDGET).await
    }

    /// The same until `deadline`; the next check goes on where this one stopped. Whatever the deadline is, some tenants
    /// are checked, some tasks are given back, and some that no worker takes are enqueued again.
    pub async fn check_health_until(
        &self,
        thresholds: &Thresholds,
        deadline: Instant,
    ) -> Result<HealthChecked, ComponentError> {
        let marks: Vec<BusyMark> = self.busy.all().await?;
        let stored = self.places.get().await?;
        let mut place_stored = if stored.is_some() { StoredPlace::Present } else { StoredPlace::Absent };
        let anywhere = || marks.get(fastrand::usize(..marks.len().max(1))).map(|mark| mark.tenant.clone());
        let after = stored.map(|place| place.after).or_else(anywhere);
        let marks = rotate_after(marks, after.as_deref(), |mark| mark.tenant.as_str());
        let mut all = HealthChecked { tenants: marks.len(), ..HealthChecked::default() };
        let mut course = SweepProgress::new(marks.iter().map(|mark| mark.tenant.clone()).collect());
        let mut waiting = marks.into_iter().enumerate();
        let mut checks = FuturesUnordered::new();
        let mut alerts = Vec::new();
        let (mut begun, mut noted) = (0, Instant::now());
        let given_up_at = deadline.max(Instant::now()) + OVERRUN;
        loop {
            while checks.len() < CHECKED_AT_ONCE && (begun < CHECKED_AT_ONCE || Instant::now() < deadline) {
                let Some((step, mark)) = waiting.next() else { break };
                begun += 1;
                checks.push(
                    async move {
                        let tenant = mark.tenant.clone();
                        let checking = self.check_tenant(mark, thresholds, deadline);
                        (step, tenant, timeout_at(given_up_at, checking).await)
                    }
                    .boxed(),
                );
            }
            let Some((step, tenant, checked)) = checks.next().await else { break };
            course.finish(step);
            match checked {
                Ok(Ok(checked)) => {
                    all.add(&checked);
                    alerts.extend(checked.alert);
                }
                Ok(Err(error)) => {
                    tracing::error!(tenant, %error, "the tenant's tasks were not checked; the next check retries");
                    all.trouble += 1;
                }
                Err(_) => {
                    tracing::error!(
                        tenant,
                        "checking the tenant's tasks took too long; the next check retries"
                    );
                    all.trouble += 1;
                }
            }
            // If this check is killed, the next one continues from the place stored here.
            if noted.elapsed() >= NOTED_EVERY && !course.is_complete() {
                if course.resume_after().is_some() {
                    place_stored = StoredPlace::Present;
                }
                if let Err(error) = self.note_place(&course, place_stored).await {
                    tracing::warn!(%error, "could not store the position of the health check");
                }
                noted = Instant::now();
            }
        }
        // Store the place now: the check may be killed in what follows.
        let placed = self.note_place(&course, place_stored).await;
        match self.enqueue_untaken(deadline).await {
            Ok((enqueued, trouble)) => {
                all.enqueued_again = enqueued;
                all.trouble += trouble;
            }
            Err(error) => {
                tracing::error!(%error, "tasks that no worker takes were not checked; the next check retries");
                all.trouble += 1;
            }
        }
        placed?;
        Sweeper::HealthCheck.note_end(&self.outbox).await;
        all.alerts = alerts.len();
        self.outbox.send_alerts(alerts).await;
        let counts = [
            ("Processing", all.tasks.total_processing),
            ("Warning", all.tasks.warning),
            ("Critical", all.tasks.critical),
            ("Overtime", all.tasks.overtime),
        ];
        let counts = counts.map(|(name, count)| (name, usize::try_from(count).unwrap_or(usize::MAX)));
        self.metrics.count(self.emitter.now(), &counts);
        let counts = [
            ("GivenBack", all.given_back),
            ("EnqueuedAgain", all.enqueued_again),
            ("HealthTrouble", all.trouble),
        ];
        self.metrics.count(self.emitter.now(), &counts);
        Ok(all)
    }

    /// Stores where the next check continues. After a whole round it removes that place, if there is one: the next check
    /// begins anywhere.
    async fn note_place(
        &self,
        course: &SweepProgress<String>,
        stored: StoredPlace,
    ) -> Result<(), ComponentError> {
        match course.resume_after().filter(|_| !course.is_complete()) {
            Some(after) => Ok(self.places.put(&HealthCheckCursor { after: after.clone() }).await?),
            None => match stored {
                StoredPlace::Present => Ok(self.places.remove().await?),
                StoredPlace::Absent => Ok(()),
            },
        }
    }

    async fn check_tenant(
        &self,
        mut mark: BusyMark,
        thresholds: &Thresholds,
        deadline: Instant,
    ) -> Result<TenantChecked, ComponentError> {
        let tenant = &Name::stored("tenantId", mark.tenant.as_str())?;
        let now = self.emitter.now();
        let tasks = self.processing(tenant).await?;
        let overdue: Vec<&TaskSummary> = tasks.iter().filter(|task| is_overdue(task, now)).collect();
        let (mut lost, trouble) = self.resend_lost(tenant, &overdue, now, deadline).await?;
        let mut found = TenantChecked { trouble, ..TenantChecked::default() };
        found.given_back = lost.values().filter(|lost| **lost == LostTask::SentAgain).count();
        let checked: Vec<Checked> = tasks
            .into_iter()
            .map(|task| {
                let (health, lost) = (classify(&task, now, thresholds), lost.remove(&task.request_id));
                count(&mut found.tasks, health.health);
                Checked { task, health, lost }
            })
            .collect();
        // Operators are alerted even if the event bus fails.
        let emitted = self.emit_check(tenant, &checked, found.tasks, now).await;
        found.alert = self.alert_changes(tenant, &mut mark, &checked, now).await?;
        emitted?;
        Ok(found)
    }

    /// Every task of a tenant that is being worked on.
    async fn processing(&self, tenant: &Name) -> Result<Vec<TaskSummary>, ComponentError> {
        let mut tasks: Vec<TaskSummary> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let state = Some(TaskState::Processing);
            let page = self.tasks.tasks(tenant, state, LISTED_AT_ONCE, cursor.as_deref()).await?;
            tasks.extend(page.items);
            cursor = page.cursor;
            if cursor.is_none() {
                return Ok(tasks);
            }
        }
    }

    /// Puts the check into the ledger: once a minute, however often it runs.
    async fn emit_check(
        &self,
        tenant: &Name,
        checked: &[Checked],
        summary: HealthSummary,
        now: Millis,
    ) -> Result<(), ComponentError> {
        if checked.is_empty() {
            return Ok(());
        }
        let emitter = self.emitter.with_scope(|scope| {
            scope.tenant = tenant.clone();
            scope.context.origin = Some("health-check".into());
        });
        let tasks = checked.iter().map(|checked| checked.health.clone()).collect();
        let event = seal(&emitter, tenant, TaskHealthCheck { summary, tasks }).await?;
        let effects = Effects { events: vec![event], ..Effects::default() };
        self.outbox.execute(&claim_of(tenant, now, "EVENT", effects)).await?;
        Ok(())
    }

    /// Claims an alert about what has changed, and then stores what operators know by it. If the process dies between the
    /// two, the next check tells it again. Returns the alert, which the caller sends after everything else.
    async fn alert_changes(
        &self,
        tenant: &Name,
        mark: &mut BusyMark,
        checked: &[Checked],
        now: Millis,
    ) -> Result<Option<ControlKey>, ComponentError> {
        let before = self.unwell_before(mark).await?;
        let listed: HashSet<&str> =
            checked.iter().map(|checked| checked.health.request_id.as_str()).collect();
        let left = before.keys().filter(|id| !listed.contains(id.as_str()));
        let left = left.map(|id| Name::stored("requestId", id.as_str()));
        let left: Vec<Name> = left.collect::<Result<_, _>>()?;
        let left = if left.is_empty() { Vec::new() } else { self.tasks.summaries(tenant, &left).await? };
        let changes = Changes::of(&before, checked, &left);
        let mut alert = None;
        if let Some(text) = changes.text(tenant, &self.ledger_flag) {
            let pending = claim_of(tenant, now, "ALERT", Effects { alert: Some(text), ..Effects::default() });
            match self.outbox.claim(&pending).await? {
                Claimed::New => alert = Some(pending.key),
                // Another process checks in the same minute, and may have seen less: the next check tells
                // what that one did not.
                Claimed::Before(_) | Claimed::Recorded => return Ok(None),
            }
        }
        self.remember_unwell(mark, &before, &changes.unwell).await?;
        if checked.is_empty() && changes.unwell.is_empty() {
            self.note_nothing_under_way(mark, now).await?;
        }
        Ok(alert)
    }
}

impl HealthChecked {
    fn add(&mut self, tenant: &TenantChecked) {
        let (all, one) = (&mut self.tasks, &tenant.tasks);
        all.total_processing += one.total_processing;
        all.healthy += one.healthy;
        all.warning += one.warning;
        all.critical += one.critical;
        all.overtime += one.overtime;
        self.given_back += tenant.given_back;
        self.trouble += tenant.trouble;
    }
}

fn claim_of(tenant: &Name, now: Millis, what: &str, effects: Effects) -> PendingEffects {
    let key = keys::health_claim(tenant, now.get() / MINUTE_MS, what);
    let ttl = Some(Seconds::new(now.seconds().get() + REMEMBERED_SECONDS));
    PendingEffects { key, effects, started: None, ttl }
}
