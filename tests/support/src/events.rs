//! Events for tests in which only the id and the time matter.

use ledgerline_event::{Context, Event, Keyed, Millis, Name, ValidEvent};
use serde_json::{Value, json};

/// A valid name.
pub fn name(text: &str) -> Name {
    Name::new("name", text).unwrap()
}

/// A moment.
pub fn at(ms: u64) -> Millis {
    Millis::try_from(ms).unwrap()
}

/// An event of `tenant`, everything else plain.
pub fn event(tenant: &str, id: &str, time: Millis) -> Event {
    Event {
        event_id: name(id),
        tenant_id: name(tenant),
        app_name: name("shop"),
        entity_type: name("ITEM"),
        entity_id: name("10472"),
        event_type: name("price.changed"),
        timestamp: time,
        context: Context::default(),
        properties: json!({"new": 1.48, "id": id}).as_object().unwrap().clone(),
        idempotency_key: None,
        caused_by: None,
        workflow_run_id: None,
        source_system: None,
        sequence_no: None,
        ttl: None,
        received_at: None,
    }
}

/// An event with its keys, as the saver has it after validation.
pub fn admitted(event: Event) -> ValidEvent {
    ValidEvent { keys: event.keys(), event }
}

/// An event as its sender puts it on the bus.
pub fn detail(event: &Event) -> Value {
    serde_json::to_value(Keyed { keys: &event.keys(), event }).unwrap()
}
