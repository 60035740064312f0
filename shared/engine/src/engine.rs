//! The state of an execution between two polls of the code: the commands, in the order in which the code issued them.
//! The lock is never held while code of the user is polled, woken or dropped.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    thread::ThreadId,
    time::Duration,
};

use ledgerline_event::{Millis, Name};

use crate::{
    Error,
    command::{Command, CommandIndex, Entity, Interest},
    deterministic_ids::DeterministicIds,
    event_router::EventRouter,
    unread_events::UnreadEvents,
    wake_queue::WakeQueue,
    wakers::Wakers,
};

/// A run's commands, shared by the execution and the futures that its code holds.
pub struct Engine {
    pub(crate) run_id: Name,
    pub(crate) wake_queue: Arc<WakeQueue>,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) ids: DeterministicIds,
    /// The timestamp of the newest event that was delivered.
    pub(crate) now: Millis,
    pub(crate) progress: Progress,
    pub(crate) polling_thread: Option<ThreadId>,
    /// The step whose own code is being polled.
    pub(crate) polled_step: Option<usize>,
    /// How many random numbers and ids the workflow's own code has drawn.
    pub(crate) workflow_draws: u64,
    /// The same for code outside of the workflow, such as a spawned task.
    pub(crate) outside_draws: u64,
    pub(crate) commands: Vec<Command>,
    pub(crate) router: EventRouter,
    /// How many events were delivered.
    pub(crate) delivered: u64,
    /// Events that waits have taken and the code has not read.
    pub(crate) unread: UnreadEvents,
    /// The latest time that the code has read.
    pub(crate) time_read: Option<Millis>,
    // Slots of commands, by what `CommandIndex` says of them.
    pub(crate) to_append: BTreeSet<usize>,
    pub(crate) to_append_at: BTreeSet<(Millis, usize)>,
    pub(crate) starting_at: BTreeSet<(Millis, usize)>,
    pub(crate) open: BTreeSet<usize>,
    pub(crate) with_unread: BTreeSet<usize>,
    pub(crate) running: usize,
}

/// How far the execution has come.
#[derive(Clone, Copy)]
pub(crate) struct Progress {
    /// The driver's clock at the last poll.
    pub(crate) clock: Millis,
    /// All events were delivered and the code waits: attempts may begin.
    pub(crate) caught_up: bool,
}

/// `by` after `from`, rounded up to the next full millisecond.
pub(crate) fn later(from: Millis, by: Duration) -> Millis {
    from.plus(u64::try_from(by.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

impl Engine {
    pub(crate) fn new(run_id: Name) -> Arc<Self> {
        let state = State {
            ids: DeterministicIds::new(&run_id, Millis::MIN),
            now: Millis::MIN,
            progress: Progress { clock: Millis::MIN, caught_up: false },
            polling_thread: None,
            polled_step: None,
            workflow_draws: 0,
            outside_draws: 0,
            commands: Vec::new(),
            router: EventRouter::default(),
            delivered: 0,
            unread: UnreadEvents::default(),
            time_read: None,
            to_append: BTreeSet::new(),
            to_append_at: BTreeSet::new(),
            starting_at: BTreeSet::new(),
            open: BTreeSet::new(),
            with_unread: BTreeSet::new(),
            running: 0,
        };
        Arc::new(Self { run_id, wake_queue: Arc::default(), state: Mutex::new(state) })
    }

    /// The run's id.
    pub fn run_id(&self) -> &Name {
        &self.run_id
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the command in `slot`; wakers are called and dropped once the lock is released.
    pub(crate) fn change<R>(
        &self,
        slot: usize,
        change: impl FnOnce(&mut Command, &mut Wakers, Progress) -> R,
    ) -> R {
        let mut wakers = Wakers::default();
        let result = {
            let state = &mut *self.lock();
            let result = change(&mut state.commands[slot], &mut wakers, state.progress);
            state.reindex(slot);
            result
        };
        wakers.release();
        result
    }

    /// Gives the command the next slot. Only the workflow's own code may issue commands: what a step does is not
    /// replayed.
    pub(crate) fn issue(&self, mut entity: Entity) -> Result<usize, Error> {
        let state = &mut *self.lock();
        state.check_scope()?;
        if let Entity::Wait(wait) = &mut entity {
            wait.fix_due_time(state.now.max(state.progress.clock));
        }
        let slot = state.commands.len();
        let ulid = state.ids.command(slot);
        let id = entity.kind().id_kind().id(ulid);
        let indexed = CommandIndex::default();
        state.commands.push(Command { id, entity, interest: Interest::Awaited, waker: None, indexed });
        state.router.subscribe(ulid, slot);
        state.reindex(slot);
        Ok(slot)
    }

    /// What `take` finds; otherwise the log wakes `waker` when it brings something for the command.
    pub(crate) fn poll<R>(
        &self,
        slot: usize,
        waker: &Waker,
        take: impl FnOnce(&mut Entity) -> Option<R>,
    ) -> Poll<R> {
        self.change(slot, |command, wakers, _| match take(&mut command.entity) {
            Some(result) => Poll::Ready(result),
            None => {
                command.register(waker, wakers);
                Poll::Pending
            }
        })
    }

    /// An error unless the workflow's own code calls.
    pub(crate) fn check_scope(&self) -> Result<(), Error> {
        self.lock().check_scope()
    }

    /// Marks a command as abandoned: the code has dropped its future.
    pub(crate) fn abandon(&self, slot: usize) {
        let mut wakers = Wakers::default();
        {
            let state = &mut *self.lock();
            let command = &mut state.commands[slot];
            command.interest = Interest::Abandoned;
            wakers.drop_later(command.waker.take());
            state.keep_unread(slot);
            state.reindex(slot);
        }
        wakers.release();
    }
}

impl State {
    /// Keeps the event of a wait that the code has dropped, for the next wait that it fits.
    pub(crate) fn keep_unread(&mut self, slot: usize) {
        let Command { id, entity, interest: Interest::Abandoned, .. } = &mut self.commands[slot] else {
            return;
        };
        if let Entity::Wait(wait) = entity
            && let Some((number, event)) = wait.take_unread(id)
        {
            self.unread.keep(number, event);
        }
    }

    /// Brings the sets up to date with the command in `slot`. Call it after each change of a command.
    pub(crate) fn reindex(&mut self, slot: usize) {
        fn replace<K: Ord>(set: &mut BTreeSet<K>, old: Option<K>, new: Option<K>) {
            if old != new {
                old.map(|key| set.remove(&key));
                new.map(|key| set.insert(key));
            }
        }
        let command = &mut self.commands[slot];
        let new = command.index();
        let old = std::mem::replace(&mut command.indexed, new);
        if old == new {
            return;
        }
        let key = |yes: bool| yes.then_some(slot);
        let at = |time: Option<Millis>| time.map(|time| (time, slot));
        replace(&mut self.to_append, key(old.to_append), key(new.to_append));
        replace(&mut self.open, key(old.open), key(new.open));
        replace(&mut self.with_unread, key(old.has_unread), key(new.has_unread));
        replace(&mut self.to_append_at, at(old.to_append_at), at(new.to_append_at));
        replace(&mut self.starting_at, at(old.starting_at), at(new.starting_at));
        self.running = self.running + usize::from(new.running) - usize::from(old.running);
    }
}
