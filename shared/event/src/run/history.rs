//! The fold of a run's log.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::{
    Hook, HookState, Illegal, Run, RunState, Step, StepState, Wait, WaitOutcome, WaitState,
    change::{Change, Lifecycle, RunChange},
};
use crate::{LogDraft, LogEvent, Millis, Name, RunEventType};

/// The run and its entities, folded from the log.
///
/// It keeps the fields that the API shows. Inputs of steps, payloads of hooks and the data of events stay in the log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunHistory {
    run: Option<Run>,
    steps: InOrder<Step>,
    hooks: InOrder<Hook>,
    waits: InOrder<Wait>,
    /// The sent events that waits have taken.
    taken_events: HashSet<Name>,
    last_at: Option<Millis>,
}

/// The steps, hooks or waits of a run: in the order of their creation, and by id.
#[derive(Clone, Debug, PartialEq)]
pub struct InOrder<T> {
    items: Vec<T>,
    positions: HashMap<String, usize>,
}

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        Self { items: Vec::new(), positions: HashMap::new() }
    }
}

impl<T> InOrder<T> {
    /// The entity with this id.
    pub fn get(&self, id: &str) -> Option<&T> {
        self.positions.get(id).and_then(|position| self.items.get(*position))
    }

    /// All entities.
    pub fn as_slice(&self) -> &[T] {
        &self.items
    }

    /// All entities, one by one.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    fn get_mut(&mut self, id: &str) -> Option<&mut T> {
        self.positions.get(id).and_then(|position| self.items.get_mut(*position))
    }

    fn push(&mut self, id: &Name, item: T) {
        self.positions.insert(id.as_str().to_owned(), self.items.len());
        self.items.push(item);
    }
}

impl<'a, T> IntoIterator for &'a InOrder<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl RunHistory {
    /// The history of an empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// The history of a log.
    pub fn of<'a>(log: impl IntoIterator<Item = &'a LogEvent>) -> Result<Self, Illegal> {
        let mut history = Self::default();
        for event in log {
            history.apply(event)?;
        }
        Ok(history)
    }

    /// Applies the next event. An illegal event changes nothing.
    pub fn apply(&mut self, event: &LogEvent) -> Result<(), Illegal> {
        let (event_type, id) = (event.event_type, &event.correlation_id);
        let run = self.run.as_ref().map(|run| (&run.run_id, run.state));
        match Change::of(event_type) {
            Change::Run(change) => {
                let state = run_after(run, change, event_type, id)?;
                match &mut self.run {
                    Some(run) => run.apply(change, state, event),
                    None => self.run = Some(Run::created(event)),
                }
            }
            Change::Step(change) => {
                let before = self.steps.get(id).map(|step| step.state);
                let state = after(run, before, change, event_type, id)?;
                match self.steps.get_mut(id) {
                    Some(step) => step.apply(change, state, event),
                    None => self.steps.push(id, Step::created(event)),
                }
            }
            Change::Hook(change) => {
                let before = self.hooks.get(id).map(|hook| hook.state);
                let state = after(run, before, change, event_type, id)?;
                match self.hooks.get_mut(id) {
                    Some(hook) => hook.apply(change, state, event),
                    None => self.hooks.push(id, Hook::created(state, event)),
                }
            }
            Change::Wait(change) => {
                let before = self.waits.get(id).map(|wait| wait.state);
                let state = after(run, before, change, event_type, id)?;
                match self.waits.get_mut(id) {
                    Some(wait) => {
                        wait.apply(change, state, event);
                        self.taken_events.extend(wait.event_id.clone());
                    }
                    None => self.waits.push(id, Wait::created(event)),
                }
            }
        }
        self.last_at = self.last_at.max(Some(event.timestamp));
        Ok(())
    }

    /// Checks that `draft` can be the next event.
    pub fn check(&self, draft: &LogDraft) -> Result<(), Illegal> {
        self.check_all([draft])
    }

    /// Checks that `drafts` can be the next events, one after the other.
    pub fn check_all<'a>(&self, drafts: impl IntoIterator<Item = &'a LogDraft>) -> Result<(), Illegal> {
        let mut run = self.run.as_ref().map(|run| (&run.run_id, run.state));
        // The states of the entities that the drafts change; no others are copied.
        let mut steps: HashMap<&str, StepState> = HashMap::new();
        let mut hooks: HashMap<&str, HookState> = HashMap::new();
        let mut waits: HashMap<&str, WaitState> = HashMap::new();
        for draft in drafts {
            let (event_type, id) = (draft.event_type, &draft.correlation_id);
            let key = id.as_str();
            match Change::of(event_type) {
                Change::Run(change) => {
                    let state = run_after(run, change, event_type, id)?;
                    run = Some((run.map_or(id, |(id, _)| id), state));
                }
                Change::Step(change) => {
                    let own = || self.steps.get(key).map(|step| step.state);
                    let before = steps.get(key).copied().or_else(own);
                    steps.insert(key, after(run, before, change, event_type, id)?);
                }
                Change::Hook(change) => {
                    let own = || self.hooks.get(key).map(|hook| hook.state);
                    let before = hooks.get(key).copied().or_else(own);
                    hooks.insert(key, after(run, before, change, event_type, id)?);
                }
                Change::Wait(change) => {
                    let own = || self.waits.get(key).map(|wait| wait.state);
                    let before = waits.get(key).copied().or_else(own);
                    waits.insert(key, after(run, before, change, event_type, id)?);
                }
            }
        }
        Ok(())
    }

    /// The run; `None` if the log is empty.
    pub fn run(&self) -> Option<&Run> {
        self.run.as_ref()
    }

    /// The state of the run; `None` if the log is empty.
    pub fn state(&self) -> Option<RunState> {
        self.run.as_ref().map(|run| run.state)
    }

    /// Its steps.
    pub fn steps(&self) -> &InOrder<Step> {
        &self.steps
    }

    /// Its hooks.
    pub fn hooks(&self) -> &InOrder<Hook> {
        &self.hooks
    }

    /// Its waits.
    pub fn waits(&self) -> &InOrder<Wait> {
        &self.waits
    }

    /// Whether a wait of the run has taken this sent event.
    pub fn has_had(&self, event_id: &Name) -> bool {
        self.taken_events.contains(event_id)
    }

    /// The time of the last event; the next event may not be earlier.
    pub fn last_at(&self) -> Option<Millis> {
        self.last_at
    }

    /// The steps that have not ended; none once the run has ended.
    pub fn open_steps(&self) -> impl Iterator<Item = &Step> {
        self.while_running(&self.steps).filter(|step| !step.state.is_terminal())
    }

    /// The hooks that take payloads; none once the run has ended.
    pub fn active_hooks(&self) -> impl Iterator<Item = &Hook> {
        self.while_running(&self.hooks).filter(|hook| !hook.state.is_terminal())
    }

    /// The waits that are not over; none once the run has ended.
    pub fn open_waits(&self) -> impl Iterator<Item = &Wait> {
        self.while_running(&self.waits).filter(|wait| !wait.state.is_terminal())
    }

    /// The due times of the run, by the id of the wait or step: the ends of sleeps, the timeouts of other waits, and the next
    /// attempts at steps.
    pub fn open_timers(&self) -> impl Iterator<Item = (&Name, Millis)> {
        let retries = self.open_steps().filter_map(|step| Some((&step.step_id, step.retry_after?)));
        let waits = self.open_waits().filter_map(|wait| Some((&wait.wait_id, wait.target.due()?)));
        retries.chain(waits)
    }

    /// The events that close everything that is open; they are appended just before the run's last event.
    pub fn closings(&self) -> Vec<LogDraft> {
        let draft = |event_type, id: &Name, data: Value| LogDraft {
            event_type,
            correlation_id: id.clone(),
            event_data: if let Value::Object(data) = data { data } else { Map::new() },
        };
        let abandoned = json!({"error": "abandoned: the run ended before it", "errorCode": "abandoned"});
        let over = json!({ "outcome": WaitOutcome::Abandoned });
        let steps =
            self.open_steps().map(|step| draft(RunEventType::StepFailed, &step.step_id, abandoned.clone()));
        let hooks =
            self.active_hooks().map(|hook| draft(RunEventType::HookDisposed, &hook.hook_id, Value::Null));
        let waits =
            self.open_waits().map(|wait| draft(RunEventType::WaitCompleted, &wait.wait_id, over.clone()));
        steps.chain(hooks).chain(waits).collect()
    }

    /// `items` if the run is running, and none otherwise.
    fn while_running<'a, T>(&self, items: &'a InOrder<T>) -> impl Iterator<Item = &'a T> + use<'a, T> {
        let running = self.state() == Some(RunState::Running);
        items.iter().take(if running { usize::MAX } else { 0 })
    }
}

/// The run's state after `change`. A log belongs to one run: an event of another run is illegal.
fn run_after(
    run: Option<(&Name, RunState)>,
    change: RunChange,
    event_type: RunEventType,
    id: &Name,
) -> Result<RunState, Illegal> {
    match run {
        Some((own, _)) if own != id && change != RunChange::Created => {
            Err(Illegal::of::<RunState>(event_type, Some(id), None, change))
        }
        Some((own, state)) => RunState::after(Some(state), change)
            .ok_or_else(|| Illegal::of(event_type, Some(own), Some(state), change)),
        None => RunState::after(None, change)
            .ok_or_else(|| Illegal::of::<RunState>(event_type, None, None, change)),
    }
}

/// The state of a step, hook or wait after `change`, which can happen only while the run is running.
fn after<S: Lifecycle>(
    run: Option<(&Name, RunState)>,
    before: Option<S>,
    change: S::Change,
    event_type: RunEventType,
    id: &Name,
) -> Result<S, Illegal> {
    if run.is_none_or(|(_, state)| state != RunState::Running) {
        return Err(Illegal::unless_running(event_type, run));
    }
    S::after(before, change).ok_or_else(|| Illegal::of(event_type, Some(id), before, change))
}
