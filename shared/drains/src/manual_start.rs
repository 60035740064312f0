//! Starting a workflow type by hand, by the path that events take.

use ledgerline_event::{Invalid, Name};
use ledgerline_store::keys;
use ledgerline_subscription::WorkflowType;
use serde::Serialize;
use serde_json::json;

use crate::{
    DEFAULT_DRAINER, Drains,
    registry::unregistered,
    start_plan::{Input, Origin, PlanError},
};
use ledgerline_outbox::{ComponentError, KeyedRequest, Made, check_idempotency_key};

/// What became of a start by hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ManualStart {
    /// The id of the task, job, run or sent event. None if an operator has dropped this start before.
    pub started: Option<Name>,
    /// Whether an earlier start with the same key made it.
    pub collapsed: bool,
}

impl Drains {
    /// Starts a workflow by hand: once per `idempotency_key`, and once per value of the type's own key.
    pub async fn start(
        &self,
        tenant: &Name,
        workflow_type: &str,
        input: Input,
        caused_by: &str,
        idempotency_key: Option<&str>,
    ) -> Result<ManualStart, ComponentError> {
        let keyed = match idempotency_key {
            None => None,
            Some(key) => {
                check_idempotency_key("idempotencyKey", key)?;
                let asked = json!({ "workflowType": workflow_type, "input": input });
                let content_hash = ledgerline_outbox::short_hash(&[&asked.to_string()]);
                Some(KeyedRequest { row: keys::start_request(tenant, key), content_hash, any_content: false })
            }
        };
        // A repeat is answered before anything is checked that may have changed since the first request.
        if let Some(keyed) = &keyed
            && let Some(first) = self.outbox.repeated(keyed).await?
        {
            return Ok(ManualStart { started: first.made, collapsed: true });
        }
        let known: Option<WorkflowType> = match Name::new("workflowType", workflow_type) {
            Ok(name) => self.registry.workflow_types.get(tenant, &name).await?,
            Err(_) => None,
        };
        let known = known.ok_or_else(|| unregistered(workflow_type))?;
        let emitter = self.emitter.with_scope(|scope| {
            scope.tenant = tenant.clone();
            scope.caused_by = Some(caused_by.to_owned());
        });
        let claim = keys::manual_start_claim(tenant, &self.emitter.new_event_id());
        let origin = Origin { emitter, drainer: DEFAULT_DRAINER, claim, ttl: None };
        let pending = match self.planner.plan(origin, &known, input).await {
            Ok(pending) => pending,
            Err(PlanError::Invalid(reason) | PlanError::Unregistered(reason)) => {
                return Err(Invalid::new("input", reason).into());
            }
            Err(PlanError::Dropped) => return Err(ComponentError::Refused("it was dropped before".into())),
            Err(PlanError::Trouble(error)) => return Err(error),
        };
        let started = pending.started.clone();
        Ok(match self.outbox.execute_once(pending, keyed.as_ref()).await? {
            Made::Now => ManualStart { started, collapsed: false },
            Made::Before(started) => ManualStart { started, collapsed: true },
        })
    }
}
