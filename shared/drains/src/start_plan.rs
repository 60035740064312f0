//! What a start sends, and the claim that holds it.

use std::sync::Arc;

use futures::future::BoxFuture;
use ledgerline_event::{Event, Name, Seconds};
use ledgerline_ledger::Emitter;
use ledgerline_outbox::{ComponentError, Effects, PendingEffects};
use ledgerline_store::keys::{self, ControlKey};
use ledgerline_subscription::WorkflowType;
use serde_json::{Map, Value};

/// Input of a start.
pub type Input = Map<String, Value>;

/// Why a start cannot be planned.
#[derive(Debug)]
pub enum PlanError {
    /// The start itself is at fault: it fails again in the same way.
    Invalid(String),
    /// Its workflow type is not registered.
    Unregistered(String),
    /// An operator has given this start up.
    Dropped,
    /// The effects could not be made for a reason outside of the start, such as a service that does not answer.
    Trouble(ComponentError),
}

impl<E: Into<ComponentError>> From<E> for PlanError {
    fn from(error: E) -> Self {
        Self::Trouble(error.into())
    }
}

/// A request for the effects of a start: of this workflow type, with this input, in the context of this emitter.
#[allow(missing_docs)]
pub struct StartRequest {
    pub emitter: Emitter,
    pub workflow_type: WorkflowType,
    pub input: Input,
}

/// Makes the effects of a start, and the id of what it starts. The stage passes it in, since tasks, jobs and runs are
/// components of their own.
pub type StartEffects =
    Arc<dyn Fn(StartRequest) -> BoxFuture<'static, Result<(Name, Effects), PlanError>> + Send + Sync>;

/// Plans starts.
#[derive(Clone)]
pub struct StartPlanner {
    effects: StartEffects,
}

/// Where a start comes from.
pub(crate) struct Origin<'a> {
    /// Emits in the context of the cause: tenant, `causedBy`, `via`.
    pub(crate) emitter: Emitter,
    pub(crate) drainer: &'a str,
    /// The key of its claim, unless the workflow type has an idempotency key: then that makes the key.
    pub(crate) claim: ControlKey,
    pub(crate) ttl: Option<Seconds>,
}

/// The context of what `event` leads to through `subscription`.
pub(crate) fn caused_by(emitter: &Emitter, event: &Event, subscription: &str) -> Emitter {
    emitter.handling(event).with_scope(|scope| {
        scope.app = event.app_name.clone();
        scope.context.via.push(subscription.to_owned());
    })
}

impl StartPlanner {
    /// A planner that makes effects with `effects`.
    pub fn new(effects: StartEffects) -> Self {
        Self { effects }
    }

    /// Plans a start: its claim and what it will send, with ids that nothing else has.
    pub(crate) async fn plan(
        &self,
        origin: Origin<'_>,
        workflow_type: &WorkflowType,
        input: Input,
    ) -> Result<PendingEffects, PlanError> {
        let tenant = origin.emitter.scope().tenant.clone();
        let key = match workflow_type.key_of(&input).map_err(PlanError::Invalid)? {
            None => origin.claim,
            Some(key) => keys::keyed_start_claim(&tenant, origin.drainer, &workflow_type.workflow_type, &key),
        };
        let request = StartRequest { emitter: origin.emitter, workflow_type: workflow_type.clone(), input };
        let (started, effects) = (self.effects)(request).await?;
        Ok(PendingEffects { key, effects, started: Some(started), ttl: origin.ttl })
    }
}
