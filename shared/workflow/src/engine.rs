//! What log and code have come to, between two polls of the code: the commands, by the order in which
//! the code asked for them. Pure: no IO, no clock; `now` comes in. The lock is never held while code of
//! the user is polled, woken or dropped.

pub(crate) mod bell;
pub(crate) mod command;
mod consumer;
pub(crate) mod draft;
mod drive;
pub(crate) mod hook;
mod place;
mod seed;
pub(crate) mod step;
pub(crate) mod unread;
pub(crate) mod wait;
mod wakers;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    thread::ThreadId,
    time::Duration,
};

use ledgerline_event::{Millis, Name};
use serde_json::Value;

use self::{
    bell::Bell,
    command::{Command, Entity, Facts},
    consumer::Consumer,
    seed::Seed,
    step::Turn,
    unread::UnreadEvents,
    wakers::Wakers,
};
use crate::{Error, Retry};

/// A run's commands, shared by the execution and the futures that its code holds.
pub(crate) struct Engine {
    pub(crate) run_id: Name,
    pub(crate) bell: Arc<Bell>,
    state: Mutex<State>,
}

struct State {
    seed: Seed,
    /// When the last event that was delivered had happened.
    now: Millis,
    pulse: Pulse,
    polled_by: Option<ThreadId>,
    /// The step whose own code is being polled.
    inside: Option<usize>,
    drawn: u64,
    drawn_elsewhere: u64,
    commands: Vec<Command>,
    consumer: Consumer,
    /// How many events were delivered.
    delivered: u64,
    /// What waits have taken and the code has not read.
    unread: UnreadEvents,
    /// The hooks that left payloads which the code has not read.
    with_unread: BTreeSet<usize>,
    /// The latest time that the code has read.
    time_read: Option<Millis>,
    wanting: BTreeSet<usize>,
    wanting_at: BTreeSet<(Millis, usize)>,
    starting_at: BTreeSet<(Millis, usize)>,
    open: BTreeSet<usize>,
    running: usize,
}

/// Where the execution is.
#[derive(Clone, Copy)]
pub(crate) struct Pulse {
    /// When it was polled last.
    pub(crate) clock: Millis,
    /// All events were delivered and the code is quiet: attempts may begin.
    pub(crate) live: bool,
}

/// `by` after `from`, to the next full millisecond.
pub(crate) fn later(from: Millis, by: Duration) -> Millis {
    from.plus(u64::try_from(by.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

impl Engine {
    pub(crate) fn new(run_id: Name) -> Arc<Self> {
        let state = State {
            seed: Seed::new(&run_id, Millis::MIN),
            now: Millis::MIN,
            pulse: Pulse { clock: Millis::MIN, live: false },
            polled_by: None,
            inside: None,
            drawn: 0,
            drawn_elsewhere: 0,
            commands: Vec::new(),
            consumer: Consumer::default(),
            delivered: 0,
            unread: UnreadEvents::default(),
            with_unread: BTreeSet::new(),
            time_read: None,
            wanting: BTreeSet::new(),
            wanting_at: BTreeSet::new(),
            starting_at: BTreeSet::new(),
            open: BTreeSet::new(),
            running: 0,
        };
        Arc::new(Self { run_id, bell: Arc::default(), state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the command in `slot`; wakers are handled when the lock is gone.
    fn change<R>(&self, slot: usize, change: impl FnOnce(&mut Command, &mut Wakers, Pulse) -> R) -> R {
        let mut wakers = Wakers::default();
        let result = {
            let state = &mut *self.lock();
            let result = change(&mut state.commands[slot], &mut wakers, state.pulse);
            state.settle(slot);
            result
        };
        wakers.release();
        result
    }

    /// Takes the next place among the commands. Only the workflow's own code may: what a step does is not
    /// replayed.
    fn issue(&self, mut entity: Entity) -> Result<usize, Error> {
        let state = &mut *self.lock();
        state.check_place()?;
        if let Entity::Wait(wait) = &mut entity {
            wait.asked(state.now.max(state.pulse.clock));
        }
        let slot = state.commands.len();
        let ulid = state.seed.command(slot);
        let id = entity.kind().id_kind().id(ulid);
        let indexed = Facts::default();
        state.commands.push(Command { id, entity, abandoned: false, waker: None, indexed });
        state.consumer.subscribe(ulid, slot);
        state.settle(slot);
        Ok(slot)
    }

    /// What `take` finds, or a waking when the log brings something.
    pub(crate) fn poll<R>(
        &self,
        slot: usize,
        waker: &Waker,
        take: impl FnOnce(&mut Entity) -> Option<R>,
    ) -> Poll<R> {
        self.change(slot, |command, wakers, _| match take(&mut command.entity) {
            Some(result) => Poll::Ready(result),
            None => {
                command.wait(waker, wakers);
                Poll::Pending
            }
        })
    }

    /// What the future of a step is to do next.
    pub(crate) fn turn(&self, slot: usize, waker: &Waker) -> Turn {
        self.change(slot, |command, wakers, pulse| {
            let Entity::Step(step) = &mut command.entity else { return Turn::Wait };
            let turn = step.turn(pulse);
            command.wait(waker, wakers);
            turn
        })
    }

    /// The attempt at a step that ran here has come to its end.
    pub(crate) fn finish(&self, slot: usize, result: Result<Value, Error>, retry: &Retry) {
        self.change(slot, |command, _, pulse| {
            if let Entity::Step(step) = &mut command.entity {
                step.finish(result, retry, pulse.clock);
            }
        });
    }

    /// Whether the caller is the workflow's own code.
    pub(crate) fn check_place(&self) -> Result<(), Error> {
        self.lock().check_place()
    }

    /// The next payload of a hook; `None`: there will be no more.
    pub(crate) fn read_hook(
        &self,
        slot: usize,
        reader: &mut Option<u64>,
        waker: &Waker,
    ) -> Poll<Result<Option<Value>, Error>> {
        if reader.is_none() {
            self.check_place()?;
        }
        self.change(slot, |command, wakers, _| match &mut command.entity {
            Entity::Hook(hook) => hook.read(reader, waker, wakers).map(Ok),
            Entity::Step(_) | Entity::Wait(_) => Poll::Pending,
        })
    }

    pub(crate) fn stop_reading(&self, slot: usize, reader: u64) {
        self.change(slot, |command, wakers, _| {
            if let Entity::Hook(hook) = &mut command.entity {
                hook.stop_reading(reader, wakers);
            }
        });
    }

    /// Marks a command as abandoned: the code has dropped its future.
    pub(crate) fn abandon(&self, slot: usize) {
        let mut wakers = Wakers::default();
        {
            let state = &mut *self.lock();
            let command = &mut state.commands[slot];
            command.abandoned = true;
            wakers.discard(command.waker.take());
            state.keep_unread(slot);
            state.settle(slot);
        }
        wakers.release();
    }
}

impl Command {
    fn wait(&mut self, waker: &Waker, wakers: &mut Wakers) {
        if !self.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            wakers.discard(self.waker.replace(waker.clone()));
        }
    }
}

impl State {
    /// Keeps the event of a wait that the code has dropped, for the next wait that it fits.
    fn keep_unread(&mut self, slot: usize) {
        let Command { id, entity, abandoned: true, .. } = &mut self.commands[slot] else { return };
        if let Entity::Wait(wait) = entity
            && let Some((place, event)) = wait.take_unread(id)
        {
            self.unread.keep(place, event);
        }
    }

    /// Brings the sets up to what the command in `slot` now is.
    fn settle(&mut self, slot: usize) {
        fn mark<K: Ord>(set: &mut BTreeSet<K>, old: Option<K>, new: Option<K>) {
            if old != new {
                old.map(|key| set.remove(&key));
                new.map(|key| set.insert(key));
            }
        }
        let command = &mut self.commands[slot];
        let new = command.facts();
        let old = std::mem::replace(&mut command.indexed, new);
        if old == new {
            return;
        }
        let place = |yes: bool| yes.then_some(slot);
        let at = |time: Option<Millis>| time.map(|time| (time, slot));
        mark(&mut self.wanting, place(old.wanting), place(new.wanting));
        mark(&mut self.open, place(old.open), place(new.open));
        mark(&mut self.with_unread, place(old.has_unread), place(new.has_unread));
        mark(&mut self.wanting_at, at(old.wanting_at), at(new.wanting_at));
        mark(&mut self.starting_at, at(old.starting_at), at(new.starting_at));
        self.running = self.running + usize::from(new.running) - usize::from(old.running);
    }
}

/// The place of a future among the commands. Dropped before the future is done, it is abandoned.
pub(crate) struct Handle {
    pub(crate) engine: Arc<Engine>,
    pub(crate) slot: usize,
    done: bool,
}

impl Handle {
    pub(crate) fn issue(engine: &Arc<Engine>, entity: Entity) -> Result<Self, Error> {
        let slot = engine.issue(entity)?;
        Ok(Self { engine: Arc::clone(engine), slot, done: false })
    }

    /// The future has returned.
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.done {
            self.engine.abandon(self.slot);
        }
    }
}
