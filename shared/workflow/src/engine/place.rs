//! Where code of the user runs: only what the workflow's own code does is replayed.

use std::thread;

use ledgerline_event::Millis;

use super::{Engine, State, command::Entity, seed::Stream};
use crate::Error;

impl State {
    fn place(&self) -> Stream {
        match self.inside {
            _ if self.polled_by != Some(thread::current().id()) => Stream::Elsewhere,
            Some(slot) => Stream::Step(slot),
            None => Stream::Code,
        }
    }

    pub(super) fn check_place(&self) -> Result<(), Error> {
        let wrong = match self.place() {
            Stream::Code => return Ok(()),
            Stream::Step(slot) => format!("inside of {}", self.commands[slot].entity.describe()),
            Stream::Elsewhere => "outside of the workflow's own code".into(),
        };
        let message = format!("the context was used {wrong}, where nothing is replayed");
        Err(Error::fatal(message).code("misplaced"))
    }

    /// The stream that the caller draws from, and where it is in it.
    fn draw(&mut self) -> (Stream, u64) {
        let stream = self.place();
        let counter = match stream {
            Stream::Code => &mut self.drawn,
            Stream::Elsewhere => &mut self.drawn_elsewhere,
            Stream::Step(slot) => match &mut self.commands[slot].entity {
                Entity::Step(step) => &mut step.drawn,
                Entity::Wait(_) | Entity::Hook(_) => &mut self.drawn_elsewhere,
            },
        };
        *counter += 1;
        (stream, *counter)
    }
}

impl Engine {
    pub(crate) fn now(&self) -> Millis {
        let mut state = self.lock();
        state.time_read = state.time_read.max(Some(state.now));
        state.now
    }

    pub(crate) fn random(&self) -> u64 {
        let mut state = self.lock();
        let (stream, counter) = state.draw();
        state.seed.number(stream, counter)
    }

    pub(crate) fn id(&self) -> String {
        let mut state = self.lock();
        let (stream, counter) = state.draw();
        state.seed.id(stream, counter, state.now).to_string()
    }

    /// Runs code of the workflow: what it asks for gets a place.
    pub(crate) fn in_code<R>(&self, run: impl FnOnce() -> R) -> R {
        self.lock().polled_by = Some(thread::current().id());
        let result = run();
        self.lock().polled_by = None;
        result
    }

    /// Runs code of a step.
    pub(crate) fn in_step<R>(&self, slot: usize, run: impl FnOnce() -> R) -> R {
        let outer = self.lock().inside.replace(slot);
        let result = run();
        self.lock().inside = outer;
        result
    }
}
