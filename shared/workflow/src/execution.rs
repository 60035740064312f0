//! One run, replayed from its log and driven on.
//!
//! The code of a workflow sees the world only through its log. Events are delivered one at a time,
//! in the order of the log, and after each the code is polled until it is quiet; that holds for the
//! first execution as it does for a replay, where what the code asked for becomes visible to it only
//! when it was appended and fed. So the code asks for the same things in the same order, always.
//! Steps begin, and go on, only while the code is quiet and everything was delivered.

use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use ledgerline_event::{LogDraft, LogEvent, Millis, Name, RunEntity, RunEventType};
use serde_json::Value;

use crate::{
    Ctx, Error, Mismatch, Outside, Workflow,
    engine::{
        Engine,
        draft::{closing, draft_error, draft_with},
    },
    workflows::Code,
};

/// How often steps that were woken while they were polled are polled again before others get a turn.
const ROUNDS: usize = 8;
/// The code of the error of a run whose log and code disagree.
const NONDETERMINISM: &str = "nondeterminism";

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// With an output.
    Completed(Value),
    /// With an error.
    Failed(Error),
    /// By a cancel request.
    Cancelled,
}

/// One run: its log, and its code as far as the log has brought it.
///
/// The driver feeds the log, polls, appends what is wanted, feeds what was appended, and so on until
/// there is an outcome, or until nothing is wanted and no step runs; then time ([`next_due`][Self::next_due])
/// or the world has to go on, and the run can as well be dropped and replayed later.
pub struct Execution {
    engine: Arc<Engine>,
    /// What the code is polled with.
    waker: Waker,
    workflow: Workflow,
    outside: Option<Arc<Outside>>,
    stage: Stage,
    queue: VecDeque<LogEvent>,
    /// The log has `run_started`.
    started: bool,
    mismatch: Option<Mismatch>,
    ended: Option<Ended>,
    /// The time that the code may know of, if the driver wants to be asked first.
    announced: Option<Millis>,
}

enum Stage {
    /// The log has not begun.
    Waiting {
        input: Value,
    },
    Running(Code),
    Returned(Result<Value, Error>),
    /// The input did not fit, and no code ran.
    Refused(Error),
    /// Log and code disagree; what the log has open is to be closed.
    Mismatched {
        closings: Vec<LogDraft>,
    },
    /// The run has ended, or the execution is being dropped.
    Over,
}

impl Execution {
    /// The run before the first event of its log.
    pub fn new(workflow: &Workflow, run_id: &Name, input: Value, outside: Option<Arc<Outside>>) -> Self {
        let engine = Engine::new(run_id.clone());
        Self {
            waker: Waker::from(Arc::clone(&engine.bell)),
            engine,
            workflow: workflow.clone(),
            outside,
            stage: Stage::Waiting { input },
            queue: VecDeque::new(),
            started: false,
            mismatch: None,
            ended: None,
            announced: None,
        }
    }

    /// From now on no step begins after the code has read a time until the driver has [announced][Self::announce] that
    /// time: what the world sends in answer to a step lies after it then.
    pub fn announcing_times(mut self) -> Self {
        self.announced = Some(Millis::MIN);
        self
    }

    /// The time that the code has read and that is to be announced.
    pub fn unannounced(&self) -> Option<Millis> {
        let announced = self.announced?;
        self.engine.time_read().filter(|time| *time > announced && self.is_running())
    }

    /// The time is announced.
    pub fn announce(&mut self, time: Millis) {
        self.announced = self.announced.max(Some(time));
    }

    /// Takes what comes next in the log: at first all of it from `run_created` on, later whatever was
    /// appended, by this driver or by others.
    pub fn feed(&mut self, events: impl IntoIterator<Item = LogEvent>) {
        self.queue.extend(events);
    }

    /// Delivers all that was fed and lets steps run. Ready when something is wanted at `now` or the run
    /// ended; steps go on all the same when it is polled again before that was appended.
    pub fn poll(&mut self, cx: &mut Context<'_>, now: Millis) -> Poll<()> {
        self.engine.bell.driver_came();
        self.engine.tick(now);
        let mut rounds = 0;
        loop {
            self.run();
            if let Some(event) = self.queue.pop_front() {
                self.deliver(event);
                continue;
            }
            if !self.is_running() || self.unannounced().is_some() {
                break;
            }
            if self.engine.go_live() {
                continue;
            }
            rounds += 1;
            if rounds > ROUNDS || !self.engine.pass_on() {
                break;
            }
        }
        self.engine.bell.driver_leaves(cx.waker(), self.is_running());
        let ready = self.ended.is_some() || self.is_wanting(now) || self.unannounced().is_some();
        if ready { Poll::Ready(()) } else { Poll::Pending }
    }

    /// What is to be appended at `now`, in this order. It is wanted until it was fed. While fed events
    /// have not been delivered by [`poll`][Self::poll] nothing is known to be wanted.
    pub fn wanted(&self, now: Millis) -> Vec<LogDraft> {
        let mut drafts = Vec::new();
        if !self.is_wanting(now) {
            return drafts;
        }
        let run = &self.engine.run_id;
        if !self.started && matches!(self.stage, Stage::Running(_) | Stage::Returned(_)) {
            let version = self.workflow.version().into();
            drafts.push(draft_with(RunEventType::RunStarted, run, [("workflowVersion", version)]));
        }
        match &self.stage {
            Stage::Waiting { .. } | Stage::Over => {}
            Stage::Running(_) => self.engine.wanted(now, &mut drafts),
            Stage::Returned(Ok(output)) => {
                drafts.extend(self.engine.closings());
                drafts.push(draft_with(RunEventType::RunCompleted, run, [("output", output.clone())]));
            }
            Stage::Returned(Err(error)) => {
                drafts.extend(self.engine.closings());
                drafts.push(draft_error(RunEventType::RunFailed, run, error));
            }
            Stage::Refused(error) => drafts.push(draft_error(RunEventType::RunFailed, run, error)),
            Stage::Mismatched { closings } => {
                drafts.extend_from_slice(closings);
                drafts.extend(self.mismatch.as_ref().map(|mismatch| {
                    let message = format!("the workflow's code does not fit the log of its run: {mismatch}");
                    let error = Error::fatal(message).code(NONDETERMINISM);
                    draft_error(RunEventType::RunFailed, run, &error)
                }));
            }
        }
        drafts
    }

    /// How the run ended, once the log says so.
    pub fn outcome(&self) -> Option<Ended> {
        self.ended.clone()
    }

    /// How log and code disagree, if they do.
    pub fn mismatch(&self) -> Option<&Mismatch> {
        self.mismatch.as_ref()
    }

    /// Whether a step runs in this process.
    pub fn busy(&self) -> bool {
        self.is_running() && self.engine.is_busy()
    }

    /// When time alone brings something next: a sleep or a timeout, another attempt at a step, or a step
    /// that has run for so long that people should see it.
    pub fn next_due(&self) -> Option<Millis> {
        if self.is_running() { self.engine.next_due() } else { None }
    }

    fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running(_))
    }

    fn is_wanting(&self, now: Millis) -> bool {
        match self.stage {
            _ if !self.queue.is_empty() => false,
            Stage::Waiting { .. } | Stage::Over => false,
            // That the run began is told with what it did first, unless that takes long.
            Stage::Running(_) => self.engine.is_wanting(now) || (!self.started && !self.engine.is_busy()),
            Stage::Returned(_) | Stage::Refused(_) | Stage::Mismatched { .. } => true,
        }
    }

    /// Polls the code until it is quiet.
    fn run(&mut self) {
        while let Stage::Running(code) = &mut self.stage
            && self.engine.bell.rang_for_code()
        {
            let mut cx = Context::from_waker(&self.waker);
            let poll = || catch_unwind(AssertUnwindSafe(|| code.as_mut().poll(&mut cx)));
            match self.engine.in_code(poll) {
                Ok(Poll::Pending) => {}
                Ok(Poll::Ready(result)) => self.enter(Stage::Returned(result)),
                Err(thrown) => self.enter(Stage::Returned(Err(Error::panicked(&*thrown)))),
            }
        }
    }

    fn deliver(&mut self, mut event: LogEvent) {
        self.engine.arrive(event.timestamp);
        if event.event_type.entity() == RunEntity::Run {
            return self.deliver_to_run(event);
        }
        match &mut self.stage {
            Stage::Over => {}
            Stage::Mismatched { closings } => keep_up(closings, &event),
            Stage::Waiting { .. } => self.disagree(no_beginning(&event), &event),
            Stage::Running(_) | Stage::Returned(_) | Stage::Refused(_) => {
                let returned = !matches!(self.stage, Stage::Running(_));
                if let Err(mismatch) = self.engine.deliver(&mut event, returned) {
                    self.disagree(mismatch, &event);
                }
            }
        }
    }

    fn deliver_to_run(&mut self, mut event: LogEvent) {
        match (event.event_type, &mut self.stage) {
            (_, Stage::Over) => {}
            (RunEventType::RunCreated, Stage::Waiting { input }) => {
                let input = input.take();
                self.engine.begin(event.timestamp);
                let ctx = Ctx::new(Arc::clone(&self.engine), self.outside.clone());
                let stage = self.workflow.start(ctx, input).map_or_else(Stage::Refused, Stage::Running);
                self.enter(stage);
                self.engine.bell.ring_for_code();
            }
            (RunEventType::RunStarted, Stage::Running(_) | Stage::Returned(_) | Stage::Refused(_)) => {
                self.started = true;
                let version = event.event_data.get("workflowVersion").and_then(Value::as_str);
                if let Some(version) = version.filter(|version| *version != self.workflow.version()) {
                    let log = format!("the log was begun by version `{version}` of the workflow");
                    let code = format!("the code is its version `{}`", self.workflow.version());
                    self.disagree(Mismatch { log, code }, &event);
                }
            }
            (RunEventType::RunCompleted, _) => {
                self.end(Ended::Completed(event.event_data.remove("output").unwrap_or_default()));
            }
            (RunEventType::RunFailed, _) => self.end(Ended::Failed(Error::from_log(&event.event_data))),
            (RunEventType::RunCancelled, _) => self.end(Ended::Cancelled),
            (_, Stage::Mismatched { .. }) => {}
            (_, Stage::Waiting { .. }) => self.disagree(no_beginning(&event), &event),
            _ => {
                let log = format!("the log has another {}", event.event_type);
                self.disagree(Mismatch { log, code: "the run has begun already".into() }, &event);
            }
        }
    }

    fn disagree(&mut self, mismatch: Mismatch, event: &LogEvent) {
        let mut closings = self.engine.closings();
        keep_up(&mut closings, event);
        self.mismatch = Some(mismatch);
        self.enter(Stage::Mismatched { closings });
    }

    fn end(&mut self, ended: Ended) {
        self.ended = Some(ended);
        self.enter(Stage::Over);
    }

    fn enter(&mut self, stage: Stage) {
        drop_quietly(std::mem::replace(&mut self.stage, stage));
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        // Drops the code, which abandons its commands. No driver records that any more.
        self.enter(Stage::Over);
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Execution({} of {:?})", self.engine.run_id, self.workflow)
    }
}

/// Drops what holds code of the user, which may panic.
pub(crate) fn drop_quietly<T>(value: T) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
}

/// What closes everything that is open after `event`, which no code takes any more.
fn keep_up(closings: &mut Vec<LogDraft>, event: &LogEvent) {
    match event.event_type {
        RunEventType::StepCreated | RunEventType::HookCreated | RunEventType::WaitCreated => {
            closings.extend(closing(event.event_type.entity(), &event.correlation_id));
        }
        RunEventType::StepCompleted
        | RunEventType::StepFailed
        | RunEventType::HookDisposed
        | RunEventType::WaitCompleted => {
            closings.retain(|closing| closing.correlation_id != event.correlation_id);
        }
        RunEventType::StepStarted
        | RunEventType::StepRetrying
        | RunEventType::HookConflict
        | RunEventType::HookReceived
        | RunEventType::RunCreated
        | RunEventType::RunStarted
        | RunEventType::RunCompleted
        | RunEventType::RunFailed
        | RunEventType::RunCancelled => {}
    }
}

fn no_beginning(event: &LogEvent) -> Mismatch {
    let log = format!("the log begins with {}", event.event_type);
    Mismatch { log, code: "a run begins with run_created".into() }
}
