//! One visit to a run that is ours: replay, go on, append, suspend.
//!
//! Whatever happens is appended before the workflow sees it. So the process may die anywhere: what is in the log is
//! done and never done again, and what is not may be done again.

use std::{collections::BTreeSet, future::poll_fn, sync::Arc, task::Poll, time::Duration};

use ledgerline_dispatch::{
    Appended, Dispatch, DispatchError, EventTaken, LogEntry, Renewed, RunLease, RunLog, conflict,
};
use ledgerline_event::{LogDraft, LogEvent, Millis, Name, RunEventType, RunState};
use ledgerline_ledger::StoreError;
use tokio::{sync::Notify, time::Instant};

use super::{
    Visited,
    known_logs::KnownLog,
    looking::{Looking, timing_out},
    storable::appendable,
    telling::Telling,
    trouble::REJECTED_MAX,
};
use crate::{Execution, Outside, Workflow, Workflows, error::ABANDONED};

/// A run that so many runners in a row have not survived is given up.
const LOST_MAX: u32 = 10;
/// How long a run waits for a runner that has its workflow.
const UNKNOWN_MS: u64 = 10 * 60_000;

pub(super) struct Visit<'a> {
    pub(super) dispatch: &'a Dispatch,
    workflows: &'a Workflows,
    pub(super) lease: RunLease,
    news: &'a Notify,
    deadline: Option<Instant>,
    renewed_at: Millis,
    pub(super) telling: Telling<'a>,
    known_log: KnownLog,
    /// Hooks whose tokens others have.
    taken: BTreeSet<Name>,
    pub(super) looking: Looking,
    pub(super) is_elsewhere: bool,
    /// Whether this visit has appended anything.
    pub(super) progressed: bool,
    /// Another process has closed something as if the run ended.
    may_be_ending: bool,
    patience_ms: u64,
}

/// Why waiting ended.
enum Waited {
    Stepped,
    News,
    Lost,
}

/// What came of looking for events.
enum Looked {
    /// There is more in the log.
    Fed,
    Nothing,
    Lost,
}

/// What the workflow of a run is here.
enum Found<'w> {
    Workflow(&'w Workflow),
    /// Not here, but perhaps elsewhere or later.
    Refused(String),
    /// Nowhere.
    Failed(String),
}

impl<'a> Visit<'a> {
    pub(super) fn new(
        dispatch: &'a Dispatch,
        workflows: &'a Workflows,
        lease: RunLease,
        news: &'a Notify,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            telling: Telling::new(dispatch, lease.tenant.clone(), lease.record.clone()),
            known_log: KnownLog::default(),
            renewed_at: dispatch.now(),
            is_elsewhere: lease.record.external,
            dispatch,
            workflows,
            lease,
            news,
            deadline,
            taken: BTreeSet::new(),
            looking: Looking::default(),
            progressed: false,
            may_be_ending: false,
            patience_ms: 0,
        }
    }

    pub(super) fn with_patience(mut self, patience_ms: u64) -> Self {
        self.patience_ms = patience_ms;
        self
    }

    /// Goes on from a log of which the first entries are known.
    pub(super) fn with_known_log(mut self, known_log: KnownLog) -> Self {
        self.known_log = known_log;
        self
    }

    /// Works on the run, and hands back its log as far as it is known then.
    pub(super) async fn work(mut self) -> (Result<Visited, DispatchError>, KnownLog) {
        let visited = match Box::pin(self.work_on()).await {
            Ok(visited) => Ok(visited),
            Err(error) => Box::pin(self.postpone(error)).await,
        };
        (visited, self.known_log)
    }

    async fn work_on(&mut self) -> Result<Visited, DispatchError> {
        let run = self.lease.record.clone();
        let known = self.known_log.entries();
        let (mut log, entries) = self.dispatch.read_log_after(&run, &self.lease.tenant, known).await?;
        self.known_log.add(&entries);
        let entries = self.known_log.entries();
        let events: Vec<LogEvent> = entries.iter().flat_map(|entry| entry.events.clone()).collect();
        // The runner that registered a wait may have died before it looked.
        let unsure = entries.iter().filter(|entry| entry.sequence > run.looked());
        let unsure = unsure.flat_map(|entry| &entry.events).filter(|event| event.waits_for_event());
        self.looking
            .add(unsure.map(|event| event.correlation_id.clone()).chain(run.called().iter().cloned()));
        self.telling.note(entries);
        // An external runner has begun the run since this visit acquired it.
        self.is_elsewhere |= run.state == RunState::Pending && log.history.state() == Some(RunState::Running);
        if self.is_elsewhere || has_ended(&log) {
            return self.end(&mut log).await;
        }
        if run.lost_takes() >= LOST_MAX {
            let error = format!("{LOST_MAX} runners in a row died or lost the run while working on it");
            return Box::pin(self.fail(&mut log, "crashed", &error)).await;
        }
        if let Some(ending) = self.dispatch.ending_of(&run).await? {
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
        let emitter = self.dispatch.run_emitter(&self.lease.tenant, &run);
        let outside = Outside::new(self.dispatch.clone(), emitter, run.run_id.clone());
        let input = log.history.run().map(|run| run.input.clone()).unwrap_or_default();
        let mut execution =
            Execution::new(workflow, &run.run_id, input, Some(Arc::new(outside))).announcing_times();
        execution.feed(events);
        Box::pin(self.drive(&mut log, &mut execution)).await
    }

    async fn drive(&mut self, log: &mut RunLog, execution: &mut Execution) -> Result<Visited, DispatchError> {
        loop {
            if has_ended(log) || self.is_elsewhere {
                return self.end(log).await;
            }
            if std::mem::take(&mut self.may_be_ending)
                && let Some(ending) = self.dispatch.ending_now(&self.lease.tenant, &log.run_id).await?
            {
                return Box::pin(self.end_with(log, ending)).await;
            }
            let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            let now = self.dispatch.now();
            if !is_late || execution.busy() {
                let polled = poll_fn(|cx| Poll::Ready(execution.poll(cx, now))).await;
                if polled.is_ready() {
                    // Many quick steps take as long as a slow one.
                    match self.keep().await? {
                        Waited::Lost => return Ok(Visited::Lost),
                        Waited::Stepped => {}
                        Waited::News => {
                            execution.feed(self.catch_up(log).await?);
                            continue;
                        }
                    }
                    if let Some(time) = execution.unannounced() {
                        self.dispatch.raise_sent_floor(&self.lease.tenant, time).await?;
                        execution.announce(time);
                        continue;
                    }
                    let drafts = appendable(self.dispatch, execution.wanted(now));
                    // What was accepted before a timeout is recorded is not too late.
                    let timing_out = timing_out(log, &drafts);
                    if !timing_out.is_empty() {
                        self.looking.add(timing_out);
                        match Box::pin(self.look(log, execution)).await? {
                            Looked::Fed => continue,
                            Looked::Nothing => {}
                            Looked::Lost => return Ok(Visited::Lost),
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
            if !self.looking.is_empty() {
                match Box::pin(self.look(log, execution)).await? {
                    Looked::Fed => continue,
                    Looked::Nothing => {}
                    Looked::Lost => return Ok(Visited::Lost),
                }
            }
            let soon = execution.next_due().is_some_and(|due| due <= now.plus(self.patience_ms));
            if execution.busy() || soon && !is_late {
                match self.wait(execution).await? {
                    Waited::Lost => return Ok(Visited::Lost),
                    Waited::Stepped => {}
                    Waited::News => execution.feed(self.catch_up(log).await?),
                }
                continue;
            }
            match self.suspend(log, execution.next_due(), is_late).await? {
                Some(visited) => return Ok(visited),
                None => execution.feed(self.catch_up(log).await?),
            }
        }
    }

    /// Appends, and feeds the workflow what the log has then; `false` if another runner has the run now.
    async fn append(
        &mut self,
        log: &mut RunLog,
        execution: &mut Execution,
        mut drafts: Vec<LogDraft>,
    ) -> Result<bool, DispatchError> {
        let dispatch = self.dispatch;
        for draft in &mut drafts {
            if draft.event_type == RunEventType::HookCreated && self.taken.contains(&draft.correlation_id) {
                *draft = conflict(draft, draft.correlation_id.clone());
            }
        }
        let append = dispatch.append(log, &drafts, Some(&self.lease));
        match self.telling.beside(Box::pin(append)).await? {
            Appended::Done(entry) => {
                self.progressed = true;
                let waits = entry.events.iter().filter(|event| event.waits_for_event());
                self.looking.add(waits.map(|event| event.correlation_id.clone()));
                execution.feed(entry.events.clone());
                self.note(&[entry]);
            }
            Appended::Behind => execution.feed(self.catch_up(log).await?),
            Appended::GuardRefused => {
                if let Waited::Lost = self.renew().await? {
                    return Ok(false);
                }
                execution.feed(self.catch_up(log).await?);
            }
            Appended::Lost => return Ok(false),
            Appended::TokenTaken(hook_id) => {
                execution.feed(self.catch_up(log).await?);
                self.taken.insert(hook_id);
            }
        }
        Ok(true)
    }

    /// Waits until a step makes progress, something is due, or another message wakes the run.
    async fn wait(&mut self, execution: &mut Execution) -> Result<Waited, DispatchError> {
        let dispatch = self.dispatch;
        // Emits pending events now, so that the ledger shows a slow step while it runs.
        self.telling.begin();
        let renew_at = self.renew_at();
        let due = execution.next_due().map_or(renew_at, |due| due.min(renew_at));
        let pause = Duration::from_millis(due.get().saturating_sub(dispatch.now().get()));
        let waiting = async {
            tokio::select! {
                biased;
                () = poll_fn(|cx| execution.poll(cx, dispatch.now())) => false,
                () = self.news.notified() => true,
                () = tokio::time::sleep(pause) => false,
            }
        };
        match self.telling.beside(waiting).await {
            true => self.renew().await,
            false => self.keep().await,
        }
    }

    /// Gives a wait the oldest event that was sent for it.
    async fn look(&mut self, log: &mut RunLog, execution: &mut Execution) -> Result<Looked, DispatchError> {
        let take = self.looking.take(self.dispatch, log, &mut self.lease);
        match self.telling.beside(Box::pin(take)).await? {
            None => Ok(Looked::Nothing),
            Some(EventTaken::Done(entry)) => {
                self.progressed = true;
                execution.feed(entry.events.clone());
                self.note(&[entry]);
                Ok(Looked::Fed)
            }
            Some(EventTaken::Behind) => {
                if let Waited::Lost = self.renew().await? {
                    return Ok(Looked::Lost);
                }
                let news = self.catch_up(log).await?;
                if news.is_empty() {
                    let what = format!("an event is consumed by {} and not in its log", log.run_id);
                    return Err(StoreError::unreadable("taking an event", what).into());
                }
                execution.feed(news);
                Ok(Looked::Fed)
            }
            Some(EventTaken::Lost) => Ok(Looked::Lost),
        }
    }

    fn renew_at(&self) -> Millis {
        self.renewed_at.plus(self.lease.lease_ms() / 4)
    }

    /// Renews the lease when it is time to.
    async fn keep(&mut self) -> Result<Waited, DispatchError> {
        let now = self.dispatch.now();
        if now < self.renew_at() {
            return Ok(Waited::Stepped);
        }
        self.renew().await
    }

    /// Renews the lease, and learns whether the run was woken.
    async fn renew(&mut self) -> Result<Waited, DispatchError> {
        self.renewed_at = self.dispatch.now();
        Ok(match self.dispatch.renew_run(&mut self.lease).await? {
            Renewed::Kept => Waited::Stepped,
            Renewed::Woken => {
                self.looking.add(self.lease.record.called().iter().cloned());
                Waited::News
            }
            Renewed::Lost => Waited::Lost,
        })
    }

    fn find(&self, log: &RunLog) -> Found<'a> {
        let run = &self.lease.record;
        let name = run.workflow_name.as_str();
        let began_with = log.history.run().and_then(|run| run.workflow_version.as_deref());
        if let Some(workflow) = self.workflows.get(name, began_with) {
            return Found::Workflow(workflow);
        }
        let versions = self.workflows.versions().into_iter().find(|(known, _)| known == name);
        if let (Some(version), Some((_, versions))) = (began_with, versions) {
            return Found::Refused(format!(
                "the run began with version {version} of `{name}`; this runner has {}: register that version too",
                versions.join(", ")
            ));
        }
        let known: Vec<&str> = self.workflows.names().collect();
        let error = format!("this runner has no workflow `{name}`; it has: {}", known.join(", "));
        // A run that was begun had a runner, which may come back: the run waits for as long as that takes.
        let begun = log.history.state() != Some(RunState::Pending);
        match begun || run.created_at.plus(UNKNOWN_MS) > self.dispatch.now() {
            true => Found::Refused(error),
            false => Found::Failed(error),
        }
    }

    pub(super) async fn catch_up(&mut self, log: &mut RunLog) -> Result<Vec<LogEvent>, DispatchError> {
        let news = self.dispatch.catch_up(log).await?;
        let events: Vec<LogEvent> = news.iter().flat_map(|entry| entry.events.clone()).collect();
        // An external runner has begun the run, and executes it from now on.
        self.is_elsewhere |= events.iter().any(|event| event.event_type == RunEventType::RunStarted);
        self.may_be_ending |= events.iter().any(is_closed_by_end);
        self.note(&news);
        Ok(events)
    }

    /// Remembers entries that are new in the log, and that the ledger does not have yet.
    pub(super) fn note(&mut self, entries: &[LogEntry]) {
        self.known_log.add(entries);
        self.telling.note(entries);
    }
}

/// Whether an event closes what was open because the run ends. More may be open than one entry closes.
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
