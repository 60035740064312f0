//! What drives an execution in these tests: a log in memory, and a clock that tests move.

use std::{
    future::Future,
    task::{Context, Poll, Waker},
};

use ledgerline_event::{Kind, LogDraft, LogEvent, Millis, Name, RunEventType as Type, RunHistory, RunState};
use ledgerline_workflow::{Ctx, Ended, Error, Execution, Workflow};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use ulid::Ulid;

pub(crate) const START: u64 = 1_767_453_739_640;

pub(crate) struct World {
    pub(crate) workflow: Workflow,
    pub(crate) input: Value,
    pub(crate) run_id: Name,
    pub(crate) now: Millis,
    /// The entries of the log.
    pub(crate) log: Vec<Vec<LogEvent>>,
    pub(crate) history: RunHistory,
    execution: Option<Execution>,
}

/// A workflow under the name that does not matter.
pub(crate) fn workflow<F, Fut, I, O>(code: F) -> Workflow
where
    F: Fn(Ctx, I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, Error>> + Send + 'static,
    I: DeserializeOwned + Send + 'static,
    O: Serialize,
{
    Workflow::new("test", "1", code)
}

pub(crate) fn draft(event_type: Type, id: &Name, data: Value) -> LogDraft {
    let Value::Object(event_data) = data else { panic!("{data}") };
    LogDraft { event_type, correlation_id: id.clone(), event_data }
}

impl World {
    pub(crate) fn new(workflow: Workflow, input: Value) -> Self {
        let run_id = Kind::Run.id(Ulid::from_parts(START, 7));
        let mut world = Self {
            workflow,
            input,
            run_id: run_id.clone(),
            now: Millis::try_from(START).unwrap(),
            log: Vec::new(),
            history: RunHistory::new(),
            execution: None,
        };
        world.append(vec![draft(Type::RunCreated, &run_id, json!({"workflowName": "test"}))]);
        world
    }

    /// A world whose code takes no input.
    pub(crate) fn of<F, Fut, O>(code: F) -> Self
    where
        F: Fn(Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, Error>> + Send + 'static,
        O: Serialize,
    {
        Self::new(workflow(move |ctx, _: Value| code(ctx)), Value::Null)
    }

    /// The execution, replayed from the log if there is none.
    pub(crate) fn execution(&mut self) -> &mut Execution {
        self.execution.get_or_insert_with(|| {
            let mut execution = Execution::new(&self.workflow, &self.run_id, self.input.clone(), None);
            execution.feed(self.log.iter().flatten().cloned());
            execution
        })
    }

    /// The process dies.
    pub(crate) fn crash(&mut self) {
        self.execution = None;
    }

    /// The world as it was after so many entries, for another process.
    pub(crate) fn rewound(&self, entries: usize) -> Self {
        let log = self.log[..entries].to_vec();
        Self {
            workflow: self.workflow.clone(),
            input: self.input.clone(),
            run_id: self.run_id.clone(),
            now: log.last().unwrap().last().unwrap().timestamp,
            history: RunHistory::of(log.iter().flatten()).unwrap(),
            log,
            execution: None,
        }
    }

    /// The process dies, and the next one has other code.
    pub(crate) fn redeploy(&mut self, workflow: Workflow) {
        self.crash();
        self.workflow = workflow;
    }

    pub(crate) fn poll_with(&mut self, waker: &Waker) -> Poll<()> {
        let now = self.now;
        let polled = self.execution().poll(&mut Context::from_waker(waker), now);
        let wanted = self.pending_drafts();
        let over = self.execution().outcome().is_some();
        assert_eq!(polled.is_ready(), over || !wanted.is_empty(), "{wanted:?}");
        if let Err(illegal) = self.history.check_all(&wanted) {
            panic!("{illegal}: {wanted:#?}");
        }
        polled
    }

    pub(crate) fn poll(&mut self) -> Poll<()> {
        self.poll_with(Waker::noop())
    }

    pub(crate) fn pending_drafts(&mut self) -> Vec<LogDraft> {
        let now = self.now;
        self.execution().pending_drafts(now)
    }

    /// What is wanted, by type.
    pub(crate) fn wanted_types(&mut self) -> Vec<Type> {
        self.pending_drafts().iter().map(|draft| draft.event_type).collect()
    }

    /// Appends one entry, as any process could, and feeds it to the execution, if there is one.
    pub(crate) fn append(&mut self, drafts: Vec<LogDraft>) {
        let number = self.log.len() as u128 * 1_000;
        let at = self.history.last_at().map_or(self.now, |last| last.max(self.now));
        let event = |(n, mut draft): (usize, LogDraft)| {
            if draft.event_type == Type::HookCreated && !draft.event_data.contains_key("token") {
                draft.event_data.insert("token".into(), format!("token of {}", draft.correlation_id).into());
            }
            draft.at(Kind::Event.id(Ulid::from_parts(at.get(), number + n as u128)), at)
        };
        let entry: Vec<LogEvent> = drafts.into_iter().enumerate().map(event).collect();
        for event in &entry {
            self.history.apply(event).unwrap();
        }
        if let Some(execution) = &mut self.execution {
            execution.feed(entry.clone());
        }
        self.log.push(entry);
    }

    /// Appends one event, as another process does.
    pub(crate) fn receive(&mut self, event_type: Type, id: &Name, data: Value) {
        self.append(vec![draft(event_type, id, data)]);
    }

    /// Appends what is wanted; says whether anything was.
    pub(crate) fn record(&mut self) -> bool {
        let wanted = self.pending_drafts();
        let any = !wanted.is_empty();
        if any {
            self.append(wanted);
        }
        any
    }

    /// Polls and appends until only a step, the clock or another process can move the run on.
    pub(crate) fn run_until_waiting(&mut self) {
        for _ in 0..100_000 {
            if self.poll().is_pending() || !self.record() {
                return;
            }
        }
        panic!("the run never waits");
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, ms: u64) {
        self.now = self.now.plus(ms);
    }

    /// Lets time pass until something is due.
    pub(crate) fn pass_until_due(&mut self) {
        let _ = self.poll();
        let due = self.execution().next_due().unwrap();
        self.now = self.now.max(due);
    }

    pub(crate) fn outcome(&mut self) -> Option<Ended> {
        let _ = self.poll();
        self.execution().outcome()
    }

    /// What the run gave.
    pub(crate) fn output(&mut self) -> Value {
        match self.outcome() {
            Some(Ended::Completed(output)) => output,
            other => panic!("{other:?}\n{:#?}", self.pending_drafts()),
        }
    }

    /// What the run failed with.
    pub(crate) fn error(&mut self) -> Error {
        match self.outcome() {
            Some(Ended::Failed(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn ended(&self) -> bool {
        self.history.state().is_some_and(RunState::is_terminal)
    }

    /// The types of the entry number `n`.
    pub(crate) fn types(&self, n: usize) -> Vec<Type> {
        self.log[n].iter().map(|event| event.event_type).collect()
    }

    /// The data of the events of a type.
    pub(crate) fn data(&self, event_type: Type) -> Vec<Map<String, Value>> {
        let events = self.log.iter().flatten().filter(|event| event.event_type == event_type);
        events.map(|event| event.event_data.clone()).collect()
    }

    /// The id that the first event of this type is about.
    pub(crate) fn id_of(&self, event_type: Type) -> Name {
        let event = self.log.iter().flatten().find(|event| event.event_type == event_type);
        event.unwrap().correlation_id.clone()
    }

    /// How often an event of this type is in the log.
    pub(crate) fn count(&self, event_type: Type) -> usize {
        self.data(event_type).len()
    }
}
