//! One visit of a runner to a run: the runner has the lease, replays the log, continues the run, and releases it.
//!
//! Every event is appended before the workflow sees it. So the process may die at any point: work whose result is in the log
//! is never done again, and other work may be done again.

use std::{collections::BTreeSet, future::poll_fn, sync::Arc, task::Poll, time::Duration};

use ledgerline_engine::ABANDONED;
use ledgerline_event::{LogDraft, LogEvent, Millis, Name, RunEventType, RunState};
use ledgerline_outbox::ComponentError;
use ledgerline_runs::{Appended, EventTaken, LogEntry, Renewed, RunLease, RunLog, conflict};
use ledgerline_stage::Stage;
use ledgerline_store::StoreError;
use tokio::{sync::Notify, time::Instant};

use super::{
    Visited,
    failed_visit_backoff::{REJECTED_MAX, VisitProgress},
    log_cache::CachedLog,
    next_past_event::{WaitMatching, timed_out_waits},
    outbox_sender::OutboxSender,
    sanitize::sanitize,
};
use crate::{Execution, Services, Workflow, Workflows};

/// After this many runners in a row that died or lost the lease, the run fails.
const LOST_MAX: u32 = 10;
/// How long a run waits for a runner that has its workflow.
const UNKNOWN_MS: u64 = 10 * 60_000;

/// One runner's work on one run, from the lease to the release.
pub(super) struct Visit<'a> {
    pub(super) stage: &'a Stage,
    workflows: &'a Workflows,
    pub(super) lease: RunLease,
    wake: &'a Notify,
    deadline: Option<Instant>,
    renewed_at: Millis,
    pub(super) outbox: OutboxSender<'a>,
    cached_log: CachedLog,
    /// Hooks whose tokens other hooks have.
    conflicting_hooks: BTreeSet<Name>,
    pub(super) matching: WaitMatching,
    pub(super) is_external: bool,
    /// What this visit has done to the log.
    pub(super) progress: VisitProgress,
    /// Another process has closed an entity as the end of a run does: the run may be ending.
    may_be_ending: bool,
    /// See [`RunnerOptions::wait_in_place_ms`][super::RunnerOptions::wait_in_place_ms].
    wait_in_place_ms: u64,
}

/// Why waiting ended, if the lease is still held.
enum Waited {
    /// A step made progress, or a time came.
    Progress,
    /// The log may have new entries.
    Woken,
    /// Another runner has the run.
    Lost,
}

/// The result of matching waits with past events.
enum Matched {
    /// The execution was fed new events.
    Fed,
    /// No event matches.
    Nothing,
    /// Another runner has the run.
    Lost,
}

/// The result of the search for the workflow of a run.
enum Found<'w> {
    Workflow(&'w Workflow),
    /// This runner does not have it; another one may.
    Refused(String),
    /// No runner has had it for too long: the run fails.
    Failed(String),
}

impl<'a> Visit<'a> {
    pub(super) fn new(
        stage: &'a Stage,
        workflows: &'a Workflows,
        lease: RunLease,
        wake: &'a Notify,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            outbox: OutboxSender::new(stage, lease.tenant.clone(), lease.record.clone()),
            cached_log: CachedLog::default(),
            renewed_at: stage.now(),
            is_external: lease.record.external,
            stage,
            workflows,
            lease,
            wake,
            deadline,
            conflicting_hooks: BTreeSet::new(),
            matching: WaitMatching::default(),
            progress: VisitProgress::Nothing,
            may_be_ending: false,
            wait_in_place_ms: 0,
        }
    }

    pub(super) fn with_wait_in_place(mut self, ms: u64) -> Self {
        self.wait_in_place_ms = ms;
        self
    }

    /// Starts from the cached entries of the log.
    pub(super) fn with_cached_log(mut self, cached_log: CachedLog) -> Self {
        self.cached_log = cached_log;
        self
    }

    /// Runs the visit, and gives back the log for the cache.
    pub(super) async fn run(mut self) -> (Result<Visited, ComponentError>, CachedLog) {
        let visited = match Box::pin(self.load()).await {
            Ok(visited) => Ok(visited),
            Err(error) => Box::pin(self.postpone(error)).await,
        };
        (visited, self.cached_log)
    }

    /// Loads the log, replays it and continues the run, unless it is to end without its workflow.
    async fn load(&mut self) -> Result<Visited, ComponentError> {
        let run = self.lease.record.clone();
        let known = self.cached_log.entries();
        let (mut log, entries) = self.stage.runs.logs.read_log_after(&run, &self.lease.tenant, known).await?;
        self.cached_log.add(&entries);
        let entries = self.cached_log.entries();
        let events: Vec<LogEvent> = entries.iter().flat_map(|entry| entry.events.clone()).collect();
        // The runner that registered a wait may have died before it matched past events.
        let unmatched = entries.iter().filter(|entry| entry.sequence > run.looked());
        let unmatched = unmatched.flat_map(|entry| &entry.events).filter(|event| event.waits_for_event());
        self.matching.add(
            unmatched.map(|event| event.correlation_id.clone()).chain(run.notified_waits().iter().cloned()),
        );
        self.outbox.add(entries);
        // An external runner has started the run since this visit acquired it.
        self.is_external |= run.state == RunState::Pending && log.history.state() == Some(RunState::Running);
        if self.is_external || has_ended(&log) {
            return self.end(&mut log).await;
        }
        if run.lost_leases() >= LOST_MAX {
            let error = format!("{LOST_MAX} runners in a row died or lost the run while working on it");
            return Box::pin(self.fail(&mut log, "crashed", &error)).await;
        }
        if let Some(ending) = self.stage.runs.logs.ending_of(&run).await? {
            return Box::pin(self.end_with(&mut log, ending)).await;
        }
        if run.rejected_visits() >= REJECTED_MAX {
            let why = run.last_error.as_deref().unwrap_or_default();
            let error = format!("{} visits failed in a way that does not pass: {why}", run.rejected_visits());
            return Box::pin(self.fail(&mut log, "rejected", &error)).await;
        }
        let workflow = match self.find(&log) {
            Found::Workflow(workflow) => workflow,
            Found::Failed(error) => return Box::pin(self.fail(&mut log, "unknown_workflow", &error)).await,
            Found::Refused(error) => return self.refuse(&mut log, error).await,
        };
        let emitter = self.stage.runs.run_emitter(&self.lease.tenant, &run);
        let services = Services::new(self.stage.clone(), emitter, run.run_id.clone());
        let input = log.history.run().map(|run| run.input.clone()).unwrap_or_default();
        let mut execution =
            Execution::new(workflow, &run.run_id, input, Some(Arc::new(services))).announcing_times();
        execution.feed(events);
        Box::pin(self.drive(&mut log, &mut execution)).await
    }

    /// Polls the execution and appends the events that it wants, until the run ends or waits.
    async fn drive(
        &mut self,
        log: &mut RunLog,
        execution: &mut Execution,
    ) -> Result<Visited, ComponentError> {
        loop {
            if has_ended(log) || self.is_external {
                return self.end(log).await;
            }
            if std::mem::take(&mut self.may_be_ending)
                && let Some(ending) = self.stage.runs.logs.ending_now(&self.lease.tenant, &log.run_id).await?
            {
                return Box::pin(self.end_with(log, ending)).await;
            }
            let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            let now = self.stage.now();
            if !is_late || execution.busy() {
                let polled = poll_fn(|cx| Poll::Ready(execution.poll(cx, now))).await;
                if polled.is_ready() {
                    // Many quick steps take as long as a slow one.
                    match self.renew_if_due().await? {
                        Waited::Lost => return Ok(Visited::Lost),
                        Waited::Progress => {}
                        Waited::Woken => {
                            execution.feed(self.catch_up(log).await?);
                            continue;
                        }
                    }
                    if let Some(time) = execution.unannounced() {
                        self.stage.runs.sent.raise_sent_floor(&self.lease.tenant, time).await?;
                        execution.announce(time);
                        continue;
                    }
                    let drafts = sanitize(self.stage, execution.pending_drafts(now));
                    // An event that was accepted before the timeout is recorded is not late.
                    let timed_out = timed_out_waits(log, &drafts);
                    if !timed_out.is_empty() {
                        self.matching.add(timed_out);
                        match Box::pin(self.match_waits(log, execution)).await? {
                            Matched::Fed => continue,
                            Matched::Nothing => {}
                            Matched::Lost => return Ok(Visited::Lost),
                        }
                    }
                    if !drafts.is_empty() {
                        match Box::pin(self.append(log, execution, drafts)).await? {
                            true => continue,
                            false => return Ok(Visited::Lost),
                        }
                    }
                }
            }
            if !self.matching.is_empty() {
                match Box::pin(self.match_waits(log, execution)).await? {
                    Matched::Fed => continue,
                    Matched::Nothing => {}
                    Matched::Lost => return Ok(Visited::Lost),
                }
            }
            let soon = execution.next_due().is_some_and(|due| due <= now.plus(self.wait_in_place_ms));
            if execution.busy() || soon && !is_late {
                match self.wait(execution).await? {
                    Waited::Lost => return Ok(Visited::Lost),
                    Waited::Progress => {}
                    Waited::Woken => execution.feed(self.catch_up(log).await?),
                }
                continue;
            }
            match self.suspend(log, execution.next_due(), is_late).await? {
                Some(visited) => return Ok(visited),
                None => execution.feed(self.catch_up(log).await?),
            }
        }
    }

    /// Appends `drafts` and feeds the execution the new entries; `false` if another runner has the run.
    async fn append(
        &mut self,
        log: &mut RunLog,
        execution: &mut Execution,
        mut drafts: Vec<LogDraft>,
    ) -> Result<bool, ComponentError> {
        let stage = self.stage;
        for draft in &mut drafts {
            if draft.event_type == RunEventType::HookCreated
                && self.conflicting_hooks.contains(&draft.correlation_id)
            {
                *draft = conflict(draft, draft.correlation_id.clone());
            }
        }
        let append = stage.runs.logs.append(log, &drafts, Some(&self.lease));
        match self.outbox.send_during(Box::pin(append)).await? {
            Appended::Done(entry) => {
                self.progress = VisitProgress::Appended;
                let waits = entry.events.iter().filter(|event| event.waits_for_event());
                self.matching.add(waits.map(|event| event.correlation_id.clone()));
                execution.feed(entry.events.clone());
                self.add_entries(&[entry]);
            }
            Appended::StaleLog => execution.feed(self.catch_up(log).await?),
            Appended::GuardRefused => {
                if let Waited::Lost = self.renew().await? {
                    return Ok(false);
                }
                execution.feed(self.catch_up(log).await?);
            }
            Appended::Lost => return Ok(false),
            Appended::TokenTaken(hook_id) => {
                execution.feed(self.catch_up(log).await?);
                self.conflicting_hooks.insert(hook_id);
            }
        }
        Ok(true)
    }

    /// Waits until a step makes progress, a time is due, or another message wakes the run.
    async fn wait(&mut self, execution: &mut Execution) -> Result<Waited, ComponentError> {
        let stage = self.stage;
        // Emits pending events now, so that the ledger shows a slow step while it runs.
        self.outbox.begin();
        let renew_at = self.renew_at();
        let due = execution.next_due().map_or(renew_at, |due| due.min(renew_at));
        let pause = Duration::from_millis(due.get().saturating_sub(stage.now().get()));
        let waiting = async {
            tokio::select! {
                biased;
                () = poll_fn(|cx| execution.poll(cx, stage.now())) => false,
                () = self.wake.notified() => true,
                () = tokio::time::sleep(pause) => false,
            }
        };
        match self.outbox.send_during(waiting).await {
            true => self.renew().await,
            false => self.renew_if_due().await,
        }
    }

    /// Completes a wait with the oldest past event that matches it.
    async fn match_waits(
        &mut self,
        log: &mut RunLog,
        execution: &mut Execution,
    ) -> Result<Matched, ComponentError> {
        let take = self.matching.take_oldest(self.stage, log, &mut self.lease);
        match self.outbox.send_during(Box::pin(take)).await? {
            None => Ok(Matched::Nothing),
            Some(EventTaken::Done(entry)) => {
                self.progress = VisitProgress::Appended;
                execution.feed(entry.events.clone());
                self.add_entries(&[entry]);
                Ok(Matched::Fed)
            }
            Some(EventTaken::StaleLog) => {
                if let Waited::Lost = self.renew().await? {
                    return Ok(Matched::Lost);
                }
                let events = self.catch_up(log).await?;
                if events.is_empty() {
                    let what = format!("an event is consumed by {} and not in its log", log.run_id);
                    return Err(StoreError::unreadable("taking an event", what).into());
                }
                execution.feed(events);
                Ok(Matched::Fed)
            }
            Some(EventTaken::Lost) => Ok(Matched::Lost),
        }
    }

    fn renew_at(&self) -> Millis {
        self.renewed_at.plus(self.lease.lease_ms() / 4)
    }

    /// Renews the lease if it is time.
    async fn renew_if_due(&mut self) -> Result<Waited, ComponentError> {
        let now = self.stage.now();
        if now < self.renew_at() {
            return Ok(Waited::Progress);
        }
        self.renew().await
    }

    /// Renews the lease, and finds out whether the run was woken.
    async fn renew(&mut self) -> Result<Waited, ComponentError> {
        self.renewed_at = self.stage.now();
        Ok(match self.stage.runs.leases.renew_run(&mut self.lease).await? {
            Renewed::Kept => Waited::Progress,
            Renewed::Woken => {
                self.matching.add(self.lease.record.notified_waits().iter().cloned());
                Waited::Woken
            }
            Renewed::Lost => Waited::Lost,
        })
    }

    fn find(&self, log: &RunLog) -> Found<'a> {
        let run = &self.lease.record;
        let name = run.workflow_name.as_str();
        let version = log.history.run().and_then(|run| run.workflow_version.as_deref());
        if let Some(workflow) = self.workflows.get(name, version) {
            return Found::Workflow(workflow);
        }
        let versions = self.workflows.versions().into_iter().find(|(known, _)| known == name);
        if let (Some(version), Some((_, versions))) = (version, versions) {
            return Found::Refused(format!(
                "the run began with version {version} of `{name}`; this runner has {}: register that version too",
                versions.join(", ")
            ));
        }
        let known: Vec<&str> = self.workflows.names().collect();
        let error = format!("this runner has no workflow `{name}`; it has: {}", known.join(", "));
        // A run that was started had a runner, which may come back: the run waits without a limit.
        let started = log.history.state() != Some(RunState::Pending);
        match started || run.created_at.plus(UNKNOWN_MS) > self.stage.now() {
            true => Found::Refused(error),
            false => Found::Failed(error),
        }
    }

    pub(super) async fn catch_up(&mut self, log: &mut RunLog) -> Result<Vec<LogEvent>, ComponentError> {
        let entries = self.stage.runs.logs.catch_up(log).await?;
        let events: Vec<LogEvent> = entries.iter().flat_map(|entry| entry.events.clone()).collect();
        // An external runner has started the run, and executes it from now on.
        self.is_external |= events.iter().any(|event| event.event_type == RunEventType::RunStarted);
        self.may_be_ending |= events.iter().any(is_closed_by_end);
        self.add_entries(&entries);
        Ok(events)
    }

    /// Caches new entries of the log, and queues their events for the ledger.
    pub(super) fn add_entries(&mut self, entries: &[LogEntry]) {
        self.cached_log.add(entries);
        self.outbox.add(entries);
    }
}

/// Whether an event closes an entity as the end of a run does. The end may need several entries if much is open.
fn is_closed_by_end(event: &LogEvent) -> bool {
    let is = |field: &str| event.event_data.get(field).is_some_and(|value| value == ABANDONED);
    match event.event_type {
        RunEventType::WaitCompleted => is("outcome"),
        RunEventType::StepFailed => is("errorCode"),
        other => other == RunEventType::HookDisposed,
    }
}

pub(super) fn has_ended(log: &RunLog) -> bool {
    log.history.state().is_some_and(RunState::is_terminal)
}
