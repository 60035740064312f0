//! Work on the world, done until the log has its result.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    Error, Retry,
    engine::{Engine, Handle, bell::StepBell, command::Entity, step::StepRecord, step::Turn},
    execution::drop_quietly,
    json,
};

/// A step: see [`Ctx::step`][crate::Ctx::step].
#[must_use = "a step does nothing unless it is awaited"]
pub struct Step<F, Fut> {
    engine: Arc<Engine>,
    name: String,
    input: Result<Option<Value>, Error>,
    retry: Retry,
    code: F,
    /// Calls it. Were it called by a bound on `F`, the compiler could not show of many a workflow that it is `Send`.
    call: fn(&mut F) -> Fut,
    attempt: Option<Attempt<Fut>>,
    state: State,
}

enum State {
    New,
    Asked(Handle),
    Over,
}

struct Attempt<Fut> {
    running: Pin<Box<Fut>>,
    bell: Arc<StepBell>,
    waker: Waker,
}

impl<F, Fut> Step<F, Fut> {
    pub(crate) fn new(engine: &Arc<Engine>, name: String, code: F, call: fn(&mut F) -> Fut) -> Self {
        Self {
            engine: Arc::clone(engine),
            name,
            input: Ok(None),
            retry: Retry::default(),
            code,
            call,
            attempt: None,
            state: State::New,
        }
    }

    /// How often it is tried, and how long it rests in between; see [`Retry`] for the default.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// What people see as its input in the log. The code takes what it needs from where it stands.
    pub fn input(mut self, input: &(impl Serialize + ?Sized)) -> Self {
        self.input = json::write("input", input).map(Some);
        self
    }

    /// Begins an attempt; an error if that panics.
    fn start(&mut self, slot: usize) -> Result<(), Error> {
        let (code, call) = (&mut self.code, self.call);
        let call = || catch_unwind(AssertUnwindSafe(|| Box::pin(call(code))));
        let running = self.engine.in_step(slot, call).map_err(|thrown| Error::panicked(&*thrown))?;
        let bell = StepBell::new(Arc::clone(&self.engine.bell), slot);
        let waker = Waker::from(Arc::clone(&bell));
        self.attempt = Some(Attempt { running, bell, waker });
        Ok(())
    }

    /// Lets go of the attempt, which may have code of the user to run.
    fn stop(&mut self, slot: usize) {
        if let Some(attempt) = self.attempt.take() {
            self.engine.in_step(slot, || drop_quietly(attempt));
        }
    }
}

impl<T, E, Fut> Attempt<Fut>
where
    Fut: Future<Output = Result<T, E>>,
    T: Serialize,
    E: Into<Error>,
{
    fn poll(&mut self) -> Poll<Result<Value, Error>> {
        self.bell.heard();
        let mut cx = Context::from_waker(&self.waker);
        let running = self.running.as_mut();
        let poll = || match running.poll(&mut cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Ready(Ok(value)) => Poll::Ready(json::write("result", &value)),
        };
        catch_unwind(AssertUnwindSafe(poll))
            .unwrap_or_else(|thrown| Poll::Ready(Err(Error::panicked(&*thrown))))
    }
}

impl<F, Fut, T, E> Future for Step<F, Fut>
where
    Fut: Future<Output = Result<T, E>>,
    T: Serialize + DeserializeOwned,
    E: Into<Error>,
{
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let State::New = this.state {
            this.state = State::Over;
            let input = std::mem::replace(&mut this.input, Ok(None))?;
            let step = StepRecord::new(std::mem::take(&mut this.name), input);
            this.state = State::Asked(Handle::issue(&this.engine, Entity::Step(step))?);
        }
        let State::Asked(handle) = &this.state else { return Poll::Pending };
        let slot = handle.slot;
        loop {
            let end = match this.engine.turn(slot, cx.waker()) {
                Turn::Wait => return Poll::Pending,
                Turn::Return(result) => {
                    this.stop(slot);
                    if let State::Asked(handle) = std::mem::replace(&mut this.state, State::Over) {
                        handle.done();
                    }
                    return Poll::Ready(result.and_then(|value| json::read("result", value)));
                }
                Turn::Start => match this.start(slot) {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                },
                Turn::Run => match &mut this.attempt {
                    Some(attempt) => match this.engine.in_step(slot, || attempt.poll()) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(end) => end,
                    },
                    None => Err(Error::retryable("the attempt was lost")),
                },
            };
            this.stop(slot);
            this.engine.finish(slot, end, &this.retry);
        }
    }
}

// What is pinned is in a box of its own.
impl<F, Fut> Unpin for Step<F, Fut> {}

impl<F, Fut> Drop for Step<F, Fut> {
    fn drop(&mut self) {
        if let State::Asked(handle) = &self.state {
            let slot = handle.slot;
            self.stop(slot);
        }
    }
}
