//! What a workflow does through its context is recorded, and replayed.

use std::{future::Future, sync::Arc, time::Duration};

use ledgerline_event::{Millis, Name};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Error, NewHook, Outside, Sleep, Step, WaitForEvent,
    engine::{Engine, wait::Due},
    waiting::{End, WaitForEnd},
};

/// Through it a workflow does everything that must be the same at a replay.
///
/// A clone is the same context. Only the workflow's own code may use it: inside of a step, or in a task
/// that was spawned, nothing is replayed, and what is asked for there is an error.
#[derive(Clone)]
pub struct Ctx {
    engine: Arc<Engine>,
    outside: Option<Arc<Outside>>,
}

impl Ctx {
    pub(crate) fn new(engine: Arc<Engine>, outside: Option<Arc<Outside>>) -> Self {
        Self { engine, outside }
    }

    /// What the workflow may reach outside of its log; nothing, where there is no world around it.
    pub(crate) fn outside(&self) -> Option<&Arc<Outside>> {
        self.outside.as_ref()
    }

    /// Work on the world: a request, a write, a calculation that takes long. When its result is in the
    /// log it never runs again; when a crash comes between, it does. So it runs *at least* once, and should
    /// bear that.
    ///
    /// The code may borrow from the workflow. What it changes there is not replayed: only its result is,
    /// which crosses the log as JSON. An error is tried again as [`Step::retry`] says, unless it is
    /// [fatal][Error::fatal]; a panic is an error.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use ledgerline_workflow::{Ctx, Error, Retry};
    /// use serde_json::json;
    ///
    /// async fn order(ctx: Ctx, item: String) -> Result<u32, Error> {
    ///     let reserved: u32 = ctx.step("reserve", || reserve(&item)).await?;
    ///     ctx.step("charge", || async {
    ///         match reserved {
    ///             0 => Err(Error::fatal("nothing was reserved").code("sold_out")),
    ///             amount => Ok(amount * 3),
    ///         }
    ///     })
    ///     .retry(Retry::times(5).backoff(Duration::from_secs(1), 2.0, Duration::from_secs(60)))
    ///     .input(&json!({"item": item}))
    ///     .await
    /// }
    ///
    /// async fn reserve(item: &str) -> Result<u32, std::num::ParseIntError> {
    ///     item.parse()
    /// }
    /// ```
    pub fn step<F, Fut, T, E>(&self, name: impl Into<String>, code: F) -> Step<F, Fut>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: Into<Error>,
    {
        Step::new(&self.engine, name.into(), code, |code| code())
    }

    /// Sleeps, in this process or in none, for minutes or for months.
    ///
    /// ```
    /// # use {ledgerline_workflow::{Ctx, Error}, std::time::Duration};
    /// async fn remind(ctx: Ctx, _: ()) -> Result<(), Error> {
    ///     ctx.sleep(Duration::from_secs(3 * 24 * 3600)).await
    /// }
    /// ```
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(&self.engine, Due::After(duration))
    }

    /// Sleeps until then. A time that has passed is recorded, too, and over at once.
    pub fn sleep_until(&self, time: Millis) -> Sleep {
        Sleep::new(&self.engine, Due::At(time))
    }

    /// Waits for an event that a sender sends to runs under this name.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use ledgerline_workflow::{Ctx, Error};
    /// use serde_json::json;
    ///
    /// async fn paid(ctx: Ctx, invoice: String) -> Result<bool, Error> {
    ///     let payment = ctx
    ///         .wait_for_event("payment.received")
    ///         .matching(json!({"invoiceId": invoice}))
    ///         .timeout(Duration::from_secs(72 * 3600))
    ///         .await;
    ///     match payment {
    ///         Ok(payment) => Ok(payment.data["amount"] == 99),
    ///         Err(error) if error.is_timeout() => Ok(false),
    ///         Err(error) => Err(error),
    ///     }
    /// }
    /// ```
    pub fn wait_for_event(&self, name: impl Into<String>) -> WaitForEvent {
        WaitForEvent::new(&self.engine, name.into())
    }

    /// Waits until a task or a job has ended, and gives what the log says about that.
    pub(crate) fn wait_for_end(&self, what: End) -> WaitForEnd {
        WaitForEnd::new(&self.engine, what)
    }

    /// A point where people or programs send something in, knowing its token. A token that another hook
    /// has is an error with the code `hook_conflict`. It is there until it is disposed of, dropped, or the
    /// run ends.
    ///
    /// ```
    /// use ledgerline_workflow::{Ctx, Error};
    /// use serde_json::json;
    ///
    /// async fn approval(ctx: Ctx, document: String) -> Result<bool, Error> {
    ///     let hook = ctx.hook().metadata(json!({"document": document})).await?;
    ///     let token = hook.token();
    ///     ctx.step("ask", || async move { ask(token) }).await?;
    ///     let approved: bool = hook.next().await?;
    ///     hook.dispose().await?;
    ///     Ok(approved)
    /// }
    ///
    /// fn ask(token: &str) -> Result<(), Error> {
    ///     Ok(println!("Say yes or no at /api/hooks/{token}"))
    /// }
    /// ```
    pub fn hook(&self) -> NewHook {
        NewHook::new(&self.engine)
    }

    /// The time for the workflow: the timestamp of the newest log event that it has seen.
    pub fn now(&self) -> Millis {
        self.engine.now()
    }

    /// A pseudo-random number, the same at every replay.
    pub fn random(&self) -> u64 {
        self.engine.random()
    }

    /// A new ULID, the same at every replay. In a step it is also the same at every attempt, and so makes
    /// a good idempotency key.
    pub fn id(&self) -> String {
        self.engine.id()
    }

    /// The run's id.
    pub fn run_id(&self) -> &Name {
        &self.engine.run_id
    }
}
