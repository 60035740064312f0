//! The future of a step: it runs attempts until the log has the result.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use ledgerline_engine::{CommandHandle, Engine, StepTurn, StepWaker, catch_panic, drop_quietly};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Error, Retry, json};

/// A step: see [`Ctx::step`][crate::Ctx::step].
#[must_use = "a step does nothing unless it is awaited"]
pub struct Step<F, Fut> {
    engine: Arc<Engine>,
    name: String,
    input: Result<Option<Value>, Error>,
    retry: Retry,
    code: F,
    /// Calls `code`. With a bound on `F` instead, the compiler could not prove that some workflows are `Send`.
    call: fn(&mut F) -> Fut,
    attempt: Option<Attempt<Fut>>,
    state: State,
}

enum State {
    NotIssued,
    Issued(CommandHandle),
    Returned,
}

struct Attempt<Fut> {
    running: Pin<Box<Fut>>,
    step_waker: Arc<StepWaker>,
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
            state: State::NotIssued,
        }
    }

    /// How often it is tried, and how long it pauses between two attempts; see [`Retry`] for the default.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The input that the log shows. The step's code does not get it: the code borrows or captures what it needs.
    pub fn input(mut self, input: &(impl Serialize + ?Sized)) -> Self {
        self.input = json::write("input", input).map(Some);
        self
    }

    /// Drops the attempt, which may run code of the user.
    fn stop(&mut self) {
        if let (Some(attempt), State::Issued(handle)) = (self.attempt.take(), &self.state) {
            handle.run_step_code(|| drop_quietly(attempt));
        }
    }
}

impl<Fut> Attempt<Fut> {
    /// Begins an attempt; an error if that panics.
    fn start(handle: &CommandHandle, call: impl FnOnce() -> Fut) -> Result<Self, Error> {
        let running = handle.run_step_code(|| catch_panic(|| Box::pin(call())))?;
        let step_waker = handle.step_waker();
        let waker = Waker::from(Arc::clone(&step_waker));
        Ok(Self { running, step_waker, waker })
    }
}

impl<T, E, Fut> Attempt<Fut>
where
    Fut: Future<Output = Result<T, E>>,
    T: Serialize,
    E: Into<Error>,
{
    fn poll(&mut self) -> Poll<Result<Value, Error>> {
        self.step_waker.reset();
        let mut cx = Context::from_waker(&self.waker);
        let running = self.running.as_mut();
        let poll = || match running.poll(&mut cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Ready(Ok(value)) => Poll::Ready(json::write("result", &value)),
        };
        catch_panic(poll).unwrap_or_else(|panic| Poll::Ready(Err(panic)))
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
        if let State::NotIssued = this.state {
            this.state = State::Returned;
            let input = std::mem::replace(&mut this.input, Ok(None))?;
            this.state = State::Issued(this.engine.issue_step(std::mem::take(&mut this.name), input)?);
        }
        loop {
            let State::Issued(handle) = &this.state else { return Poll::Pending };
            let end = match handle.step_turn(cx.waker()) {
                StepTurn::Wait => return Poll::Pending,
                StepTurn::Return(result) => {
                    this.stop();
                    if let State::Issued(handle) = std::mem::replace(&mut this.state, State::Returned) {
                        handle.done();
                    }
                    return Poll::Ready(result.and_then(|value| json::read("result", value)));
                }
                StepTurn::Start => match Attempt::start(handle, || (this.call)(&mut this.code)) {
                    Ok(attempt) => {
                        this.attempt = Some(attempt);
                        continue;
                    }
                    Err(error) => Err(error),
                },
                StepTurn::Run => match &mut this.attempt {
                    Some(attempt) => match handle.run_step_code(|| attempt.poll()) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(end) => end,
                    },
                    None => Err(Error::retryable("the attempt was lost")),
                },
            };
            this.stop();
            if let State::Issued(handle) = &this.state {
                handle.finish_attempt(end, &this.retry);
            }
        }
    }
}

// The pinned future is in a box of its own.
impl<F, Fut> Unpin for Step<F, Fut> {}

impl<F, Fut> Drop for Step<F, Fut> {
    fn drop(&mut self) {
        self.stop();
    }
}
