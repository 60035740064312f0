//! Subscriptions and workflow types: what a tenant has registered. All of it is checked when it
//! is written, and every change of a subscription is counted in its drainer's record, so that
//! a pass knows without a request whether what it compiled is still true.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::types::{ReturnValue, TransactWriteItem};
use ledgerline_event::{Event, Invalid, Kind, Millis, Name, keys::moment};
use ledgerline_ledger::{
    Found, Patience, StoreError, check_storable,
    control::{
        keys::{self, ControlKey},
        read,
    },
};
use ledgerline_subscription::{
    Kind as WorkflowKind, OnFailure, Subscription, WorkflowType, reserved_beginning,
};
use serde::{Deserialize, Serialize};

use crate::{
    DEFAULT_DRAINER, Dispatch, DispatchError,
    conditional::{number, text},
};

/// The longest record, as JSON: an item has 400 KB.
const MAX_BYTES: usize = 300_000;

/// So many events are looked at for one that is not the system's own.
const LOOKED_BACK: usize = 50;

/// A subscription to be. What is left out has its usual value.
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

/// A change of a subscription: what is left out stays.
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

/// Tells `null` from nothing.
fn given<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

impl Dispatch {
    /// Adds a subscription.
    pub async fn subscribe(
        &self,
        tenant: &Name,
        new: NewSubscription,
    ) -> Result<Subscription, DispatchError> {
        let now = self.now();
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
            if self.records.get(tenant, &subscription.drainer_id).await?.is_some() {
                let reason = format!(
                    "`{}` has begun for this tenant already; rewind it instead",
                    subscription.drainer_id
                );
                return Err(Invalid::new("startAt", reason).into());
            }
        }
        let put = self.control.put_for_transaction(&key(&subscription), &subscription)?;
        let put = put.condition_expression("attribute_not_exists(PK)").build().map_err(built)?;
        self.change(&subscription, TransactWriteItem::builder().put(put).build(), start_at).await?;
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
            created_at: self.now(),
        };
        check(&subscription)?;
        Ok(subscription)
    }

    /// A tenant's subscriptions, in the order of their creation.
    pub async fn subscriptions(&self, tenant: &Name) -> Result<Vec<Subscription>, DispatchError> {
        Ok(self.control.all(&keys::subscriptions(tenant)).await?)
    }

    /// One subscription.
    pub async fn subscription(&self, tenant: &Name, id: &str) -> Result<Subscription, DispatchError> {
        let found = match Kind::of(id) {
            Some(Kind::Subscription) => self.control.get(&keys::subscription(tenant, id)).await?,
            _ => None,
        };
        found.ok_or_else(|| DispatchError::Unknown {
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
    ) -> Result<Subscription, DispatchError> {
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
        let put = self.control.put_for_transaction(&key(&after), &after)?;
        let put = put.condition_expression("attribute_exists(PK)").build().map_err(built)?;
        self.change(&after, TransactWriteItem::builder().put(put).build(), None).await?;
        Ok(after)
    }

    /// Takes a subscription away. What it started goes on.
    pub async fn unsubscribe(&self, tenant: &Name, id: &str) -> Result<Subscription, DispatchError> {
        let subscription = self.subscription(tenant, id).await?;
        let delete = self.control.delete_for_transaction(&key(&subscription)).build().map_err(built)?;
        self.change(&subscription, TransactWriteItem::builder().delete(delete).build(), None).await?;
        Ok(subscription)
    }

    /// Writes a change together with its count, and leaves a mark for the drainer.
    async fn change(
        &self,
        subscription: &Subscription,
        write: TransactWriteItem,
        start_at: Option<Millis>,
    ) -> Result<(), DispatchError> {
        let (tenant, drainer) = (&subscription.tenant_id, &subscription.drainer_id);
        let begin = start_at.map_or_else(String::new, moment);
        let count = self
            .control
            .update_for_transaction(&keys::drain(tenant, drainer))
            .update_expression(
                "SET subscriptions = if_not_exists(subscriptions, :zero) + :one, \
                 #cursor = if_not_exists(#cursor, :begin), beginning = if_not_exists(beginning, :begin), fence = if_not_exists(fence, :zero), createdAt = if_not_exists(createdAt, :now)",
            )
            .expression_attribute_names("#cursor", "cursor")
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":begin", text(&begin))
            .expression_attribute_values(":now", number(self.now().get()))
            .build()
            .map_err(built)?;
        let mark = self
            .control
            .update_for_transaction(&keys::dirty_mark(tenant, drainer))
            .update_expression("SET nonce = :nonce, fence = if_not_exists(fence, :zero), markedAt = :now")
            .expression_attribute_values(":nonce", text(&self.new_event_id()))
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":now", number(self.now().get()))
            .build()
            .map_err(built)?;
        self.transact([
            write,
            TransactWriteItem::builder().update(count).build(),
            TransactWriteItem::builder().update(mark).build(),
        ])
        .await
    }

    pub(crate) async fn transact<const N: usize>(
        &self,
        writes: [TransactWriteItem; N],
    ) -> Result<(), DispatchError> {
        let mut transaction = self.control.transaction();
        for write in writes {
            transaction = transaction.transact_items(write);
        }
        let mut patience = Patience::default();
        loop {
            let sent = transaction.clone().send().await;
            let Err(error) = sent.map_err(|error| StoreError::new("TransactWriteItems", error)) else {
                return Ok(());
            };
            // A drain writes the same record all the time: that passes. A condition that does not hold stays so.
            patience.wait_after(error).await?;
        }
    }

    /// Registers a workflow type, or replaces it.
    pub async fn register(&self, tenant: &Name, workflow_type: &WorkflowType) -> Result<(), DispatchError> {
        workflow_type.check()?;
        let open_ended =
            if matches!(workflow_type.kind, WorkflowKind::Job { .. }) { "tasks" } else { "match" };
        holdable(open_ended, workflow_type)?;
        let key = keys::workflow_type(tenant, &workflow_type.workflow_type);
        let put = self.control.put(&key, workflow_type)?;
        put.send().await.map_err(|error| StoreError::new("PutItem", error))?;
        Ok(())
    }

    /// A tenant's workflow types, by name.
    pub async fn workflow_types(&self, tenant: &Name) -> Result<Vec<WorkflowType>, DispatchError> {
        Ok(self.control.all(&keys::workflow_types(tenant)).await?)
    }

    pub(crate) async fn types_of(
        &self,
        tenant: &Name,
    ) -> Result<BTreeMap<Name, WorkflowType>, DispatchError> {
        let types = self.workflow_types(tenant).await?;
        Ok(types.into_iter().map(|known| (known.workflow_type.clone(), known)).collect())
    }

    /// Takes a workflow type away; what subscribes to it fails until it is back.
    pub async fn unregister(
        &self,
        tenant: &Name,
        workflow_type: &str,
    ) -> Result<WorkflowType, DispatchError> {
        let unknown = || unregistered(workflow_type);
        let name = Name::new("workflowType", workflow_type).map_err(|_| unknown())?;
        let delete =
            self.control.delete(&keys::workflow_type(tenant, &name)).return_values(ReturnValue::AllOld);
        let deleted = delete.send().await.map_err(|error| StoreError::new("DeleteItem", error))?;
        Ok(read(deleted.attributes.ok_or_else(unknown)?)?)
    }

    /// The newest event of a tenant; one of the system's own only if there is no other among the newest.
    pub async fn newest(&self, tenant: &Name) -> Result<Option<Event>, DispatchError> {
        let mut place = moment(Millis::MAX);
        let mut newest = None;
        for _ in 0..LOOKED_BACK {
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
    pub async fn event(&self, tenant: &Name, event_id: &str) -> Result<Event, DispatchError> {
        let unknown = |hint: String| DispatchError::Unknown { what: "event", id: event_id.to_owned(), hint };
        let sk = match self.timeline.find(tenant, event_id).await? {
            Found::At(sk) => sk,
            Found::Nowhere => return Err(unknown(String::new())),
            Found::NotSince(place) => {
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

/// Whether the table can hold a record; `field` is the one that has no bounds of its own.
fn holdable(field: &'static str, record: &impl Serialize) -> Result<(), Invalid> {
    let json = serde_json::to_string(record).map_err(|error| Invalid::new(field, error.to_string()))?;
    if json.len() > MAX_BYTES {
        let reason =
            format!("is too long: {} bytes with all the rest; at most {MAX_BYTES} are kept", json.len());
        return Err(Invalid::new(field, reason));
    }
    check_storable(&json).map_err(|reason| Invalid::new(field, reason))
}

fn key(subscription: &Subscription) -> ControlKey {
    keys::subscription(&subscription.tenant_id, &subscription.subscription_id)
}

pub(crate) fn unregistered(workflow_type: &str) -> DispatchError {
    DispatchError::Unknown {
        what: "workflow type",
        id: workflow_type.to_owned(),
        hint: "; `ledgerline workflows list` shows those that there are".into(),
    }
}

pub(crate) fn built(error: impl std::fmt::Display) -> StoreError {
    StoreError::unreadable("TransactWriteItems", error.to_string())
}
