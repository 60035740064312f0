//! The context: everything that a workflow does through it is recorded in the log and replayed.

use std::{future::Future, sync::Arc, time::Duration};

use ledgerline_engine::{Due, Engine};
use ledgerline_event::{Millis, Name};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Error, NewHook, Services, Sleep, Step, WaitForEvent,
    waits::{Ending, WaitForEnd},
};

/// Through the context a workflow does everything that must be the same at a replay.
///
/// A clone is the same context. Only the workflow's own code may issue commands: code inside a step and spawned tasks are
/// not replayed, so a command there is an error.
#[derive(Clone)]
pub struct Ctx {
    engine: Arc<Engine>,
    services: Option<Arc<Services>>,
}

impl Ctx {
    pub(crate) fn new(engine: Arc<Engine>, services: Option<Arc<Services>>) -> Self {
        Self { engine, services }
    }

    /// The services of the runner; `None` if an [`Execution`][crate::Execution] was made without a runner.
    pub(crate) fn services(&self) -> Option<&Arc<Services>> {
        self.services.as_ref()
    }

    /// A step is work on the world: a request, a write, a calculation that takes long. Once the log has its result, the
    /// step never runs again. If the process dies before that, it runs again: a step runs *at least* once and should
    /// be idempotent.
    ///
    /// The step's code may borrow from the workflow. A replay does not repeat changes that it makes there: it repeats only
    /// the result, which the log holds as JSON. After an error the step is retried as [`Step::retry`] says, unless the
    /// error is [fatal][Error::fatal]; a panic is an error.
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

    /// Sleeps for minutes or for months; a long sleep needs no process.
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

    /// Sleeps until `time`. If `time` has passed, the sleep is recorded, too, and ends at once.
    pub fn sleep_until(&self, time: Millis) -> Sleep {
        Sleep::new(&self.engine, Due::At(time))
    }

    /// Waits for a sent event with this name.
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

    /// Waits until a task or a job has ended.
    pub(crate) fn wait_for_end(&self, what: Ending) -> WaitForEnd {
        WaitForEnd::new(&self.engine, what)
    }

    /// A hook: a point of the run to which people and programs that know its token send payloads. If another hook has the
    /// token, the error has the code `hook_conflict`. A hook exists until it is disposed of, dropped, or the run ends.
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
        self.engine.run_id()
    }
}
