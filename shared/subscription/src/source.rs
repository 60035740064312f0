//! The JSON that paths and filters read: an event's envelope, or the input of a start. The whole JSON is built at most once
//! and only when it is needed; a path to one field reads only that field.

use std::cell::OnceCell;

use ledgerline_event::Event;
use serde_json::{Map, Value};

use crate::path::{Step, descend};

/// JSON in which a path is looked up.
pub(crate) trait Source {
    /// The value at the end of a singular path.
    fn at(&self, steps: &[Step]) -> Option<Value>;
    /// The whole JSON.
    fn whole(&self) -> Result<&Value, String>;
}

impl Source for Value {
    fn at(&self, steps: &[Step]) -> Option<Value> {
        descend(self, steps).cloned()
    }

    fn whole(&self) -> Result<&Value, String> {
        Ok(self)
    }
}

/// The input of a start.
pub(crate) struct InputSource<'a> {
    map: &'a Map<String, Value>,
    json: OnceCell<Value>,
}

impl<'a> InputSource<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, json: OnceCell::new() }
    }
}

impl Source for InputSource<'_> {
    fn at(&self, steps: &[Step]) -> Option<Value> {
        in_map(self.map, steps)
    }

    fn whole(&self) -> Result<&Value, String> {
        Ok(self.json.get_or_init(|| Value::Object(self.map.clone())))
    }
}

/// An event's envelope, without the key attributes.
pub(crate) struct EventSource<'a> {
    event: &'a Event,
    json: OnceCell<Value>,
}

impl<'a> EventSource<'a> {
    pub(crate) fn new(event: &'a Event) -> Self {
        Self { event, json: OnceCell::new() }
    }

    /// The event.
    pub(crate) fn event(&self) -> &'a Event {
        self.event
    }

    /// One field of the envelope.
    fn field(&self, name: &str) -> Option<Value> {
        let event = self.event;
        match name {
            "eventId" => Some(event.event_id.as_str().into()),
            "tenantId" => Some(event.tenant_id.as_str().into()),
            "appName" => Some(event.app_name.as_str().into()),
            "entityType" => Some(event.entity_type.as_str().into()),
            "entityId" => Some(event.entity_id.as_str().into()),
            "eventType" => Some(event.event_type.as_str().into()),
            "timestamp" => Some(event.timestamp.get().into()),
            "context" => serde_json::to_value(&event.context).ok(),
            "properties" => Some(Value::Object(event.properties.clone())),
            "idempotencyKey" => event.idempotency_key.as_deref().map(Value::from),
            "causedBy" => event.caused_by.as_deref().map(Value::from),
            "workflowRunId" => event.workflow_run_id.as_deref().map(Value::from),
            "sourceSystem" => event.source_system.as_deref().map(Value::from),
            "sequenceNo" => event.sequence_no.map(Value::from),
            "ttl" => event.ttl.map(|ttl| ttl.get().into()),
            "receivedAt" => event.received_at.map(|time| time.get().into()),
            _ => None,
        }
    }
}

impl Source for EventSource<'_> {
    fn at(&self, steps: &[Step]) -> Option<Value> {
        match steps {
            [] => self.whole().ok().cloned(),
            [Step::Name(name), rest @ ..] if name == "properties" && !rest.is_empty() => {
                in_map(&self.event.properties, rest)
            }
            [Step::Name(name), rest @ ..] => descend(&self.field(name)?, rest).cloned(),
            [Step::Index(_), ..] => None,
        }
    }

    fn whole(&self) -> Result<&Value, String> {
        if let Some(json) = self.json.get() {
            return Ok(json);
        }
        let json = serde_json::to_value(self.event).map_err(|error| format!("is no JSON: {error}"))?;
        Ok(self.json.get_or_init(|| json))
    }
}

fn in_map(map: &Map<String, Value>, steps: &[Step]) -> Option<Value> {
    match steps {
        [] => Some(Value::Object(map.clone())),
        [Step::Name(name), rest @ ..] => descend(map.get(name)?, rest).cloned(),
        [Step::Index(_), ..] => None,
    }
}

#[cfg(test)]
mod tests {
    use ledgerline_event::{Millis, Seconds};
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_alone_is_what_the_whole_event_has() {
        let mut event: Event = serde_json::from_value(json!({
            "eventId": "e1", "tenantId": "t", "appName": "a", "entityType": "ITEM", "entityId": "10472",
            "eventType": "price.changed", "timestamp": 1_767_453_739_640_u64,
            "context": {"source": "api", "attempt": 2, "via": ["sub_1"], "own": {"x": 1}},
            "properties": {"old": 1.42, "new": [1, {"deep": true}]},
        }))
        .unwrap();
        event.idempotency_key = Some("k".into());
        event.caused_by = Some("workflow:x".into());
        event.workflow_run_id = Some("run".into());
        event.source_system = Some("drain".into());
        event.sequence_no = Some(142);
        event.ttl = Some(Seconds::new(9));
        event.received_at = Some(Millis::MIN);
        let source = EventSource::new(&event);
        let whole = source.whole().unwrap().as_object().unwrap();
        assert_eq!(whole.len(), 16);
        for (name, value) in whole {
            assert_eq!(source.at(&[Step::Name(name.clone())]).as_ref(), Some(value), "{name}");
        }
        let deep = ["properties", "new"].map(|name| Step::Name(name.into()));
        assert_eq!(source.at(&deep), Some(json!([1, {"deep": true}])));
        assert_eq!(source.at(&[]), Some(Value::Object(whole.clone())));
        assert_eq!(source.at(&[Step::Name("PK".into())]), None);
    }
}
