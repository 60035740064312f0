//! One run, replayed from its log and continued.
//!
//! The code of a workflow sees the world only through its log. The execution delivers the events one at a time, in the
//! order of the log, and polls the code after each until it waits. A first execution works like a replay: the code sees
//! the result of a command only after the driver has appended it and fed it. So the code issues the same commands in the
//! same order, always. Steps begin and go on only while the code waits and every event was delivered.

use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures::future::BoxFuture;
use ledgerline_event::{LogDraft, LogEvent, Millis, Name, RunEntity, RunEventType};
use serde_json::Value;

use crate::{
    Engine, Error, Mismatch, catch_panic,
    delivery::CodeState,
    draft::{closing, draft_error, draft_with},
    drop_quietly,
};

/// How many times one poll polls the steps that were woken meanwhile, before other tasks get a turn.
const STEP_ROUNDS: usize = 8;
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

/// The running code of a workflow.
pub type Code = BoxFuture<'static, Result<Value, Error>>;

/// One version of a workflow, as an execution starts it.
pub trait Program: Clone + fmt::Debug {
    /// What the code may use besides its log. The execution only passes it on.
    type Services;

    /// The version that the log of a run names.
    fn version(&self) -> &str;

    /// The code, called with the run's input; an error if the input does not fit.
    fn start(
        &self,
        engine: Arc<Engine>,
        services: Option<Arc<Self::Services>>,
        input: Value,
    ) -> Result<Code, Error>;
}

/// One run: its log, and its code as far as the log has brought it.
///
/// The driver feeds the log, polls, appends the pending drafts, feeds what it appended, and so on until there is an
/// outcome, or until no draft is pending and no step runs. Then the run waits for a time
/// ([`next_due`][Self::next_due]) or for the world, and the driver may drop it and replay it later.
pub struct Execution<P: Program> {
    engine: Arc<Engine>,
    /// What the code is polled with.
    waker: Waker,
    program: P,
    services: Option<Arc<P::Services>>,
    stage: Stage,
    undelivered: VecDeque<LogEvent>,
    /// The log has `run_started`.
    started: bool,
    mismatch: Option<Mismatch>,
    ended: Option<Ended>,
    /// The latest time that the driver has announced; `None` if it announces none.
    announced: Option<Millis>,
}

enum Stage {
    /// The log has not begun.
    NotCreated {
        input: Value,
    },
    Running(Code),
    Returned(Result<Value, Error>),
    /// The input did not fit, and no code ran.
    InputRejected(Error),
    /// Log and code disagree; `closings` close what the log has open.
    Mismatched {
        closings: Vec<LogDraft>,
    },
    /// The run has ended, or the execution is being dropped.
    Over,
}

impl<P: Program> Execution<P> {
    /// The run before the first event of its log.
    pub fn new(program: &P, run_id: &Name, input: Value, services: Option<Arc<P::Services>>) -> Self {
        let engine = Engine::new(run_id.clone());
        Self {
            waker: Waker::from(Arc::clone(&engine.wake_queue)),
            engine,
            program: program.clone(),
            services,
            stage: Stage::NotCreated { input },
            undelivered: VecDeque::new(),
            started: false,
            mismatch: None,
            ended: None,
            announced: None,
        }
    }

    /// From now on, once the code has read a time, no step begins until the driver has [announced][Self::announce] that
    /// time. So every event that the world sends in answer to a step is later than the time.
    pub fn announcing_times(mut self) -> Self {
        self.announced = Some(Millis::MIN);
        self
    }

    /// The time that the code has read and the driver has not announced.
    pub fn unannounced(&self) -> Option<Millis> {
        let announced = self.announced?;
        self.engine.time_read().filter(|time| *time > announced && self.is_running())
    }

    /// The driver has announced `time`.
    pub fn announce(&mut self, time: Millis) {
        self.announced = self.announced.max(Some(time));
    }

    /// Takes the next events of the log: first all of them from `run_created` on, later those that this driver or others
    /// have appended.
    pub fn feed(&mut self, events: impl IntoIterator<Item = LogEvent>) {
        self.undelivered.extend(events);
    }

    /// Delivers the events that were fed and lets steps run. Ready when a draft is pending at `now` or the run has ended;
    /// a poll before the driver has appended that draft lets steps run, too.
    pub fn poll(&mut self, cx: &mut Context<'_>, now: Millis) -> Poll<()> {
        self.engine.wake_queue.begin_poll();
        self.engine.set_clock(now);
        let mut rounds = 0;
        loop {
            self.poll_code();
            if let Some(event) = self.undelivered.pop_front() {
                self.deliver(event);
                continue;
            }
            if !self.is_running() || self.unannounced().is_some() {
                break;
            }
            if self.engine.mark_caught_up() {
                continue;
            }
            rounds += 1;
            if rounds > STEP_ROUNDS || !self.engine.forward_step_wakes() {
                break;
            }
        }
        if self.is_running() {
            self.engine.wake_queue.end_poll(cx.waker());
        }
        let ready = self.ended.is_some() || self.has_pending_drafts(now) || self.unannounced().is_some();
        if ready { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The events that the driver is to append at `now`, in this order. A draft is pending until its event was fed. Empty
    /// while [`poll`][Self::poll] has not delivered every event that was fed.
    pub fn pending_drafts(&self, now: Millis) -> Vec<LogDraft> {
        let mut drafts = Vec::new();
        if !self.has_pending_drafts(now) {
            return drafts;
        }
        let run = &self.engine.run_id;
        if !self.started && matches!(self.stage, Stage::Running(_) | Stage::Returned(_)) {
            let version = self.program.version().into();
            drafts.push(draft_with(RunEventType::RunStarted, run, [("workflowVersion", version)]));
        }
        match &self.stage {
            Stage::NotCreated { .. } | Stage::Over => {}
            Stage::Running(_) => self.engine.pending_drafts(now, &mut drafts),
            Stage::Returned(Ok(output)) => {
                drafts.extend(self.engine.closings());
                drafts.push(draft_with(RunEventType::RunCompleted, run, [("output", output.clone())]));
            }
            Stage::Returned(Err(error)) => {
                drafts.extend(self.engine.closings());
                drafts.push(draft_error(RunEventType::RunFailed, run, error));
            }
            Stage::InputRejected(error) => drafts.push(draft_error(RunEventType::RunFailed, run, error)),
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

    /// How the run ended, once the log has its end.
    pub fn outcome(&self) -> Option<Ended> {
        self.ended.clone()
    }

    /// The mismatch of log and code, if there is one.
    pub fn mismatch(&self) -> Option<&Mismatch> {
        self.mismatch.as_ref()
    }

    /// Whether a step runs in this process.
    pub fn busy(&self) -> bool {
        self.is_running() && self.engine.is_busy()
    }

    /// The next time at which something is due: the end of a sleep, a timeout, another attempt at a step, or the entry that
    /// shows a slow step as running.
    pub fn next_due(&self) -> Option<Millis> {
        if self.is_running() { self.engine.next_due() } else { None }
    }

    fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running(_))
    }

    fn has_pending_drafts(&self, now: Millis) -> bool {
        match self.stage {
            _ if !self.undelivered.is_empty() => false,
            Stage::NotCreated { .. } | Stage::Over => false,
            // `run_started` goes with the first commands, unless a step runs already.
            Stage::Running(_) => {
                self.engine.has_pending_drafts(now) || (!self.started && !self.engine.is_busy())
            }
            Stage::Returned(_) | Stage::InputRejected(_) | Stage::Mismatched { .. } => true,
        }
    }

    /// Polls the code until nothing wakes it.
    fn poll_code(&mut self) {
        while let Stage::Running(code) = &mut self.stage
            && self.engine.wake_queue.take_code_wake()
        {
            let mut cx = Context::from_waker(&self.waker);
            let poll = || catch_panic(|| code.as_mut().poll(&mut cx));
            match self.engine.run_workflow_code(poll) {
                Ok(Poll::Pending) => {}
                Ok(Poll::Ready(result)) => self.enter(Stage::Returned(result)),
                Err(panic) => self.enter(Stage::Returned(Err(panic))),
            }
        }
    }

    fn deliver(&mut self, mut event: LogEvent) {
        self.engine.advance(event.timestamp);
        if event.event_type.entity() == RunEntity::Run {
            return self.deliver_to_run(event);
        }
        match &mut self.stage {
            Stage::Over => {}
            Stage::Mismatched { closings } => update_closings(closings, &event),
            Stage::NotCreated { .. } => self.fail_with(unexpected_beginning(&event), &event),
            Stage::Running(_) | Stage::Returned(_) | Stage::InputRejected(_) => {
                let code = if self.is_running() { CodeState::Running } else { CodeState::Returned };
                if let Err(mismatch) = self.engine.deliver(&mut event, code) {
                    self.fail_with(mismatch, &event);
                }
            }
        }
    }

    fn deliver_to_run(&mut self, mut event: LogEvent) {
        match (event.event_type, &mut self.stage) {
            (_, Stage::Over) => {}
            (RunEventType::RunCreated, Stage::NotCreated { input }) => {
                let input = input.take();
                self.engine.begin(event.timestamp);
                let started = self.program.start(Arc::clone(&self.engine), self.services.clone(), input);
                let stage = started.map_or_else(Stage::InputRejected, Stage::Running);
                self.enter(stage);
                self.engine.wake_queue.wake_code();
            }
            (RunEventType::RunStarted, Stage::Running(_) | Stage::Returned(_) | Stage::InputRejected(_)) => {
                self.started = true;
                let version = event.event_data.get("workflowVersion").and_then(Value::as_str);
                if let Some(version) = version.filter(|version| *version != self.program.version()) {
                    let log = format!("the log was begun by version `{version}` of the workflow");
                    let code = format!("the code is its version `{}`", self.program.version());
                    self.fail_with(Mismatch { log, code }, &event);
                }
            }
            (RunEventType::RunCompleted, _) => {
                self.end(Ended::Completed(event.event_data.remove("output").unwrap_or_default()));
            }
            (RunEventType::RunFailed, _) => self.end(Ended::Failed(Error::from_log(&event.event_data))),
            (RunEventType::RunCancelled, _) => self.end(Ended::Cancelled),
            (_, Stage::Mismatched { .. }) => {}
            (_, Stage::NotCreated { .. }) => self.fail_with(unexpected_beginning(&event), &event),
            _ => {
                let log = format!("the log has another {}", event.event_type);
                self.fail_with(Mismatch { log, code: "the run has begun already".into() }, &event);
            }
        }
    }

    fn fail_with(&mut self, mismatch: Mismatch, event: &LogEvent) {
        let mut closings = self.engine.closings();
        update_closings(&mut closings, event);
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

impl<P: Program> Drop for Execution<P> {
    fn drop(&mut self) {
        // Drops the code, which abandons its commands. No driver appends that any more.
        self.enter(Stage::Over);
    }
}

impl<P: Program> fmt::Debug for Execution<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Execution({} of {:?})", self.engine.run_id, self.program)
    }
}

/// Brings `closings`, which close everything that the log has open, up to date with `event`.
fn update_closings(closings: &mut Vec<LogDraft>, event: &LogEvent) {
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

fn unexpected_beginning(event: &LogEvent) -> Mismatch {
    let log = format!("the log begins with {}", event.event_type);
    Mismatch { log, code: "a run begins with run_created".into() }
}
