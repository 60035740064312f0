//! Tasks and jobs that a workflow starts, and events that it sends to other runs, each once and in the run's context.
//!
//! A run records the wait for a task in its log before it starts the task. So the end of the task finds the wait, however
//! soon the task ends.

use std::{
    future::{Future, IntoFuture},
    marker::PhantomData,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use ledgerline_event::{Kind, Name};
use ledgerline_jobs::{JobSubmission, TaskSubmission};
use ledgerline_outbox::ComponentError;
use ledgerline_runs::{EventSubmission, SendingRun};
use ledgerline_store::Fault;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use crate::{
    Ctx, Error, Services, json,
    waits::{Ending, WaitForEnd},
};

/// A task that the workflow waits for: see [`Ctx::task`].
#[must_use = "a task is not started unless it is awaited"]
pub struct Task<T> {
    ctx: Ctx,
    submission: Result<TaskSubmission, Error>,
    timeout: Option<Duration>,
    output: PhantomData<fn() -> T>,
}

/// A job that the workflow waits for: see [`Ctx::job`].
#[must_use = "a job is not started unless it is awaited"]
pub struct Job {
    ctx: Ctx,
    submission: Result<JobSubmission, Error>,
    timeout: Option<Duration>,
}

/// An event for other runs: see [`Ctx::send_event`].
#[must_use = "an event is not sent unless this is awaited"]
pub struct SendEvent {
    ctx: Ctx,
    submission: EventSubmission,
    invalid: Option<Error>,
}

impl Ctx {
    /// Starts a task for a worker, once, and waits for its output. The run needs no process while it waits: use a task for
    /// work that takes longer than a few minutes. If the task fails for good, the code of the error is the task's
    /// error category.
    ///
    /// ```
    /// use ledgerline_workflow::{Ctx, Error};
    /// use serde_json::json;
    ///
    /// async fn report(ctx: Ctx, topic: String) -> Result<String, Error> {
    ///     ctx.task("research", json!({ "topic": topic })).max_attempts(3).await
    /// }
    /// ```
    pub fn task<T: DeserializeOwned>(&self, name: impl Into<String>, input: impl Serialize) -> Task<T> {
        let submission = object("input", &input).map(|input| TaskSubmission {
            name: name.into(),
            input,
            request_id: None,
            timeout_ms: None,
            max_attempts: None,
        });
        Task { ctx: self.clone(), submission, timeout: None, output: PhantomData }
    }

    /// Starts a job, which is tasks that depend on each other: `[{taskId, name, dependsOn?, input?}, …]`. The result is the
    /// job's id once every task is completed; if a task fails for good, the result is an error.
    ///
    /// ```
    /// use ledgerline_workflow::{Ctx, Error};
    /// use serde_json::json;
    ///
    /// async fn nightly(ctx: Ctx, _: ()) -> Result<String, Error> {
    ///     ctx.job(json!([
    ///         { "taskId": "fetch", "name": "fetch" },
    ///         { "taskId": "parse", "name": "parse", "dependsOn": ["fetch"] },
    ///     ]))
    ///     .await
    /// }
    /// ```
    pub fn job(&self, tasks: impl Serialize) -> Job {
        let submission =
            json::write("tasks", &tasks).and_then(|tasks| json::read("job", json!({ "tasks": tasks })));
        Job { ctx: self.clone(), submission, timeout: None }
    }

    /// Sends an event to other runs, once; the result is the event's id.
    ///
    /// ```
    /// use ledgerline_workflow::{Ctx, Error};
    /// use serde_json::json;
    ///
    /// async fn ship(ctx: Ctx, order: String) -> Result<String, Error> {
    ///     ctx.send_event("order.shipped").data(json!({ "parcels": 2 })).matching(json!({ "orderId": order })).await
    /// }
    /// ```
    pub fn send_event(&self, name: impl Into<String>) -> SendEvent {
        let submission = EventSubmission {
            event: name.into(),
            data: Value::Null,
            r#match: Value::Object(Map::new()),
            idempotency_key: None,
        };
        SendEvent { ctx: self.clone(), submission, invalid: None }
    }

    /// Records the wait for an end, starts what ends in a step, then waits for the end.
    async fn start_and_wait<F, Fut>(
        &self,
        what: Ending,
        timeout: Option<Duration>,
        step: String,
        start: F,
    ) -> Result<Map<String, Value>, Error>
    where
        F: Fn(Arc<Services>) -> Fut,
        Fut: Future<Output = Result<(), Error>>,
    {
        let services = self.require_services()?;
        let wait = self.wait_for_end(what);
        let wait = match timeout {
            Some(timeout) => wait.timeout(timeout),
            None => wait,
        };
        let mut wait = pin!(wait);
        WaitForEnd::registered(wait.as_mut()).await?;
        self.step(step, || start(services.clone())).await?;
        let end = wait.await?;
        match end.get("state").and_then(Value::as_str) {
            Some("completed") => Ok(end),
            _ => {
                let text = |field: &str| end.get(field).and_then(Value::as_str);
                let error = Error::fatal(text("error").unwrap_or("it failed"));
                Err(text("errorCategory").map_or(error.clone(), |category| error.code(category)))
            }
        }
    }

    fn require_services(&self) -> Result<Arc<Services>, Error> {
        let missing = || Error::fatal("there is nothing outside of this workflow: it is executed by hand");
        self.services().cloned().ok_or_else(missing)
    }
}

impl<T> Task<T> {
    /// How long one attempt may take.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        let ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.submission = self.submission.map(|task| TaskSubmission { timeout_ms: Some(ms), ..task });
        self
    }

    /// How many attempts it has.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.submission = self.submission.map(|task| TaskSubmission { max_attempts: Some(attempts), ..task });
        self
    }

    /// How long the workflow waits for its end; then the error [is a timeout](Error::is_timeout). The task goes on.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<T: DeserializeOwned + 'static> IntoFuture for Task<T> {
    type Output = Result<T, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { ctx, submission, timeout, .. } = self;
        Box::pin(async move {
            let submission = submission?;
            let id = format!("{}_{}", Kind::Task.prefix(), ctx.id());
            let submission = TaskSubmission { request_id: Some(id.clone()), ..submission };
            let step = format!("task {}", submission.name);
            let start = |services: Arc<Services>| {
                let submission = submission.clone();
                async move {
                    let submitted = services.stage.tasks.submit_task(&services.emitter, submission).await;
                    submitted.map(|_| ()).map_err(submit_error)
                }
            };
            let mut end = ctx.start_and_wait(Ending::Task(id), timeout, step, start).await?;
            json::read("output", end.remove("output").unwrap_or_default())
        })
    }
}

impl Job {
    /// How long the workflow waits for its end; then the error [is a timeout](Error::is_timeout). The job goes on.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl IntoFuture for Job {
    type Output = Result<String, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { ctx, submission, timeout } = self;
        Box::pin(async move {
            let submission = submission?;
            let id = format!("{}_{}", Kind::Job.prefix(), ctx.id());
            let submission = JobSubmission { job_id: Some(id.clone()), ..submission };
            let start = |services: Arc<Services>| {
                let submission = submission.clone();
                async move {
                    let submitted = services.stage.jobs.submit_job(&services.emitter, submission).await;
                    submitted.map(|_| ()).map_err(submit_error)
                }
            };
            ctx.start_and_wait(Ending::Job(id.clone()), timeout, "job".into(), start).await?;
            Ok(id)
        })
    }
}

impl SendEvent {
    /// The event's data.
    pub fn data(mut self, data: impl Serialize) -> Self {
        match json::write("data", &data) {
            Ok(data) => self.submission.data = data,
            Err(error) => self.invalid = Some(error),
        }
        self
    }

    /// The event's match, with which waits compare their criteria: an object with at most 64 leaves.
    pub fn matching(mut self, matched: Value) -> Self {
        self.submission.r#match = matched;
        self
    }
}

impl IntoFuture for SendEvent {
    type Output = Result<String, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { ctx, submission, invalid } = self;
        Box::pin(async move {
            if let Some(error) = invalid {
                return Err(error);
            }
            let services = ctx.require_services()?;
            // The id is the same at each attempt: an event that was sent and not recorded is not sent again.
            let id = format!("{}_{}", Kind::Event.prefix(), ctx.id());
            ctx.step(format!("send {}", submission.event), || {
                let (services, submission, id) = (services.clone(), submission.clone(), id.clone());
                async move {
                    let event_id =
                        Name::new("eventId", id).map_err(|invalid| Error::fatal(invalid.to_string()))?;
                    let from = Some(SendingRun { run_id: &services.run_id, event_id });
                    let sent = services.stage.events.send_event(&services.emitter, submission, from).await;
                    sent.map(|sent| sent.event_id.to_string()).map_err(submit_error)
                }
            })
            .await
        })
    }
}

/// A request that can never succeed is not retried.
fn submit_error(error: ComponentError) -> Error {
    match &error {
        ComponentError::Invalid(_) | ComponentError::Refused(_) => Error::fatal(error.to_string()),
        ComponentError::Store(store) if store.fault == Fault::Rejected => Error::fatal(error.to_string()),
        _ => Error::retryable(error.to_string()),
    }
}

fn object(what: &str, value: &impl Serialize) -> Result<Map<String, Value>, Error> {
    match json::write(what, value)? {
        Value::Object(fields) => Ok(fields),
        Value::Null => Ok(Map::new()),
        other => Err(Error::fatal(format!("{what}: must be an object, not {other}"))),
    }
}
