//! External runs: a program in any language appends the events of its run one by one, and an event that the
//! state of the run does not allow is refused.

use ledgerline_event::{
    Invalid, LogDraft, LogEvent, Name, RunEntity, RunEventType, RunHistory, RunState, read_draft,
};
use ledgerline_ledger::Emitter;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Appended, RunLog, RunRecord,
    emit_log::check_loggable,
    end_run::{NO_LEASE, is_last},
    hook::check_chosen_token,
};
use crate::new_run_of;
use crate::{ExternalRuns, RunDriver};
use ledgerline_outbox::ComponentError;
use ledgerline_store::{RequestRetry, RetryCause, back_off};

/// A request to append an event.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ExternalEvent {
    pub event_type: String,
    #[serde(default)]
    pub correlation_id: Option<String>,
    #[serde(default)]
    pub event_data: Map<String, Value>,
}

impl ExternalRuns {
    /// Appends one event to the log of a run; `run_created` makes it. Returns the event, and the state of the run after it.
    pub async fn append_external(
        &self,
        emitter: &Emitter,
        run_id: &str,
        event: ExternalEvent,
    ) -> Result<(LogEvent, RunHistory), ComponentError> {
        let tenant = &emitter.scope().tenant.clone();
        let run_id = Name::new("runId", run_id)?;
        let event_type = RunEventType::parse(&event.event_type).ok_or_else(|| {
            let known: Vec<&str> = RunEventType::ALL.iter().map(|kind| kind.as_str()).collect();
            let reason = format!("`{}` is not one of {}", event.event_type, known.join(", "));
            Invalid::new("eventType", reason)
        })?;
        let draft = draft_of(&run_id, event_type, event.correlation_id.as_deref(), event.event_data)?;
        check_loggable(&draft)?;
        let run: Option<RunRecord> = self.runs.records.get(tenant, &run_id).await?;
        let run = match (run, event_type) {
            (None, RunEventType::RunCreated) => return self.create_external(emitter, run_id, draft).await,
            (None, _) => return Err(unknown(&run_id)),
            (Some(run), _) => run,
        };
        let draft = with_token(draft, || self.runs.logs.new_hook_token());
        let (mut log, _) = self.runs.logs.read_log(&run, tenant).await?;
        if let Some(ending) = self.runs.logs.ending_of(&run).await? {
            self.runs.logs.end_run(&mut log, &ending, NO_LEASE).await?;
        }
        let mut retries = RequestRetry::default();
        loop {
            log.history.check(&draft)?;
            take_over(&mut log, event_type)?;
            let mut drafts = vec![draft.clone()];
            if is_last(event_type) {
                drafts.splice(0..0, log.history.closings());
            }
            match self.runs.logs.append(&mut log, &drafts, NO_LEASE).await? {
                Appended::Done(entry) => {
                    let Some(event) = entry.events.into_iter().find(|event| is(event, &draft)) else {
                        continue;
                    };
                    self.continue_after(&mut log, &run, &event).await?;
                    return Ok((event, log.history));
                }
                Appended::TokenTaken(hook_id) => {
                    self.runs.logs.catch_up(&mut log).await?;
                    let conflict = conflict(&draft, hook_id);
                    if let Appended::Done(entry) =
                        self.runs.logs.append(&mut log, &[conflict], NO_LEASE).await?
                    {
                        self.runs.continue_run(tenant, &run_id, RunDriver::of(run.external)).await?;
                        let event = entry.events.into_iter().next().ok_or_else(|| unknown(&run_id))?;
                        return Ok((event, log.history));
                    }
                    self.runs.logs.catch_up(&mut log).await?;
                }
                Appended::StaleLog | Appended::Lost | Appended::GuardRefused => {
                    back_off(&mut retries, RetryCause::LostRace).await?;
                    self.runs.logs.catch_up(&mut log).await?;
                }
            }
        }
    }

    async fn continue_after(
        &self,
        log: &mut RunLog,
        run: &RunRecord,
        event: &LogEvent,
    ) -> Result<(), ComponentError> {
        self.runs.continue_run(&log.tenant, &run.run_id, log.driver).await?;
        if event.waits_for_event() {
            // An event that was sent before may have completed the wait already.
            self.runs.logs.catch_up(log).await?;
        }
        Ok(())
    }

    async fn create_external(
        &self,
        emitter: &Emitter,
        run_id: Name,
        draft: LogDraft,
    ) -> Result<(LogEvent, RunHistory), ComponentError> {
        let new = new_run_of(emitter, run_id.clone(), draft.event_data, RunDriver::ExternalProgram)?;
        let tenant = &new.tenant_id;
        if let Some(there) = self.runs.create_run(&new).await?
            && there.created_by != new.event_id
        {
            // Another request created the run a moment ago: the answer is the same as if it had been there before.
            let (log, _) = self.runs.logs.read_log(&there, tenant).await?;
            let again = LogDraft {
                event_type: RunEventType::RunCreated,
                correlation_id: run_id,
                event_data: new.data.clone(),
            };
            log.history.check(&again)?;
        }
        self.runs.settle_run(tenant, &new.run_id).await?;
        let run = self.runs.logs.known_run(tenant, &new.run_id).await?;
        let (log, entries) = self.runs.logs.read_log(&run, tenant).await?;
        let created = entries.into_iter().flat_map(|entry| entry.events).next();
        Ok((created.ok_or_else(|| unknown(&new.run_id))?, log.history))
    }
}

/// The event as it is to be appended. A run's events are about the run whether they say so or not.
fn draft_of(
    run_id: &Name,
    event_type: RunEventType,
    correlation_id: Option<&str>,
    mut data: Map<String, Value>,
) -> Result<LogDraft, Invalid> {
    // `with_token` makes a missing token later; until then a placeholder stands in for it.
    let made_up = event_type == RunEventType::HookCreated && !data.contains_key("token");
    if made_up {
        data.insert("token".into(), Value::from("-"));
    }
    if !made_up && event_type == RunEventType::HookCreated {
        // `read_draft` refuses a token that is not a string.
        let token = data.get("token").and_then(Value::as_str);
        token.map_or(Ok(()), |token| check_chosen_token("eventData.token", token))?;
    }
    let of_run = event_type.entity() == RunEntity::Run;
    if of_run && correlation_id.is_some_and(|id| id != run_id.as_str()) {
        return Err(Invalid::new("correlationId", format!("is not the run: leave it out, or say {run_id}")));
    }
    let id = if of_run { Some(run_id.as_str()) } else { correlation_id };
    let mut draft = read_draft(event_type, id, data)?;
    if made_up {
        draft.event_data.remove("token");
    }
    Ok(draft)
}

/// Makes a run external when an external program starts it: that program then executes all of it. Refuses other
/// events of a run that a runner of this ledger executes, except its cancellation.
fn take_over(log: &mut RunLog, event_type: RunEventType) -> Result<(), ComponentError> {
    match event_type {
        _ if log.driver.is_external() => Ok(()),
        RunEventType::RunStarted => {
            log.driver = RunDriver::ExternalProgram;
            Ok(())
        }
        RunEventType::RunCancelled => Ok(()),
        _ if log.history.state() == Some(RunState::Pending) => Ok(()),
        _ => {
            let reason = format!(
                "{} is executed by a runner of this ledger: only run_cancelled may be appended to it from outside",
                log.run_id
            );
            Err(ComponentError::Refused(reason))
        }
    }
}

fn unknown(run_id: &Name) -> ComponentError {
    ComponentError::Unknown {
        what: "runs",
        id: run_id.to_string(),
        hint: "; append run_created first, or start one".into(),
    }
}

fn is(event: &LogEvent, draft: &LogDraft) -> bool {
    event.event_type == draft.event_type && event.correlation_id == draft.correlation_id
}

/// Gives a hook without a token a random one.
fn with_token(mut draft: LogDraft, make: impl FnOnce() -> String) -> LogDraft {
    if draft.event_type == RunEventType::HookCreated && !draft.event_data.contains_key("token") {
        draft.event_data.insert("token".into(), Value::from(make()));
    }
    draft
}

/// What is logged of a hook whose token is taken.
pub fn conflict(created: &LogDraft, hook_id: Name) -> LogDraft {
    let token = created.event_data.get("token").cloned().unwrap_or_default();
    LogDraft {
        event_type: RunEventType::HookConflict,
        correlation_id: hook_id,
        event_data: Map::from_iter([("token".to_owned(), token)]),
    }
}
