//! The side of the engine that the futures of the context hold.

use std::{
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use ledgerline_event::Millis;
use serde_json::{Map, Value};

use crate::{
    Error, Retry,
    command::Entity,
    engine::Engine,
    hook::HookRecord,
    step::{StepRecord, StepTurn},
    wait::WaitRecord,
    wake_queue::StepWaker,
};

/// The object of a wait.
#[derive(Clone, Debug, PartialEq)]
pub enum WaitTarget {
    /// A time: a sleep.
    Time,
    /// A sent event.
    Event {
        /// Its name.
        name: String,
        /// Its match contains this object.
        criteria: Value,
        /// The wait ignores events that were sent before this time.
        since: Option<Millis>,
    },
    /// The end of a task, by its request id.
    Task(String),
    /// The end of a job, by its id.
    Job(String),
}

/// When a wait is over even if nothing comes.
#[derive(Clone, Copy, Debug)]
pub enum Due {
    /// Never.
    Never,
    /// At this time.
    At(Millis),
    /// This long after the code asked for it.
    After(Duration),
}

/// A command that the code has issued, held by the future that waits for it. If it is dropped before
/// [`done`][Self::done], the command is abandoned: the execution appends the event that closes it.
pub struct CommandHandle {
    engine: Arc<Engine>,
    slot: usize,
    done: bool,
}

impl Engine {
    /// Issues a step. This and the other commands are errors outside of the workflow's own code.
    pub fn issue_step(self: &Arc<Self>, name: String, input: Option<Value>) -> Result<CommandHandle, Error> {
        self.handle(Entity::Step(StepRecord::new(name, input)))
    }

    /// Issues a wait.
    pub fn issue_wait(self: &Arc<Self>, target: WaitTarget, due: Due) -> Result<CommandHandle, Error> {
        self.handle(Entity::Wait(WaitRecord::new(target, due)))
    }

    /// Issues a hook; without a token the driver makes one.
    pub fn issue_hook(
        self: &Arc<Self>,
        token: Option<String>,
        metadata: Option<Value>,
    ) -> Result<CommandHandle, Error> {
        self.handle(Entity::Hook(HookRecord::new(token, metadata)))
    }

    fn handle(self: &Arc<Self>, entity: Entity) -> Result<CommandHandle, Error> {
        let slot = self.issue(entity)?;
        Ok(CommandHandle { engine: Arc::clone(self), slot, done: false })
    }
}

impl CommandHandle {
    /// The future has returned: its command is not abandoned.
    pub fn done(mut self) {
        self.done = true;
    }

    /// What the future of a step does next.
    pub fn step_turn(&self, waker: &Waker) -> StepTurn {
        self.engine.change(self.slot, |command, wakers, progress| {
            let Entity::Step(step) = &mut command.entity else { return StepTurn::Wait };
            let turn = step.turn(progress);
            command.register(waker, wakers);
            turn
        })
    }

    /// The waker for the next attempt at a step.
    pub fn step_waker(&self) -> Arc<StepWaker> {
        StepWaker::new(Arc::clone(&self.engine.wake_queue), self.slot)
    }

    /// Runs code of the step, which may issue no commands.
    pub fn run_step_code<R>(&self, run: impl FnOnce() -> R) -> R {
        self.engine.run_step_code(self.slot, run)
    }

    /// The attempt that ran in this process has ended with `result`.
    pub fn finish_attempt(&self, result: Result<Value, Error>, retry: &Retry) {
        self.engine.change(self.slot, |command, _, progress| {
            if let Entity::Step(step) = &mut command.entity {
                step.finish(result, retry, progress.clock);
            }
        });
    }

    /// Ready once the log has the wait: no end that comes from then on is missed.
    pub fn poll_wait_registered(&self, waker: &Waker) -> Poll<()> {
        self.engine.poll(self.slot, waker, |entity| match entity {
            Entity::Wait(wait) => wait.is_registered().then_some(()),
            Entity::Step(_) | Entity::Hook(_) => None,
        })
    }

    /// The `eventData` of the event that completed the wait.
    pub fn poll_wait_completed(&self, waker: &Waker) -> Poll<Map<String, Value>> {
        self.engine.poll(self.slot, waker, |entity| match entity {
            Entity::Wait(wait) => wait.take_end(),
            Entity::Step(_) | Entity::Hook(_) => None,
        })
    }

    /// The token of the hook once the log has it; an error if another hook has the token.
    pub fn poll_hook_created(&self, waker: &Waker) -> Poll<Result<String, Error>> {
        self.engine.poll(self.slot, waker, |entity| match entity {
            Entity::Hook(hook) => hook.created(),
            Entity::Step(_) | Entity::Wait(_) => None,
        })
    }

    /// The next payload of the hook, in the order in which readers began to wait; `None` once the hook is disposed of
    /// and its payloads are read. `reader` is the number of this reader while it waits.
    pub fn poll_payload(
        &self,
        reader: &mut Option<u64>,
        waker: &Waker,
    ) -> Poll<Result<Option<Value>, Error>> {
        if reader.is_none() {
            self.engine.check_scope()?;
        }
        self.engine.change(self.slot, |command, wakers, _| match &mut command.entity {
            Entity::Hook(hook) => hook.read(reader, waker, wakers).map(Ok),
            Entity::Step(_) | Entity::Wait(_) => Poll::Pending,
        })
    }

    /// The reader with this number waits no longer.
    pub fn stop_reading(&self, reader: u64) {
        self.engine.change(self.slot, |command, wakers, _| {
            if let Entity::Hook(hook) = &mut command.entity {
                hook.stop_reading(reader, wakers);
            }
        });
    }

    /// Asks the log to dispose of the hook.
    pub fn dispose_hook(&self) -> Result<(), Error> {
        self.engine.check_scope()?;
        self.engine.abandon(self.slot);
        Ok(())
    }

    /// Ready once the log says that the hook takes no more payloads.
    pub fn poll_hook_disposed(&self, waker: &Waker) -> Poll<()> {
        self.engine.poll(self.slot, waker, |entity| match entity {
            Entity::Hook(hook) => hook.is_disposed().then_some(()),
            Entity::Step(_) | Entity::Wait(_) => None,
        })
    }
}

impl Drop for CommandHandle {
    fn drop(&mut self) {
        if !self.done {
            self.engine.abandon(self.slot);
        }
    }
}
