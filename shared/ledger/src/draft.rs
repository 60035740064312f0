//! An event on its way to being emitted: the producer says what happened, the rest is filled in.

use ledgerline_event::{Context, Event, Invalid, MAX_AHEAD_MS, Millis, Name, Properties, TEXT_MAX};
use serde::Serialize;
use serde_json::Value;

use crate::{EmitError, Emitter, emit::raw_properties};

/// An event to be. Mistakes are reported when it is emitted, with the field they are in.
#[derive(Clone, Debug)]
#[must_use = "a draft is nothing until it is emitted"]
pub struct Draft<P = Value> {
    emitter: Emitter,
    event_type: String,
    entity: Option<(String, String)>,
    app: Option<String>,
    properties: P,
    at: Option<Millis>,
    event_id: Option<Name>,
    idempotency_key: Option<String>,
    caused_by: Option<String>,
    workflow_run_id: Option<String>,
    source_system: Option<String>,
    sequence_no: Option<u64>,
    attempt: Option<u32>,
}

impl<P> Draft<P> {
    pub(crate) fn new(emitter: Emitter, event_type: String, properties: P) -> Self {
        Self {
            emitter,
            event_type,
            entity: None,
            app: None,
            properties,
            at: None,
            event_id: None,
            idempotency_key: None,
            caused_by: None,
            workflow_run_id: None,
            source_system: None,
            sequence_no: None,
            attempt: None,
        }
    }

    /// What the event is about: `("STORE", "store-123")`.
    pub fn entity(mut self, entity_type: impl Into<String>, entity_id: impl Into<String>) -> Self {
        self.entity = Some((entity_type.into(), entity_id.into()));
        self
    }

    /// The properties: JSON, or anything that serialises to an object.
    pub fn properties<Q: Serialize>(self, properties: Q) -> Draft<Q> {
        Draft {
            emitter: self.emitter,
            event_type: self.event_type,
            entity: self.entity,
            app: self.app,
            properties,
            at: self.at,
            event_id: self.event_id,
            idempotency_key: self.idempotency_key,
            caused_by: self.caused_by,
            workflow_run_id: self.workflow_run_id,
            source_system: self.source_system,
            sequence_no: self.sequence_no,
            attempt: self.attempt,
        }
    }

    /// Another app than the emitter's.
    pub fn app(mut self, app: impl Into<String>) -> Self {
        self.app = Some(app.into());
        self
    }

    /// When it happened, if not now.
    pub fn at(mut self, time: Millis) -> Self {
        self.at = Some(time);
        self
    }

    /// A given id instead of a new one; the same event emitted twice is then saved once.
    pub fn event_id(mut self, id: Name) -> Self {
        self.event_id = Some(id);
        self
    }

    /// Events of the tenant with the same key collapse onto the first.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// What led to it, if it is not what the emitter's context says.
    pub fn caused_by(mut self, cause: impl Into<String>) -> Self {
        self.caused_by = Some(cause.into());
        self
    }

    /// The run that it belongs to, if it is not the emitter's.
    pub fn workflow_run_id(mut self, id: impl Into<String>) -> Self {
        self.workflow_run_id = Some(id.into());
        self
    }

    /// The system that the fact comes from.
    pub fn source_system(mut self, system: impl Into<String>) -> Self {
        self.source_system = Some(system.into());
        self
    }

    /// The sender's own counter for the entity.
    pub fn sequence_no(mut self, number: u64) -> Self {
        self.sequence_no = Some(number);
        self
    }

    /// Which attempt at a task it belongs to.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = Some(attempt);
        self
    }

    /// The event as it will be sent, before any overflow.
    pub fn build(self) -> Result<Event<P>, Invalid> {
        let scope = self.emitter.scope();
        let (entity_type, entity_id) =
            self.entity.ok_or_else(|| Invalid::new("entityId", "is missing: say what the event is about"))?;
        let app_name = match self.app {
            Some(app) => Name::new("app", app)?,
            None => scope.app.clone(),
        };
        let timestamp = self.at.unwrap_or_else(|| self.emitter.now());
        let ahead = timestamp.get().saturating_sub(self.emitter.now().get());
        if ahead > MAX_AHEAD_MS {
            let reason = format!("is {ahead} ms in the future; at most {MAX_AHEAD_MS} are allowed");
            return Err(Invalid::new("timestamp", reason));
        }
        let event_id = self.event_id.unwrap_or_else(|| self.emitter.next_ordered_event_id());
        let attempt = self.attempt.or(scope.context.attempt);
        Ok(Event {
            event_id,
            tenant_id: scope.tenant.clone(),
            app_name,
            entity_type: Name::new("entityType", entity_type)?,
            entity_id: Name::new("entityId", entity_id)?,
            event_type: Name::new("eventType", self.event_type)?,
            timestamp,
            context: Context { attempt, ..scope.context.clone() },
            properties: self.properties,
            idempotency_key: text("idempotencyKey", self.idempotency_key)?,
            caused_by: text("causedBy", self.caused_by.or_else(|| scope.caused_by.clone()))?,
            workflow_run_id: text(
                "workflowRunId",
                self.workflow_run_id.or_else(|| scope.workflow_run_id.clone()),
            )?,
            source_system: text("sourceSystem", self.source_system)?,
            sequence_no: self.sequence_no,
            ttl: None,
            received_at: None,
        })
    }
}

impl<P: Serialize + Send + Sync> Draft<P> {
    /// The event with plain properties, checked as emitting would check them.
    pub fn build_plain(self) -> Result<Event, Invalid> {
        let event = self.build()?;
        let raw = raw_properties(&event.properties)?;
        let properties: Properties =
            serde_json::from_str(raw.get()).map_err(|error| Invalid::new("properties", error.to_string()))?;
        Ok(event.map_properties(|_| properties))
    }

    /// Sends it; the answer is the event's id once the bus has taken it.
    pub async fn emit(self) -> Result<Name, EmitError> {
        let emitter = self.emitter.clone();
        let mut fates = emitter.emit_all(vec![self]).await;
        fates
            .pop()
            .unwrap_or_else(|| Err(EmitError::NotAccepted { code: "Lost".into(), message: "no fate".into() }))
    }
}

fn text(field: &'static str, value: Option<String>) -> Result<Option<String>, Invalid> {
    match &value {
        Some(text) if text.is_empty() => Err(Invalid::new(field, "is empty; leave it out instead")),
        Some(text) if text.len() > TEXT_MAX => {
            Err(Invalid::new(field, format!("has {} bytes; at most {TEXT_MAX} are allowed", text.len())))
        }
        _ => Ok(value),
    }
}
