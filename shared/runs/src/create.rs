//! The beginning of a run: its record and the first entry of its log, together.

use std::collections::BTreeSet;

use ledgerline_event::{Context, Invalid, Kind, LogDraft, LogEvent, Millis, Name, RunEventType, RunState};
use ledgerline_ledger::Emitter;
use ledgerline_store::{RunCreation, keys};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{RUN_LEASE_MS, RunRecord, emit_log::check_loggable, log::json_size};
use crate::{RunDriver, Runs};
use ledgerline_outbox::{ComponentError, NewRun};

/// A larger context loses what senders have added to it.
const CONTEXT_BYTES: usize = 20_000;
/// No id of a subscription is longer.
const VIA_CHARS: usize = 128;

/// A request to start a run.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs)]
pub struct RunSubmission {
    pub workflow: String,
    #[serde(default = "empty_input")]
    pub input: Value,
    #[serde(default)]
    pub run_id: Option<String>,
}

fn empty_input() -> Value {
    Value::Object(Map::new())
}

/// A run that was started: the answer to its sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct StartedRun {
    pub run_id: Name,
    /// Whether it was started before.
    pub collapsed: bool,
}

/// A run of `workflow` in the context of `emitter`.
pub fn new_run(emitter: &Emitter, run_id: Name, workflow: &Name, input: Value) -> Result<NewRun, Invalid> {
    let data = json!({ "workflowName": workflow, "input": input });
    let Value::Object(data) = data else { return Err(Invalid::new("input", "is not JSON")) };
    new_run_of(emitter, run_id, data, RunDriver::Runner)
}

pub(crate) fn new_run_of(
    emitter: &Emitter,
    run_id: Name,
    data: Map<String, Value>,
    driver: RunDriver,
) -> Result<NewRun, Invalid> {
    let scope = emitter.scope();
    let draft =
        LogDraft { event_type: RunEventType::RunCreated, correlation_id: run_id.clone(), event_data: data };
    check_loggable(&draft).map_err(|invalid| Invalid::new("input", invalid.to_string()))?;
    let context = serde_json::to_string(&bounded(&scope.context));
    Ok(NewRun {
        tenant_id: scope.tenant.clone(),
        app_name: scope.app.clone(),
        run_id,
        event_id: emitter.new_id(Kind::Event),
        created_at: emitter.now(),
        data: draft.event_data,
        context: context.map_err(|error| Invalid::new("context", error.to_string()))?,
        caused_by: scope.caused_by.clone(),
        external: driver.is_external(),
    })
}

fn workflow_of(run: &NewRun) -> &str {
    run.data.get("workflowName").and_then(Value::as_str).unwrap_or_default()
}

/// The hash of what a request asks for: a repeat of the request creates no other run.
fn content_hash_of(run: &NewRun) -> String {
    ledgerline_outbox::short_hash(&[&Value::Object(run.data.clone()).to_string()])
}

fn record_of(run: &NewRun, due_at: Millis) -> RunRecord {
    let key = keys::run(&run.tenant_id, &run.run_id);
    RunRecord {
        run_id: run.run_id.clone(),
        workflow_name: workflow_of(run).to_owned(),
        app_name: run.app_name.clone(),
        state: RunState::Pending,
        external: run.external,
        created_at: run.created_at,
        started_at: None,
        ended_at: None,
        workflow_version: None,
        last_error: None,
        failed_visits: 0,
        rejected_visits: 0,
        ending: None,
        ending_key: None,
        created_by: run.event_id.clone(),
        context: run.context.clone(),
        caused_by: run.caused_by.clone(),
        content_hash: Some(content_hash_of(run)),
        lease_owner: None,
        lease_until: None,
        wake_count: 0,
        lease_count: 0,
        emitted: 0,
        looked_back: 0,
        looked: Some(0),
        notified_waits: BTreeSet::new(),
        looks: None,
        alarm_at: None,
        due_shard: Some(keys::run_due_shard_of(&key)),
        due_at: Some(due_at),
        list_in: Some(keys::runs_in(&run.tenant_id, RunState::Pending.as_str())),
        list_at: Some(format!("{}#{}", run.created_at, run.run_id)),
    }
}

/// A context that fits into the run's record and into each of its events: fields that senders add may be large.
fn bounded(context: &Context) -> Context {
    match json_size(context) <= CONTEXT_BYTES {
        true => context.clone(),
        false => Context {
            source: None,
            environment: context.environment.clone(),
            attempt: context.attempt,
            generation: context.generation,
            via: context.via.iter().map(|via| via.chars().take(VIA_CHARS).collect()).collect(),
            ..Context::default()
        },
    }
}

impl Runs {
    /// Starts a run in the context of `emitter`. With the same id and the same content as before it changes nothing.
    pub async fn start_run(
        &self,
        emitter: &Emitter,
        submission: RunSubmission,
    ) -> Result<StartedRun, ComponentError> {
        let workflow = Name::new("workflow", submission.workflow.as_str())?;
        let run_id = match &submission.run_id {
            None => emitter.new_id(Kind::Run),
            Some(id) => Name::new("runId", id.as_str())?,
        };
        let run = new_run(emitter, run_id.clone(), &workflow, submission.input)?;
        match self.registry.check_runnable(&workflow).await {
            // A repeat names the existing run, even if no runner has the workflow any more.
            Err(ComponentError::Invalid(_)) if self.has_run(&run).await? => {}
            checked => checked?,
        }
        let collapsed = match self.create_run(&run).await? {
            None => false,
            Some(there) if there.created_by == run.event_id => false,
            Some(there) if there.content_hash.as_deref() == Some(&content_hash_of(&run)) => true,
            Some(_) => {
                let reason = format!(
                    "a run `{run_id}` exists and was asked for something else; leave runId out for a new one"
                );
                return Err(ComponentError::Refused(reason));
            }
        };
        self.enqueue_run(&run.tenant_id, &run_id, 0).await?;
        Ok(StartedRun { run_id, collapsed })
    }

    async fn has_run(&self, run: &NewRun) -> Result<bool, ComponentError> {
        Ok(self.records.get(&run.tenant_id, &run.run_id).await?.is_some())
    }

    /// Creates a run unless it exists, and sends it to the runners.
    pub async fn begin_run(&self, run: &NewRun) -> Result<(), ComponentError> {
        if let Some(there) = self.create_run(run).await?
            && there.created_by != run.event_id
        {
            tracing::error!(run_id = %run.run_id, "a run with this id exists already; it is left as it is");
            return Ok(());
        }
        self.continue_run(&run.tenant_id, &run.run_id, RunDriver::of(run.external)).await
    }

    /// Creates a run. Returns the record of the run with this id that existed before, if one did.
    pub async fn create_run(&self, run: &NewRun) -> Result<Option<RunRecord>, ComponentError> {
        let created = LogEvent {
            event_id: run.event_id.clone(),
            event_type: RunEventType::RunCreated,
            correlation_id: run.run_id.clone(),
            timestamp: run.created_at,
            event_data: run.data.clone(),
        };
        let entry = self.logs.entry_row(&run.event_id, &[created]).await?;
        let record = record_of(run, self.emitter.now().plus(RUN_LEASE_MS));
        match self.records.create(&run.tenant_id, &record, &entry).await? {
            RunCreation::Created => Ok(None),
            RunCreation::Exists(there) => Ok(there.map(|there| *there)),
        }
    }
}
