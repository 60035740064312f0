//! Which code uses the context: only what the workflow's own code does is replayed.

use std::thread;

use ledgerline_event::Millis;

use crate::{
    Error,
    command::Entity,
    engine::{Engine, State},
};

/// The code that uses the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The workflow's own code.
    Workflow,
    /// The code of a step, by its slot. The same at each of its attempts.
    Step(usize),
    /// Code beside the workflow, such as a spawned task: nothing there is replayed.
    Outside,
}

impl State {
    fn scope(&self) -> Scope {
        match self.polled_step {
            _ if self.polling_thread != Some(thread::current().id()) => Scope::Outside,
            Some(slot) => Scope::Step(slot),
            None => Scope::Workflow,
        }
    }

    /// An error unless the workflow's own code calls.
    pub(crate) fn check_scope(&self) -> Result<(), Error> {
        let wrong = match self.scope() {
            Scope::Workflow => return Ok(()),
            Scope::Step(slot) => format!("inside of {}", self.commands[slot].entity.describe()),
            Scope::Outside => "outside of the workflow's own code".into(),
        };
        let message = format!("the context was used {wrong}, where nothing is replayed");
        Err(Error::fatal(message).code("misplaced"))
    }

    /// The caller's scope, and the number of its draw there: each scope counts its own, so that none moves another's.
    fn next_draw(&mut self) -> (Scope, u64) {
        let scope = self.scope();
        let draws = match scope {
            Scope::Workflow => &mut self.workflow_draws,
            Scope::Outside => &mut self.outside_draws,
            Scope::Step(slot) => match &mut self.commands[slot].entity {
                Entity::Step(step) => &mut step.draws,
                Entity::Wait(_) | Entity::Hook(_) => &mut self.outside_draws,
            },
        };
        *draws += 1;
        (scope, *draws)
    }
}

impl Engine {
    /// The time for the workflow: the timestamp of the newest event that was delivered.
    pub fn now(&self) -> Millis {
        let mut state = self.lock();
        state.time_read = state.time_read.max(Some(state.now));
        state.now
    }

    /// A pseudo-random number, the same at every replay.
    pub fn random(&self) -> u64 {
        let mut state = self.lock();
        let (scope, draw) = state.next_draw();
        state.ids.random_number(scope, draw)
    }

    /// A new ULID, the same at every replay.
    pub fn id(&self) -> String {
        let mut state = self.lock();
        let (scope, draw) = state.next_draw();
        state.ids.id(scope, draw, state.now).to_string()
    }

    /// Polls the workflow's own code, which may issue commands meanwhile.
    pub(crate) fn run_workflow_code<R>(&self, run: impl FnOnce() -> R) -> R {
        self.lock().polling_thread = Some(thread::current().id());
        let result = run();
        self.lock().polling_thread = None;
        result
    }

    /// Runs code of the step in `slot`, which may issue no commands.
    pub(crate) fn run_step_code<R>(&self, slot: usize, run: impl FnOnce() -> R) -> R {
        let outer = self.lock().polled_step.replace(slot);
        let result = run();
        self.lock().polled_step = outer;
        result
    }
}
