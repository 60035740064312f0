//! Tries subscriptions on an event without starting anything: on an event of the ledger, or on one that the
//! caller makes up.

use std::collections::BTreeMap;

use ledgerline_event::{Context, Event, Invalid, Kind, Millis, Name, Properties, Seconds};
use ledgerline_subscription::{Explanation, Matcher, Subscription};
use serde::Deserialize;

use crate::{NewSubscription, Registry};
use ledgerline_outbox::ComponentError;

/// The app of a sample that names none.
const APP: &str = "ledgerline";
/// Sorts after the id of every stored subscription, as the id of the next one would.
const DRAFT: &str = "sub_draft";

/// An event to try things on, in the shape of an answer. What is left out has its usual value.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs)]
pub struct SampleEvent {
    pub event_type: Name,
    pub entity_type: Name,
    pub entity_id: Name,
    #[serde(default)]
    pub properties: Properties,
    pub event_id: Option<Name>,
    pub tenant_id: Option<Name>,
    pub app_name: Option<Name>,
    pub timestamp: Option<Millis>,
    #[serde(default)]
    pub context: Context,
    pub idempotency_key: Option<String>,
    pub caused_by: Option<String>,
    pub workflow_run_id: Option<String>,
    pub source_system: Option<String>,
    pub sequence_no: Option<u64>,
    pub ttl: Option<Seconds>,
    pub received_at: Option<Millis>,
}

impl Registry {
    /// The sample as an event of `tenant`. It is not emitted.
    pub fn sample(&self, tenant: &Name, sample: SampleEvent) -> Result<Event, Invalid> {
        if sample.tenant_id.as_ref().is_some_and(|of| of != tenant) {
            return Err(Invalid::new(
                "event.tenantId",
                format!("is not `{tenant}`, whose subscriptions are tried"),
            ));
        }
        let now = self.emitter.now();
        Ok(Event {
            event_id: sample.event_id.unwrap_or_else(|| self.emitter.new_id(Kind::Event)),
            tenant_id: tenant.clone(),
            app_name: sample.app_name.map_or_else(|| Name::new("appName", APP), Ok)?,
            entity_type: sample.entity_type,
            entity_id: sample.entity_id,
            event_type: sample.event_type,
            timestamp: sample.timestamp.unwrap_or(now),
            context: sample.context,
            properties: sample.properties,
            idempotency_key: sample.idempotency_key,
            caused_by: sample.caused_by,
            workflow_run_id: sample.workflow_run_id,
            source_system: sample.source_system,
            sequence_no: sample.sequence_no,
            ttl: sample.ttl,
            received_at: Some(sample.received_at.unwrap_or(now)),
        })
    }

    /// What each subscription would do with an event, and why; `draft` is taken for one more of them.
    pub async fn explain(
        &self,
        tenant: &Name,
        event: &Event,
        draft: Option<NewSubscription>,
    ) -> Result<Vec<Explanation>, ComponentError> {
        let draft =
            draft.map(|new| self.draft(tenant, Name::new("subscriptionId", DRAFT)?, new)).transpose()?;
        let types = self.types_of(tenant).await?;
        // Each drainer starts what is its own, and has its own limit.
        let mut drainers: BTreeMap<Name, Vec<Subscription>> = BTreeMap::new();
        for subscription in self.subscriptions(tenant).await?.into_iter().chain(draft) {
            drainers.entry(subscription.drainer_id.clone()).or_default().push(subscription);
        }
        let mut explained: Vec<Explanation> = drainers
            .into_values()
            .flat_map(|subscriptions| Matcher::new(subscriptions).explain(event))
            .collect();
        explained.sort_by(|a, b| a.subscription_id.cmp(&b.subscription_id));
        for one in explained.iter_mut().filter(|one| one.matches && !types.contains_key(&one.workflow_type)) {
            one.matches = false;
            one.reason = format!("fails: the workflow type `{}` is not registered", one.workflow_type);
        }
        Ok(explained)
    }
}
