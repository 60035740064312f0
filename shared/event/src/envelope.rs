//! The envelope: the fields that every event has, whatever its type.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    Millis, Name, Seconds,
    keys::{KeyFields, Keys},
};

/// The longest `idempotencyKey`, `causedBy`, `workflowRunId` or `sourceSystem`, in bytes.
pub const TEXT_MAX: usize = 512;

/// Properties of an event of any type, in the catalogue or not: plain JSON.
pub type Properties = Map<String, Value>;

/// The field, if it is there and has the type.
pub(crate) fn read_field<T: DeserializeOwned>(properties: &Properties, field: &str) -> Option<T> {
    properties.get(field).and_then(|value| T::deserialize(value).ok())
}

/// One event without its keys, which follow from its fields. `P` is plain JSON or a typed struct of the catalogue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event<P = Properties> {
    /// Unique per tenant and time. This system's ids are `evnt_` and a ULID; the ids of other senders have any form.
    pub event_id: Name,
    /// The tenant whose event it is.
    pub tenant_id: Name,
    /// The application that sent it.
    pub app_name: Name,
    /// The type of the entity that it is about: `TASK`, `JOB`, `STORE`, …
    pub entity_type: Name,
    /// The id of that entity.
    pub entity_id: Name,
    /// What happened: `Task Completed`, `price.changed`, …
    pub event_type: Name,
    /// When it happened, by the sender's clock.
    pub timestamp: Millis,
    /// Where and by what it was emitted.
    #[serde(default)]
    pub context: Context,
    /// The details, by event type.
    pub properties: P,
    /// Events of one tenant with the same key collapse onto the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Its cause, as `kind:detail`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caused_by: Option<String>,
    /// The durable workflow run that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow_run_id: Option<String>,
    /// The system in which the fact originates, if that is not the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_system: Option<String>,
    /// The sender's own counter for the entity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_no: Option<u64>,
    /// When the row may be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
    /// When it was first saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_at: Option<Millis>,
}

/// Where and by what an event was emitted. Fields that this struct does not name are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Context {
    /// `system`, `user`, `api`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// `prod`, `dev`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// The component that emitted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The worker that emitted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Which attempt at the task it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Which generation of the task: a resume opens the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// The subscriptions that led here, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<String>,
    /// Other fields of senders.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The longest `via` that effects carry: 4 × `ledgerline_subscription::MAX_VIA`.
const VIA_MAX: usize = 32;

impl Context {
    /// `via` as the effects of this event carry it. A sender may put anything into `via`: this shortens entries that are
    /// longer than a name, and drops the newest of too many, so that no effect is too large for the bus.
    pub fn carried_via(&self) -> Vec<String> {
        let shortened = |via: &String| via[..via.floor_char_boundary(Name::MAX_BYTES)].to_owned();
        self.via.iter().take(VIA_MAX).map(shortened).collect()
    }
}

/// An event together with its keys: what goes over the bus and into the table.
#[derive(Serialize)]
pub struct Keyed<'a, P> {
    /// The sixteen key attributes.
    #[serde(flatten)]
    pub keys: &'a Keys,
    /// The event itself.
    #[serde(flatten)]
    pub event: &'a Event<P>,
}

impl<P> Event<P> {
    /// The seven fields that the keys are made of.
    pub fn key_fields(&self) -> KeyFields<'_> {
        KeyFields {
            tenant_id: &self.tenant_id,
            app_name: &self.app_name,
            entity_type: &self.entity_type,
            entity_id: &self.entity_id,
            event_type: &self.event_type,
            timestamp: self.timestamp,
            event_id: &self.event_id,
        }
    }

    /// The sixteen keys.
    pub fn keys(&self) -> Keys {
        Keys::build(&self.key_fields())
    }

    /// The same event with other properties.
    pub fn map_properties<Q>(self, change: impl FnOnce(P) -> Q) -> Event<Q> {
        Event {
            event_id: self.event_id,
            tenant_id: self.tenant_id,
            app_name: self.app_name,
            entity_type: self.entity_type,
            entity_id: self.entity_id,
            event_type: self.event_type,
            timestamp: self.timestamp,
            context: self.context,
            properties: change(self.properties),
            idempotency_key: self.idempotency_key,
            caused_by: self.caused_by,
            workflow_run_id: self.workflow_run_id,
            source_system: self.source_system,
            sequence_no: self.sequence_no,
            ttl: self.ttl,
            received_at: self.received_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_carry_the_oldest_subscriptions_and_no_more_of_each_than_a_name() {
        let plain = Context { via: vec!["sub_1".into(), "sub_2".into()], ..Context::default() };
        assert_eq!(plain.carried_via(), plain.via);
        let via = (0..1_000).map(|n| format!("{n:04}{}", "ä".repeat(1_000)));
        let large = Context { via: via.collect(), ..Context::default() };
        let carried = large.carried_via();
        assert_eq!(carried.len(), VIA_MAX);
        for (n, via) in carried.iter().enumerate() {
            assert!(via.starts_with(&format!("{n:04}ä")) && via.len() <= Name::MAX_BYTES, "{via}");
        }
    }
}
