use serde_json::json;
use sha2::{Digest, Sha256};

use crate::Event;

/// What an event says, whoever sent it and when: SHA-256 over its canonical JSON without ids
/// of its own, times and causes. Two events with one idempotency key should agree in it.
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
