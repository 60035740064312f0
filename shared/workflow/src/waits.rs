//! The futures that wait for a time, an event, or the end of a task or a job.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ledgerline_engine::{CommandHandle, Due, Engine, TIMEOUT, WaitTarget};
use ledgerline_event::{Millis, Name, containment::check_criteria};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{Error, command_future::CommandFuture, json};

/// A sleep: see [`Ctx::sleep`][crate::Ctx::sleep].
#[must_use = "a sleep does nothing unless it is awaited"]
pub struct Sleep {
    command: CommandFuture,
    due: Due,
}

impl Sleep {
    pub(crate) fn new(engine: &Arc<Engine>, due: Due) -> Self {
        Self { command: CommandFuture::new(engine), due }
    }
}

impl Future for Sleep {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let due = self.due;
        self.command.issue(|engine| engine.issue_wait(WaitTarget::Time, due))?;
        poll_end(&mut self.command, cx).map(|_| Ok(()))
    }
}

/// A wait for an event: see [`Ctx::wait_for_event`][crate::Ctx::wait_for_event].
#[must_use = "a wait does nothing unless it is awaited"]
pub struct WaitForEvent {
    command: CommandFuture,
    name: String,
    criteria: Value,
    since: Option<Millis>,
    due: Due,
}

impl WaitForEvent {
    pub(crate) fn new(engine: &Arc<Engine>, name: String) -> Self {
        let criteria = Value::Object(Map::new());
        Self { command: CommandFuture::new(engine), name, criteria, since: None, due: Due::Never }
    }

    /// Only an event whose match contains these criteria: an object with at most 64 leaves.
    pub fn matching(mut self, criteria: Value) -> Self {
        self.criteria = criteria;
        self
    }

    /// Waits no longer than this; then the error [is a timeout][Error::is_timeout].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.due = Due::After(timeout);
        self
    }

    /// Ignores events that were sent before this time.
    pub fn since(mut self, since: Millis) -> Self {
        self.since = Some(since);
        self
    }
}

impl Future for WaitForEvent {
    type Output = Result<ReceivedEvent, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { command, name, criteria, since, due } = self.get_mut();
        command.issue(|engine| {
            Name::new("event", name.as_str())
                .and_then(|_| check_criteria("match", criteria))
                .map_err(|invalid| json::bad_input(&invalid))?;
            let (name, criteria) = (std::mem::take(name), criteria.take());
            engine.issue_wait(WaitTarget::Event { name, criteria, since: *since }, *due)
        })?;
        poll_end(command, cx).map(|end| in_time(end, "event").map(ReceivedEvent::new))
    }
}

/// A task or a job that ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// A task, by its request id.
    Task(String),
    /// A job, by its id.
    Job(String),
}

/// A wait for the end of a task or a job. Its output is the `eventData` of that end.
#[must_use = "a wait does nothing unless it is awaited"]
pub(crate) struct WaitForEnd {
    command: CommandFuture,
    what: Ending,
    due: Due,
}

impl WaitForEnd {
    pub(crate) fn new(engine: &Arc<Engine>, what: Ending) -> Self {
        Self { command: CommandFuture::new(engine), what, due: Due::Never }
    }

    /// Issues the wait and returns when the log has it: an end that comes from then on completes the wait.
    pub(crate) async fn registered(mut wait: Pin<&mut Self>) -> Result<(), Error> {
        poll_fn(|cx| {
            wait.issue()?;
            wait.command.watch(cx.waker(), CommandHandle::poll_wait_registered).map(Ok)
        })
        .await
    }

    /// Waits no longer than this; then the error is a timeout.
    pub(crate) fn timeout(mut self, timeout: Duration) -> Self {
        self.due = Due::After(timeout);
        self
    }
}

impl WaitForEnd {
    fn issue(&mut self) -> Result<(), Error> {
        let Self { command, what, due } = self;
        command.issue(|engine| {
            let target = match what {
                Ending::Task(id) => {
                    Name::new("task", id.as_str()).map(|_| WaitTarget::Task(std::mem::take(id)))
                }
                Ending::Job(id) => Name::new("job", id.as_str()).map(|_| WaitTarget::Job(std::mem::take(id))),
            };
            engine.issue_wait(target.map_err(|invalid| json::bad_input(&invalid))?, *due)
        })
    }
}

impl Future for WaitForEnd {
    type Output = Result<Map<String, Value>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.issue()?;
        poll_end(&mut self.command, cx).map(|end| in_time(end, "end"))
    }
}

fn poll_end(command: &mut CommandFuture, cx: &Context<'_>) -> Poll<Map<String, Value>> {
    command.poll(cx.waker(), CommandHandle::poll_wait_completed).map(|(end, handle)| {
        handle.done();
        end
    })
}

/// The end, unless it is a timeout. An external runner that gives no outcome knows only sleeps and timeouts.
fn in_time(end: Map<String, Value>, what: &str) -> Result<Map<String, Value>, Error> {
    match end.get("outcome").and_then(Value::as_str) {
        Some("event" | "ended") => Ok(end),
        _ => Err(Error::fatal(format!("the {what} did not come in time")).code(TIMEOUT)),
    }
}

/// An event for which a run waited.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedEvent {
    /// Its id in the ledger.
    pub event_id: String,
    /// Its name.
    pub event_name: String,
    /// Its data, as its sender gave it.
    pub data: Value,
    /// Its match, with which waits compare their criteria.
    pub match_criteria: Value,
}

impl ReceivedEvent {
    fn new(mut end: Map<String, Value>) -> Self {
        let mut take = |field: &str| end.remove(field).unwrap_or_default();
        let text = |value: Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            event_id: text(take("eventId")),
            event_name: text(take("eventName")),
            data: take("data"),
            match_criteria: take("matchCriteria"),
        }
    }

    /// Its data as a `T`; the error names the field that does not fit.
    pub fn data_as<T: DeserializeOwned>(&self) -> Result<T, Error> {
        json::read("data", &self.data)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use ledgerline_event::{Kind, LogDraft, LogEvent, RunEventType};
    use serde_json::json;
    use ulid::Ulid;

    use super::*;
    use crate::{Ctx, Ended, Execution, Workflow};

    fn at(drafts: Vec<LogDraft>, now: Millis) -> Vec<LogEvent> {
        drafts.into_iter().map(|draft| draft.at(Kind::Event.id(Ulid::nil()), now)).collect()
    }

    #[test]
    fn the_end_of_a_job_is_waited_for_before_the_job_is_there() {
        let workflow = Workflow::new("w", "1", |ctx: Ctx, _: Value| async move {
            let wait = ctx.wait_for_end(Ending::Job("job_1".into())).timeout(Duration::from_secs(60));
            let mut wait = std::pin::pin!(wait);
            WaitForEnd::registered(wait.as_mut()).await?;
            ctx.step("start", || async { Ok::<_, Error>(()) }).await?;
            wait.await
        });
        let run_id = Kind::Run.id(Ulid::nil());
        let now = Millis::MIN.plus(1);
        let draft = |event_type, id: &Name, data: Value| LogDraft {
            event_type,
            correlation_id: id.clone(),
            event_data: data.as_object().cloned().unwrap_or_default(),
        };
        let mut cx = Context::from_waker(Waker::noop());
        let mut execution = Execution::new(&workflow, &run_id, Value::Null, None);
        execution.feed(at(vec![draft(RunEventType::RunCreated, &run_id, json!({}))], now));
        let mut wait_id = None;
        let mut end = None;
        while execution.outcome().is_none() {
            let _ = execution.poll(&mut cx, now);
            let wanted = execution.pending_drafts(now);
            if let Some(created) = wanted.iter().find(|draft| draft.event_type == RunEventType::WaitCreated) {
                assert!(wanted.iter().all(|draft| draft.event_type != RunEventType::StepCreated));
                let data = Value::from(created.event_data.clone());
                assert_eq!(data, json!({"job": "job_1", "timeoutAt": now.plus(60_000)}));
                wait_id = Some(created.correlation_id.clone());
                // It ends before the step that starts it is recorded.
                let data = json!({"outcome": "ended", "state": "completed", "output": 7});
                end = Some(draft(RunEventType::WaitCompleted, &created.correlation_id, data));
            }
            execution.feed(at(wanted, now));
            execution.feed(at(end.take().into_iter().collect(), now));
        }
        assert!(wait_id.is_some_and(|id| Kind::of(&id) == Some(Kind::Wait)));
        let output = json!({"outcome": "ended", "state": "completed", "output": 7});
        assert_eq!(execution.outcome(), Some(Ended::Completed(output)));
    }
}
