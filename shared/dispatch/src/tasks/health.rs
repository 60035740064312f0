//! How the tasks that are being worked on fare, looked at once a minute.
//!
//! Only tenants with a mark are looked at, and of them only the list of tasks under way: a check costs in proportion to
//! those. The list is derived and a moment behind. It says where to look; whether a task is taken from its worker is
//! decided by the task's record.

mod gone;
mod judge;
mod mark;
mod news;

use std::collections::HashSet;

use futures::{FutureExt, StreamExt, stream};
use ledgerline_event::{
    Millis, Name, Seconds, TaskSummary,
    catalogue::{HealthSummary, TaskHealthCheck, TaskState},
};
use ledgerline_ledger::control::keys::{self, ControlKey};

pub use self::judge::Thresholds;
use self::{
    gone::{Gone, is_overdue},
    judge::{count, judge},
    mark::BusyMark,
    news::{Checked, News},
};
use super::message::seal;
use crate::{
    Dispatch, DispatchError,
    claim::{Claimed, Effects, Intent},
};

/// How often tasks are looked at.
const MINUTE_MS: u64 = 60_000;
/// How long it is remembered that a minute's check was told of.
const REMEMBERED_SECONDS: u64 = 24 * 60 * 60;
/// Tenants that are checked at the same time.
const CHECKED_AT_ONCE: usize = 4;
/// Tasks that are listed with one request.
const LISTED_AT_ONCE: usize = 1_000;

/// What a check found and did, of all tenants together.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct HealthChecked {
    pub tenants: usize,
    pub tasks: HealthSummary,
    /// Tasks without a worker whose message was sent again.
    pub given_back: usize,
    pub alerts: usize,
    /// What could not be done; the next check tries again.
    pub trouble: usize,
}

/// The same of one tenant.
#[derive(Default)]
struct TenantChecked {
    tasks: HealthSummary,
    given_back: usize,
    alert: Option<ControlKey>,
    trouble: usize,
}

impl Dispatch {
    /// Looks at every task that is being worked on: tells the ledger, gives back what has no worker any more, and tells
    /// people what has changed. Trouble with one tenant leaves the others alone.
    pub async fn check_health(&self, thresholds: &Thresholds) -> Result<HealthChecked, DispatchError> {
        let marks: Vec<BusyMark> = self.control.all(keys::BUSY).await?;
        let mut all = HealthChecked { tenants: marks.len(), ..HealthChecked::default() };
        let checks: Vec<_> = marks
            .into_iter()
            .map(|mark| {
                async move { (mark.tenant.clone(), self.check_tenant(mark, thresholds).await) }.boxed()
            })
            .collect();
        let mut checks = stream::iter(checks).buffer_unordered(CHECKED_AT_ONCE);
        let mut alerts = Vec::new();
        while let Some((tenant, checked)) = checks.next().await {
            match checked {
                Ok(checked) => {
                    all.add(&checked);
                    alerts.extend(checked.alert);
                }
                Err(error) => {
                    tracing::error!(tenant, %error, "the tenant's tasks were not checked; the next check comes back to them");
                    all.trouble += 1;
                }
            }
        }
        all.alerts = alerts.len();
        self.tell_until_trouble(alerts).await;
        let counts = [
            ("Processing", all.tasks.total_processing),
            ("Warning", all.tasks.warning),
            ("Critical", all.tasks.critical),
            ("Overtime", all.tasks.overtime),
        ];
        let counts = counts.map(|(name, count)| (name, usize::try_from(count).unwrap_or(usize::MAX)));
        self.metrics.count(self.now(), &counts);
        self.metrics.count(self.now(), &[("GivenBack", all.given_back), ("HealthTrouble", all.trouble)]);
        Ok(all)
    }

    async fn check_tenant(
        &self,
        mut mark: BusyMark,
        thresholds: &Thresholds,
    ) -> Result<TenantChecked, DispatchError> {
        let tenant = &Name::new("tenantId", mark.tenant.as_str())?;
        let now = self.now();
        let tasks = self.processing(tenant).await?;
        let overdue: Vec<&TaskSummary> = tasks.iter().filter(|task| is_overdue(task, now)).collect();
        let (mut gone, trouble) = self.give_back_gone(tenant, &overdue, now).await?;
        let mut found = TenantChecked { trouble, ..TenantChecked::default() };
        found.given_back = gone.values().filter(|gone| **gone == Gone::SentAgain).count();
        let checked: Vec<Checked> = tasks
            .into_iter()
            .map(|task| {
                let (health, gone) = (judge(&task, now, thresholds), gone.remove(&task.request_id));
                count(&mut found.tasks, health.health);
                Checked { task, health, gone }
            })
            .collect();
        // People hear of what is wrong also while the bus takes nothing.
        let told = self.tell_ledger(tenant, &checked, found.tasks, now).await;
        found.alert = self.tell_changes(tenant, &mut mark, &checked, now).await?;
        told?;
        Ok(found)
    }

    /// Every task of a tenant that is being worked on.
    async fn processing(&self, tenant: &Name) -> Result<Vec<TaskSummary>, DispatchError> {
        let mut tasks: Vec<TaskSummary> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let state = Some(TaskState::Processing);
            let page = self.tasks(tenant, state, LISTED_AT_ONCE, cursor.as_deref()).await?;
            tasks.extend(page.items);
            cursor = page.cursor;
            if cursor.is_none() {
                return Ok(tasks);
            }
        }
    }

    /// Puts the check into the ledger: once a minute, however often it runs.
    async fn tell_ledger(
        &self,
        tenant: &Name,
        checked: &[Checked],
        summary: HealthSummary,
        now: Millis,
    ) -> Result<(), DispatchError> {
        if checked.is_empty() {
            return Ok(());
        }
        let emitter = self.emitter.within(|origin| {
            origin.tenant = tenant.clone();
            origin.context.origin = Some("health-check".into());
        });
        let tasks = checked.iter().map(|checked| checked.health.clone()).collect();
        let event = seal(&emitter, tenant, TaskHealthCheck { summary, tasks }).await?;
        let effects = Effects { events: vec![event], ..Effects::default() };
        self.carry_out(&[claim_of(tenant, now, "EVENT", effects)]).await?;
        Ok(())
    }

    /// Writes down what people are to be told, and then what they have been told: whoever dies between the two tells it
    /// again. Answers the alert, for the caller to tell when nothing waits for it.
    async fn tell_changes(
        &self,
        tenant: &Name,
        mark: &mut BusyMark,
        checked: &[Checked],
        now: Millis,
    ) -> Result<Option<ControlKey>, DispatchError> {
        let before = self.unwell_before(mark).await?;
        let listed: HashSet<&str> =
            checked.iter().map(|checked| checked.health.request_id.as_str()).collect();
        let left = before.keys().filter(|id| !listed.contains(id.as_str()));
        let left = left.map(|id| Name::new("requestId", id.as_str()));
        let left: Vec<Name> = left.collect::<Result<_, _>>()?;
        let left = if left.is_empty() { Vec::new() } else { self.summaries(tenant, &left).await? };
        let news = News::of(&before, checked, &left);
        let mut alert = None;
        if let Some(text) = news.text(tenant, &self.ledger_flag) {
            let intent = claim_of(tenant, now, "ALERT", Effects { alert: Some(text), ..Effects::default() });
            match self.claim(&intent).await? {
                Claimed::New => alert = Some(intent.key),
                // Somebody else checks in the same minute, and may have seen less: what they did not tell is
                // told at the next.
                Claimed::Before(_) => return Ok(None),
            }
        }
        self.note_unwell(mark, &before, &news.unwell).await?;
        if checked.is_empty() && news.unwell.is_empty() {
            self.note_quiet(mark, now).await?;
        }
        Ok(alert)
    }

    /// Tells people. What cannot be told now is told by a sweep, and while Slack is down nobody waits for it twice.
    async fn tell_until_trouble(&self, alerts: Vec<ControlKey>) {
        for alert in alerts {
            if let Err(error) = self.repeat(&alert).await {
                tracing::error!(%error, "nobody was told; a sweep tries again");
                return;
            }
        }
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

fn claim_of(tenant: &Name, now: Millis, what: &str, effects: Effects) -> Intent {
    let key = keys::health_claim(tenant, now.get() / MINUTE_MS, what);
    let ttl = Some(Seconds::new(now.seconds().get() + REMEMBERED_SECONDS));
    Intent { key, effects, started: None, ttl }
}
