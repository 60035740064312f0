use serde_json::json;
use sha2::{Digest, Sha256};

use crate::Event;

/// The hash of an event's content: SHA-256 over the canonical JSON of its app, entity, type, source system,
/// sequence number and properties, without its id, times and causes. Two events with the same idempotency
/// key should have the same hash.
pub fn content_hash(event: &Event) -> String {
    if let Some(hash) = crate::overflow::content_hash_before(&event.properties) {
        return hash.to_owned();
    }
    let content = json!({
        "appName": event.app_name,
        "entityType": event.entity_type,
        "entityId": event.entity_id,
        "eventType": event.event_type,
        "sourceSystem": event.source_system,
        "sequenceNo": event.sequence_no,
        "properties": event.properties,
    });
    // Canonical JSON has no NaN to fail on: a `Value` holds none.
    let canonical = serde_json_canonicalizer::to_vec(&content).unwrap_or_default();
    hex(&Sha256::digest(canonical))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
