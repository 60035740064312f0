//! Subscriptions and workflow types: what a tenant has registered. All of it is checked when it is written. Every
//! change of a subscription is counted in its drainer's state, so a pass knows without a request whether the
//! subscriptions that it compiled are still current.

use std::collections::BTreeMap;

use ledgerline_event::{Event, Invalid, Kind, Millis, Name, keys::moment};
use ledgerline_ledger::{Found, check_storable};
use ledgerline_store::MarkStamp;
use ledgerline_subscription::{
    Kind as WorkflowKind, OnFailure, Subscription, WorkflowType, reserved_beginning,
};
use serde::{Deserialize, Serialize};

use crate::{DEFAULT_DRAINER, Registry};
use ledgerline_outbox::ComponentError;

/// The longest record, as JSON: an item has 400 KB.
const MAX_BYTES: usize = 300_000;

/// Only so many of the newest events are searched for one that is not the system's own.
const MAX_LOOKED_AT: usize = 50;

/// A subscription to create. A field that is left out gets its default.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs)]
pub struct NewSubscription {
    pub event_type_glob: String,
    pub workflow_type: Name,
    #[serde(default)]
    pub drainer_id: Option<Name>,
    #[serde(default)]
    pub input_mapper: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub filter_expr: Option<String>,
    #[serde(default)]
    pub enabled: Option<bool>,
    #[serde(default)]
    pub on_failure: Option<OnFailure>,
    /// Where a drainer that is new to the tenant begins: at this time, or at the beginning of the ledger.
    #[serde(default, deserialize_with = "digits_or_text")]
    pub start_at: Option<String>,
}

/// A change of a subscription: a field that is left out stays as it is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs)]
pub struct SubscriptionChange {
    pub event_type_glob: Option<String>,
    pub workflow_type: Option<Name>,
    /// `null` takes the mapper away.
    #[serde(default, deserialize_with = "given")]
    pub input_mapper: Option<Option<BTreeMap<String, String>>>,
    /// `null` takes the filter away.
    #[serde(default, deserialize_with = "given")]
    pub filter_expr: Option<Option<String>>,
    pub enabled: Option<bool>,
    pub on_failure: Option<OnFailure>,
}

/// A time is 13 digits, as a number or in quotes, or RFC 3339.
fn digits_or_text<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "13 digits or a time like 2026-05-25T14:23:11Z is expected")]
    enum Time {
        Digits(u64),
        Text(String),
    }
    Ok(Option::<Time>::deserialize(from)?.map(|time| match time {
        Time::Digits(number) => number.to_string(),
        Time::Text(text) => text,
    }))
}

/// Distinguishes `null` from a field that is left out.
fn given<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

impl Registry {
    /// Adds a subscription.
    pub async fn subscribe(
        &self,
        tenant: &Name,
        new: NewSubscription,
    ) -> Result<Subscription, ComponentError> {
        let now = self.emitter.now();
        let start_at = new.start_at.clone();
        let subscription = self.draft(tenant, self.emitter.new_id(Kind::Subscription), new)?;
        let start_at = match start_at.as_deref() {
            None => None,
            Some(text) => Some(Millis::parse("startAt", text)?),
        };
        if let Some(start_at) = start_at {
            if start_at > now {
                return Err(Invalid::new("startAt", "lies in the future").into());
            }
            if self.states.get(tenant, &subscription.drainer_id).await?.is_some() {
                let reason = format!(
                    "`{}` has begun for this tenant already; rewind it instead",
                    subscription.drainer_id
                );
                return Err(Invalid::new("startAt", reason).into());
            }
        }
        let begin = start_at.map_or_else(String::new, moment);
        self.subscriptions.add(&subscription, &begin, &self.mark_stamp()).await?;
        Ok(subscription)
    }

    /// What a subscription would be, checked and not stored.
    pub(crate) fn draft(
        &self,
        tenant: &Name,
        subscription_id: Name,
        new: NewSubscription,
    ) -> Result<Subscription, Invalid> {
        let drainer = new.drainer_id.as_deref().unwrap_or(DEFAULT_DRAINER);
        let subscription = Subscription {
            subscription_id,
            tenant_id: tenant.clone(),
            drainer_id: self.drainers.for_subscriptions("drainerId", drainer)?.id.clone(),
            event_type_glob: new.event_type_glob,
            workflow_type: new.workflow_type,
            input_mapper: new.input_mapper,
            filter_expr: new.filter_expr,
            enabled: new.enabled.unwrap_or(true),
            on_failure: new.on_failure.unwrap_or_default(),
            created_at: self.emitter.now(),
        };
        check(&subscription)?;
        Ok(subscription)
    }

    /// A tenant's subscriptions, in the order of their creation.
    pub async fn subscriptions(&self, tenant: &Name) -> Result<Vec<Subscription>, ComponentError> {
        Ok(self.subscriptions.of_tenant(tenant).await?)
    }

    /// One subscription.
    pub async fn subscription(&self, tenant: &Name, id: &str) -> Result<Subscription, ComponentError> {
        let found = match Kind::of(id) {
            Some(Kind::Subscription) => self.subscriptions.get(tenant, id).await?,
            _ => None,
        };
        found.ok_or_else(|| ComponentError::Unknown {
            what: "subscription",
            id: id.to_owned(),
            hint: "; `ledgerline subscriptions list` shows those that there are".into(),
        })
    }

    /// Changes a subscription.
    pub async fn change_subscription(
        &self,
        tenant: &Name,
        id: &str,
        change: SubscriptionChange,
    ) -> Result<Subscription, ComponentError> {
        let before = self.subscription(tenant, id).await?;
        let stored = before.clone();
        let after = Subscription {
            event_type_glob: change.event_type_glob.unwrap_or(before.event_type_glob),
            workflow_type: change.workflow_type.unwrap_or(before.workflow_type),
            input_mapper: change.input_mapper.unwrap_or(before.input_mapper),
            filter_expr: change.filter_expr.unwrap_or(before.filter_expr),
            enabled: change.enabled.unwrap_or(before.enabled),
            on_failure: change.on_failure.unwrap_or(before.on_failure),
            ..before
        };
        after.check_change(&stored)?;
        holdable("inputMapper", &after)?;
        self.subscriptions.replace(&after, &self.mark_stamp()).await?;
        Ok(after)
    }

    /// Removes a subscription. What it started goes on.
    pub async fn unsubscribe(&self, tenant: &Name, id: &str) -> Result<Subscription, ComponentError> {
        let subscription = self.subscription(tenant, id).await?;
        self.subscriptions.delete(&subscription, &self.mark_stamp()).await?;
        Ok(subscription)
    }

    /// The mark that a change leaves for the drainer.
    fn mark_stamp(&self) -> MarkStamp {
        MarkStamp { nonce: self.emitter.new_event_id(), now: self.emitter.now() }
    }

    /// Registers a workflow type, or replaces it.
    pub async fn register(&self, tenant: &Name, workflow_type: &WorkflowType) -> Result<(), ComponentError> {
        workflow_type.check()?;
        let open_ended =
            if matches!(workflow_type.kind, WorkflowKind::Job { .. }) { "tasks" } else { "match" };
        holdable(open_ended, workflow_type)?;
        Ok(self.workflow_types.put(tenant, workflow_type).await?)
    }

    /// A tenant's workflow types, by name.
    pub async fn workflow_types(&self, tenant: &Name) -> Result<Vec<WorkflowType>, ComponentError> {
        Ok(self.workflow_types.of_tenant(tenant).await?)
    }

    pub(crate) async fn types_of(
        &self,
        tenant: &Name,
    ) -> Result<BTreeMap<Name, WorkflowType>, ComponentError> {
        let types = self.workflow_types(tenant).await?;
        Ok(types.into_iter().map(|known| (known.workflow_type.clone(), known)).collect())
    }

    /// Removes a workflow type. Starts of subscriptions to it fail until it is back.
    pub async fn unregister(
        &self,
        tenant: &Name,
        workflow_type: &str,
    ) -> Result<WorkflowType, ComponentError> {
        let unknown = || unregistered(workflow_type);
        let name = Name::new("workflowType", workflow_type).map_err(|_| unknown())?;
        self.workflow_types.delete(tenant, &name).await?.ok_or_else(unknown)
    }

    /// The newest event of a tenant; one of the system's own only if there is no other among the newest.
    pub async fn newest(&self, tenant: &Name) -> Result<Option<Event>, ComponentError> {
        let mut place = moment(Millis::MAX);
        let mut newest = None;
        for _ in 0..MAX_LOOKED_AT {
            let Some(sk) = self.timeline.before(tenant, &place).await? else { break };
            let event = self.timeline.at(tenant, &sk).await?;
            if event.as_ref().is_some_and(|event| reserved_beginning(&event.event_type).is_none()) {
                return Ok(event);
            }
            newest = newest.or(event);
            place = sk;
        }
        Ok(newest)
    }

    /// The event with this id.
    pub async fn event(&self, tenant: &Name, event_id: &str) -> Result<Event, ComponentError> {
        let unknown = |hint: String| ComponentError::Unknown { what: "event", id: event_id.to_owned(), hint };
        let sk = match self.timeline.find(tenant, event_id).await? {
            Found::At(sk) => sk,
            Found::Nowhere => return Err(unknown(String::new())),
            Found::NotReached(place) => {
                let since = ledgerline_event::keys::time_of(&place).map_or(place, Millis::to_rfc3339);
                return Err(unknown(format!(" since {since}; older events were not read")));
            }
        };
        self.timeline.at(tenant, &sk).await?.ok_or_else(|| unknown(String::new()))
    }
}

fn check(subscription: &Subscription) -> Result<(), Invalid> {
    subscription.check()?;
    holdable("inputMapper", subscription)
}

/// Whether the table can hold a record. The error names `field`, the field that has no limit of its own.
fn holdable(field: &'static str, record: &impl Serialize) -> Result<(), Invalid> {
    let json = serde_json::to_string(record).map_err(|error| Invalid::new(field, error.to_string()))?;
    if json.len() > MAX_BYTES {
        let reason =
            format!("is too long: {} bytes with all the rest; at most {MAX_BYTES} are kept", json.len());
        return Err(Invalid::new(field, reason));
    }
    check_storable(&json).map_err(|reason| Invalid::new(field, reason))
}

pub(crate) fn unregistered(workflow_type: &str) -> ComponentError {
    ComponentError::Unknown {
        what: "workflow type",
        id: workflow_type.to_owned(),
        hint: "; `ledgerline workflows list` shows those that there are".into(),
    }
}
