//! Validates an event before the saver writes it. The sender computes every field and key; the saver checks that every field
//! is well-formed, that every key follows from the fields, and that the time is not ahead of its own clock by more than
//! clocks may differ. It does not check the content of `properties`.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::{
    Context, Event, Invalid, Millis, Name, Properties, TEXT_MAX,
    keys::{self, ATTRIBUTES, KeyError, Keys},
};

/// How far a sender's clock may be ahead of the saver's.
pub const MAX_AHEAD_MS: u64 = 5 * 60 * 1000;

/// An event that the saver may write, with its keys as computed here.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidEvent {
    /// The event.
    pub event: Event,
    /// Its keys.
    pub keys: Keys,
}

/// Why an event can never be saved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not a JSON object.
    #[error("{0}")]
    Unreadable(String),
    /// A field that is missing, unknown or malformed.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A field that the envelope does not have.
    #[error("{0}: unknown field")]
    Unknown(String),
    /// Keys that do not follow from the fields.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A time ahead of the saver's clock.
    #[error(
        "timestamp: {timestamp} is {ahead_ms} ms ahead of the saver's clock; at most {MAX_AHEAD_MS} are allowed"
    )]
    Ahead {
        /// The event's time.
        timestamp: Millis,
        /// By how much.
        ahead_ms: u64,
    },
}

impl Refusal {
    /// A short code for metrics and for the dead-letter message.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "UNREADABLE",
            Self::Invalid(_) => "INVALID_FIELD",
            Self::Unknown(_) => "UNKNOWN_FIELD",
            Self::Key(_) => "KEY_MISMATCH",
            Self::Ahead { .. } => "TIMESTAMP_AHEAD",
        }
    }
}

/// Reads an event as its sender wrote it, and validates it.
pub fn validate(detail: &str, now: Millis) -> Result<ValidEvent, Refusal> {
    let mut fields = Fields::read(detail)?;
    let mut found: [String; 16] = Default::default();
    for (attribute, value) in ATTRIBUTES.into_iter().zip(&mut found) {
        *value = fields.required(attribute)?;
    }
    let found = found.each_ref().map(String::as_str);

    let event_id = match fields.optional_name("eventId")? {
        Some(id) => id,
        None => Name::new("SK", keys::parse_sk(found[1])?.1)?,
    };
    let app_name = match fields.optional_name("appName")? {
        Some(app) => app,
        None => Name::new("GSI2PK", keys::parse_app(found[4])?)?,
    };
    let event = Event {
        event_id,
        app_name,
        tenant_id: fields.name("tenantId")?,
        entity_type: fields.name("entityType")?,
        entity_id: fields.name("entityId")?,
        event_type: fields.name("eventType")?,
        timestamp: fields.required("timestamp")?,
        context: fields.optional::<Context>("context")?.unwrap_or_default(),
        properties: fields.optional::<Properties>("properties")?.unwrap_or_default(),
        idempotency_key: fields.text("idempotencyKey")?,
        caused_by: fields.text("causedBy")?,
        workflow_run_id: fields.text("workflowRunId")?,
        source_system: fields.text("sourceSystem")?,
        sequence_no: fields.optional("sequenceNo")?,
        ttl: fields.optional("ttl")?,
        received_at: None,
    };
    fields.expect_empty()?;

    let keys = event.keys();
    if let Some(error) = keys::mismatch(&keys, found) {
        return Err(error.into());
    }
    if let Some(ttl) = event.ttl {
        // Milliseconds, read as seconds, would keep the row for tens of thousands of years.
        let plausible = event.timestamp.seconds().get() + 1..Millis::MIN.get();
        if !plausible.contains(&ttl.get()) {
            let reason =
                format!("{} is not a time after the event's own (epoch seconds are expected)", ttl.get());
            return Err(Invalid::new("ttl", reason).into());
        }
    }
    let ahead_ms = event.timestamp.get().saturating_sub(now.get());
    if ahead_ms > MAX_AHEAD_MS {
        return Err(Refusal::Ahead { timestamp: event.timestamp, ahead_ms });
    }
    Ok(ValidEvent { event, keys })
}

/// The fields of a JSON object. Reading a field removes it, so those that remain are unknown.
struct Fields<'a>(BTreeMap<String, &'a RawValue>);

impl<'a> Fields<'a> {
    fn read(detail: &'a str) -> Result<Self, Refusal> {
        serde_json::from_str(detail)
            .map(Self)
            .map_err(|error| Refusal::Unreadable(format!("detail is not a JSON object: {error}")))
    }

    /// `null` counts as absent: some senders write out what they leave empty.
    fn optional<T: DeserializeOwned>(&mut self, field: &'static str) -> Result<Option<T>, Invalid> {
        match self.0.remove(field) {
            None => Ok(None),
            Some(raw) if raw.get() == "null" => Ok(None),
            Some(raw) => serde_json::from_str(raw.get())
                .map(Some)
                .map_err(|error| Invalid::new(field, without_position(&error))),
        }
    }

    fn required<T: DeserializeOwned>(&mut self, field: &'static str) -> Result<T, Invalid> {
        self.optional(field)?.ok_or_else(|| Invalid::new(field, "is missing"))
    }

    fn optional_name(&mut self, field: &'static str) -> Result<Option<Name>, Invalid> {
        self.optional::<String>(field)?.map(|value| Name::new(field, value)).transpose()
    }

    fn name(&mut self, field: &'static str) -> Result<Name, Invalid> {
        Name::new(field, self.required::<String>(field)?)
    }

    fn text(&mut self, field: &'static str) -> Result<Option<String>, Invalid> {
        let text = self.optional::<String>(field)?;
        match &text {
            Some(text) if text.is_empty() => Err(Invalid::new(field, "is empty; leave it out instead")),
            Some(text) if text.len() > TEXT_MAX => {
                Err(Invalid::new(field, format!("has {} bytes; at most {TEXT_MAX} are allowed", text.len())))
            }
            _ => Ok(text),
        }
    }

    fn expect_empty(self) -> Result<(), Refusal> {
        match self.0.into_keys().next() {
            None => Ok(()),
            Some(field) => Err(Refusal::Unknown(field)),
        }
    }
}

/// serde's message without its "at line 1 column 9": the field is already named.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split_once(" at line ").map_or(text.clone(), |(message, _)| message.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::Keyed;

    const NOW: u64 = 1_767_453_740_000;

    fn sample() -> Value {
        let event = Event {
            event_id: Name::new("eventId", "ddf71f63-b036-4ac7-ad0f-77a7fdfca352").unwrap(),
            tenant_id: Name::new("tenantId", "gbinnovations").unwrap(),
            app_name: Name::new("appName", "task-workflow").unwrap(),
            entity_type: Name::new("entityType", "TASK").unwrap(),
            entity_id: Name::new("entityId", "req-123").unwrap(),
            event_type: Name::new("eventType", "Task Processing Started").unwrap(),
            timestamp: Millis::try_from(1_767_453_739_640).unwrap(),
            context: Context { source: Some("system".into()), ..Context::default() },
            properties: json!({"requestId": "req-123"}).as_object().unwrap().clone(),
            idempotency_key: None,
            caused_by: None,
            workflow_run_id: None,
            source_system: None,
            sequence_no: None,
            ttl: None,
            received_at: None,
        };
        serde_json::to_value(Keyed { keys: &event.keys(), event: &event }).unwrap()
    }

    fn validate_value(value: &Value) -> Result<ValidEvent, Refusal> {
        validate(&value.to_string(), Millis::try_from(NOW).unwrap())
    }

    fn with(field: &str, value: Value) -> Value {
        let mut event = sample();
        event[field] = value;
        event
    }

    #[test]
    fn ids_that_a_sender_leaves_out_come_from_the_keys() {
        let mut event = sample();
        event.as_object_mut().unwrap().retain(|field, _| field != "eventId" && field != "appName");
        let valid = validate_value(&event).unwrap();
        assert_eq!(valid.event.event_id.as_str(), "ddf71f63-b036-4ac7-ad0f-77a7fdfca352");
        assert_eq!(valid.event.app_name.as_str(), "task-workflow");
        assert_eq!(valid, validate_value(&sample()).unwrap());
    }

    #[test]
    fn every_refusal_names_its_field() {
        let cases = [
            (json!([]), "UNREADABLE", "detail is not a JSON object"),
            (with("entityId", json!("a#b")), "INVALID_FIELD", "entityId: `a#b` contains '#'"),
            (with("entityId", json!("other")), "KEY_MISMATCH", "GSI1PK: `TASK#req-123` does not match"),
            (with("tenantId", json!("other")), "KEY_MISMATCH", "PK: `TENANT#gbinnovations` does not match"),
            (with("GSI7SK", json!("x")), "KEY_MISMATCH", "GSI7SK: `x` does not match"),
            (with("GSI7SK", Value::Null), "INVALID_FIELD", "GSI7SK: is missing"),
            (with("eventType", json!("")), "INVALID_FIELD", "eventType: is empty"),
            (with("timestamp", json!(1_767_453_739)), "INVALID_FIELD", "timestamp: 1767453739 has 10 digits"),
            (with("timestamp", json!("soon")), "INVALID_FIELD", "timestamp: invalid type: string"),
            (with("properties", json!([1])), "INVALID_FIELD", "properties: invalid type: sequence"),
            (with("sequenceNo", json!(-1)), "INVALID_FIELD", "sequenceNo: invalid value"),
            (with("causedBy", json!("x".repeat(513))), "INVALID_FIELD", "causedBy: has 513 bytes"),
            (with("idempotencyKey", json!("")), "INVALID_FIELD", "idempotencyKey: is empty"),
            (with("ttl", json!(1_767_453_739)), "INVALID_FIELD", "ttl: 1767453739 is not a time after"),
            (
                with("ttl", json!(1_967_453_739_000_u64)),
                "INVALID_FIELD",
                "ttl: 1967453739000 is not a time after",
            ),
            (with("receivedAt", json!(NOW)), "UNKNOWN_FIELD", "receivedAt: unknown field"),
            (with("colour", json!("red")), "UNKNOWN_FIELD", "colour: unknown field"),
        ];
        for (event, code, message) in cases {
            let refusal = validate_value(&event).unwrap_err();
            assert_eq!(refusal.code(), code, "{refusal}");
            assert!(refusal.to_string().starts_with(message), "{refusal}");
        }
    }

    #[test]
    fn a_clock_may_be_five_minutes_ahead_and_no_more() {
        let now = |ms| Millis::try_from(1_767_453_739_640 - ms).unwrap();
        let detail = sample().to_string();
        assert!(validate(&detail, now(MAX_AHEAD_MS)).is_ok());
        let refusal = validate(&detail, now(MAX_AHEAD_MS + 1)).unwrap_err();
        assert_eq!(refusal.code(), "TIMESTAMP_AHEAD");
        assert!(refusal.to_string().starts_with("timestamp: "));
    }

    fn name() -> impl Strategy<Value = Name> {
        "[a-zA-Zäß:._-]{1,12}( [a-z]{1,5})?".prop_map(|text| Name::new("name", text).unwrap())
    }

    proptest! {
        #[test]
        fn an_event_that_a_sender_writes_is_read_back_as_it_was(
            names in proptest::array::uniform6(name()), time in Millis::MIN.get()..=NOW,
            causes in proptest::option::of("[a-z]{1,20}"), sequence_no in proptest::option::of(any::<u64>()),
            properties in proptest::collection::btree_map("[a-zA-Z_]{0,5}", any::<i64>(), 0..4),
        ) {
            let [event_id, tenant_id, app_name, entity_type, entity_id, event_type] = names;
            let event = Event {
                event_id,
                tenant_id,
                app_name,
                entity_type,
                entity_id,
                event_type,
                timestamp: Millis::try_from(time).unwrap(),
                context: Context { via: causes.iter().cloned().collect(), ..Context::default() },
                properties: properties.into_iter().map(|(field, number)| (field, number.into())).collect(),
                idempotency_key: causes.clone(),
                caused_by: causes,
                workflow_run_id: None,
                source_system: None,
                sequence_no,
                ttl: None,
                received_at: None,
            };
            let written = serde_json::to_string(&Keyed { keys: &event.keys(), event: &event }).unwrap();
            let valid = validate(&written, Millis::try_from(NOW).unwrap()).unwrap();
            prop_assert_eq!(&valid.keys, &event.keys());
            prop_assert_eq!(valid.event, event);
        }
    }
}
