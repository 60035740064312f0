//! The beginning of a run: its record and the first entry of its log, together.

use std::collections::BTreeSet;

use aws_sdk_dynamodb::types::TransactWriteItem;
use ledgerline_event::{Context, Invalid, Kind, LogDraft, LogEvent, Millis, Name, RunEventType, RunState};
use ledgerline_ledger::{Emitter, control::keys};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{RUN_LEASE_MS, RunRecord, log::json_size, outbox::check_loggable};
use crate::{
    Dispatch, DispatchError,
    transaction::{Cancelled, Patience, built, busy, cancelled},
};

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
    #[serde(default = "nothing")]
    pub input: Value,
    #[serde(default)]
    pub run_id: Option<String>,
}

fn nothing() -> Value {
    Value::Object(Map::new())
}

/// A run that is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct StartedRun {
    pub run_id: Name,
    /// Whether it was started before.
    pub collapsed: bool,
}

/// A run that is about to be, fixed to the last byte: making it twice makes it once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewRun {
    pub(crate) tenant_id: Name,
    pub(crate) app_name: Name,
    pub(crate) run_id: Name,
    pub(crate) event_id: Name,
    pub(crate) created_at: Millis,
    pub(crate) data: Map<String, Value>,
    pub(crate) context: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) caused_by: Option<String>,
    #[serde(default)]
    pub(crate) external: bool,
}

impl NewRun {
    /// A run of `workflow` in the context of `emitter`.
    pub(crate) fn new(
        emitter: &Emitter,
        run_id: Name,
        workflow: &Name,
        input: Value,
    ) -> Result<Self, Invalid> {
        let data = json!({ "workflowName": workflow, "input": input });
        let Value::Object(data) = data else { return Err(Invalid::new("input", "is not JSON")) };
        Self::of(emitter, run_id, data, false)
    }

    pub(super) fn of(
        emitter: &Emitter,
        run_id: Name,
        data: Map<String, Value>,
        external: bool,
    ) -> Result<Self, Invalid> {
        let origin = emitter.origin();
        let draft = LogDraft {
            event_type: RunEventType::RunCreated,
            correlation_id: run_id.clone(),
            event_data: data,
        };
        check_loggable(&draft).map_err(|invalid| Invalid::new("input", invalid.to_string()))?;
        let context = serde_json::to_string(&bounded(&origin.context));
        Ok(Self {
            tenant_id: origin.tenant.clone(),
            app_name: origin.app.clone(),
            run_id,
            event_id: emitter.new_id(Kind::Event),
            created_at: emitter.now(),
            data: draft.event_data,
            context: context.map_err(|error| Invalid::new("context", error.to_string()))?,
            caused_by: origin.caused_by.clone(),
            external,
        })
    }

    fn workflow(&self) -> &str {
        self.data.get("workflowName").and_then(Value::as_str).unwrap_or_default()
    }

    /// What was asked for: the same again is no new run.
    fn content_hash(&self) -> String {
        crate::parked::digest(&[&Value::Object(self.data.clone()).to_string()])
    }

    fn record(&self, due_at: Millis) -> RunRecord {
        let key = keys::run(&self.tenant_id, &self.run_id);
        RunRecord {
            run_id: self.run_id.clone(),
            workflow_name: self.workflow().to_owned(),
            app_name: self.app_name.clone(),
            state: RunState::Pending,
            external: self.external,
            created_at: self.created_at,
            started_at: None,
            ended_at: None,
            workflow_version: None,
            last_error: None,
            failed_visits: 0,
            rejected_visits: 0,
            ending: None,
            ending_key: None,
            created_by: self.event_id.clone(),
            context: self.context.clone(),
            caused_by: self.caused_by.clone(),
            content_hash: Some(self.content_hash()),
            lease_owner: None,
            lease_until: None,
            wakes: 0,
            takes: 0,
            emitted: 0,
            looked_back: 0,
            looked: Some(0),
            called_waits: BTreeSet::new(),
            looks: None,
            alarm_at: None,
            due_shard: Some(keys::run_due_shard_of(&key)),
            due_at: Some(due_at),
            list_in: Some(keys::runs_in(&self.tenant_id, RunState::Pending.as_str())),
            list_at: Some(format!("{}#{}", self.created_at, self.run_id)),
        }
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

impl Dispatch {
    /// Starts a run in the context of `emitter`. With the same id and the same content as before it changes nothing.
    pub async fn start_run(
        &self,
        emitter: &Emitter,
        submission: RunSubmission,
    ) -> Result<StartedRun, DispatchError> {
        let workflow = Name::new("workflow", submission.workflow.as_str())?;
        let run_id = match &submission.run_id {
            None => emitter.new_id(Kind::Run),
            Some(id) => Name::new("runId", id.as_str())?,
        };
        let run = NewRun::new(emitter, run_id.clone(), &workflow, submission.input)?;
        match self.check_runnable(&workflow).await {
            // A repeat names the run that there is, whatever runners have by now.
            Err(DispatchError::Invalid(_)) if self.has_run(&run).await? => {}
            checked => checked?,
        }
        let collapsed = match self.create_run(&run).await? {
            None => false,
            Some(there) if there.created_by == run.event_id => false,
            Some(there) if there.content_hash.as_deref() == Some(&run.content_hash()) => true,
            Some(_) => {
                let reason = format!(
                    "a run `{run_id}` exists and was asked for something else; leave runId out for a new one"
                );
                return Err(DispatchError::Refused(reason));
            }
        };
        self.go_on(&run.tenant_id, &run_id, false).await?;
        Ok(StartedRun { run_id, collapsed })
    }

    async fn has_run(&self, run: &NewRun) -> Result<bool, DispatchError> {
        let key = keys::run(&run.tenant_id, &run.run_id);
        Ok(self.control.get::<RunRecord>(&key).await?.is_some())
    }

    /// Makes a run unless there is one, and sends it to the runners.
    pub(crate) async fn begin_run(&self, run: &NewRun) -> Result<(), DispatchError> {
        if let Some(there) = self.create_run(run).await?
            && there.created_by != run.event_id
        {
            tracing::error!(run_id = %run.run_id, "a run with this id exists already; it is left as it is");
            return Ok(());
        }
        self.go_on(&run.tenant_id, &run.run_id, run.external).await
    }

    /// Makes a run; the record of the one that is there already, if there is one.
    pub(super) async fn create_run(&self, run: &NewRun) -> Result<Option<RunRecord>, DispatchError> {
        let (tenant, run_id) = (&run.tenant_id, &run.run_id);
        let created = LogEvent {
            event_id: run.event_id.clone(),
            event_type: RunEventType::RunCreated,
            correlation_id: run_id.clone(),
            timestamp: run.created_at,
            event_data: run.data.clone(),
        };
        let key = keys::run(tenant, run_id);
        let entry = self.entry_row(&run.event_id, &[created]).await?;
        let record = run.record(self.now().plus(RUN_LEASE_MS));
        let mut patience = Patience::default();
        loop {
            let mut transaction = self.control.transaction();
            for put in [
                self.control.put_for_transaction(&key, &record)?,
                self.control.put_for_transaction(&keys::run_entry(tenant, run_id, 1), &entry)?,
            ] {
                let put = put.condition_expression("attribute_not_exists(PK)").build().map_err(built)?;
                transaction = transaction.transact_items(TransactWriteItem::builder().put(put).build());
            }
            match cancelled(transaction.send().await)? {
                None => return Ok(None),
                Some(Cancelled::Refused(_)) => return Ok(self.control.get(&key).await?),
                Some(Cancelled::Busy(why)) => busy(&mut patience, why).await?,
            }
        }
    }
}
