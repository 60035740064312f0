//! The futures that end when time has passed, an event came, or a task or job ended.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ledgerline_event::{Millis, Name, contain::check_criteria};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{
    Error,
    asked::Asked,
    engine::{
        Engine,
        command::Entity,
        wait::{Due, WaitFor, WaitRecord},
    },
    error::TIMEOUT,
    json,
};

/// A sleep: see [`Ctx::sleep`][crate::Ctx::sleep].
#[must_use = "a sleep does nothing unless it is awaited"]
pub struct Sleep {
    asked: Asked,
    due: Due,
}

impl Sleep {
    pub(crate) fn new(engine: &Arc<Engine>, due: Due) -> Self {
        Self { asked: Asked::not_yet(engine), due }
    }
}

impl Future for Sleep {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let due = self.due;
        self.asked.ask(|| Ok(Entity::Wait(WaitRecord::new(WaitFor::Time, due))))?;
        poll_end(&mut self.asked, cx).map(|_| Ok(()))
    }
}

/// A wait for an event: see [`Ctx::wait_for_event`][crate::Ctx::wait_for_event].
#[must_use = "a wait does nothing unless it is awaited"]
pub struct WaitForEvent {
    asked: Asked,
    name: String,
    criteria: Value,
    since: Option<Millis>,
    due: Due,
}

impl WaitForEvent {
    pub(crate) fn new(engine: &Arc<Engine>, name: String) -> Self {
        let criteria = Value::Object(Map::new());
        Self { asked: Asked::not_yet(engine), name, criteria, since: None, due: Due::Never }
    }

    /// Only an event whose match contains these criteria: an object with at most 64 leaves.
    pub fn matching(mut self, criteria: Value) -> Self {
        self.criteria = criteria;
        self
    }

    /// Waits no longer than that; then the error [is a timeout][Error::is_timeout].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.due = Due::After(timeout);
        self
    }

    /// Takes no event that was sent before then.
    pub fn since(mut self, since: Millis) -> Self {
        self.since = Some(since);
        self
    }
}

impl Future for WaitForEvent {
    type Output = Result<ReceivedEvent, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { asked, name, criteria, since, due } = self.get_mut();
        asked.ask(|| {
            Name::new("event", name.as_str())
                .and_then(|_| check_criteria("match", criteria))
                .map_err(|invalid| Error::invalid(&invalid))?;
            let (name, criteria) = (std::mem::take(name), criteria.take());
            Ok(Entity::Wait(WaitRecord::new(WaitFor::Event { name, criteria, since: *since }, *due)))
        })?;
        poll_end(asked, cx).map(|end| in_time(end, "event").map(ReceivedEvent::new))
    }
}

/// What a run may wait for the end of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A task, by its request id.
    Task(String),
    /// A job, by its id.
    Job(String),
}

/// A wait for the end of a task or a job: what the log says about it.
#[must_use = "a wait does nothing unless it is awaited"]
pub(crate) struct WaitForEnd {
    asked: Asked,
    what: End,
    due: Due,
}

impl WaitForEnd {
    pub(crate) fn new(engine: &Arc<Engine>, what: End) -> Self {
        Self { asked: Asked::not_yet(engine), what, due: Due::Never }
    }

    /// Asks for it, and returns when the log has it: whatever ends from then on is noticed.
    pub(crate) async fn registered(mut wait: Pin<&mut Self>) -> Result<(), Error> {
        let is_registered = |entity: &mut Entity| match entity {
            Entity::Wait(wait) => wait.is_registered().then_some(()),
            Entity::Step(_) | Entity::Hook(_) => None,
        };
        poll_fn(|cx| {
            wait.ask()?;
            wait.asked.watch(cx.waker(), is_registered).map(Ok)
        })
        .await
    }

    /// Waits no longer than that; then the error is a timeout.
    pub(crate) fn timeout(mut self, timeout: Duration) -> Self {
        self.due = Due::After(timeout);
        self
    }
}

impl WaitForEnd {
    fn ask(&mut self) -> Result<(), Error> {
        let Self { asked, what, due } = self;
        asked.ask(|| {
            let what = match what {
                End::Task(id) => Name::new("task", id.as_str()).map(|_| WaitFor::Task(std::mem::take(id))),
                End::Job(id) => Name::new("job", id.as_str()).map(|_| WaitFor::Job(std::mem::take(id))),
            };
            let what = what.map_err(|invalid| Error::invalid(&invalid))?;
            Ok(Entity::Wait(WaitRecord::new(what, *due)))
        })
    }
}

impl Future for WaitForEnd {
    type Output = Result<Map<String, Value>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.ask()?;
        poll_end(&mut self.asked, cx).map(|end| in_time(end, "end"))
    }
}

fn poll_end(asked: &mut Asked, cx: &Context<'_>) -> Poll<Map<String, Value>> {
    let take = |entity: &mut Entity| match entity {
        Entity::Wait(wait) => wait.take(),
        Entity::Step(_) | Entity::Hook(_) => None,
    };
    asked.poll(cx.waker(), take).map(|(end, handle)| {
        handle.done();
        end
    })
}

/// The end, if it is not that time ran out. A runner that gives no outcome knows only of time.
fn in_time(end: Map<String, Value>, what: &str) -> Result<Map<String, Value>, Error> {
    match end.get("outcome").and_then(Value::as_str) {
        Some("event" | "ended") => Ok(end),
        _ => Err(Error::fatal(format!("the {what} did not come in time")).code(TIMEOUT)),
    }
}

/// An event that a run waited for.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedEvent {
    /// Its id in the ledger.
    pub event_id: String,
    /// What it is called.
    pub event_name: String,
    /// What its sender said.
    pub data: Value,
    /// What its sender wanted it to be found by.
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

    /// What its sender said, as a `T`; the error names the field that does not fit.
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
            let wait = ctx.wait_for_end(End::Job("job_1".into())).timeout(Duration::from_secs(60));
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
            let wanted = execution.wanted(now);
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
