//! Moves properties out of an event that is too large for the bus, and back. `ledgerline-ledger` writes them to S3 and
//! reads them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Event, Invalid, Keyed, Properties, content_hash};

/// The largest serialised event that travels whole, in bytes.
pub const LIMIT: usize = 204_800;
/// The property that replaces the moved ones.
pub const MARKER: &str = "_s3Overflow";
/// The field of the marker that says why the moved properties could not be read. Only readers write it.
const MISSING: &str = "missing";
/// The properties that are moved first: those that are large in practice.
const MOVED_FIRST: [&str; 4] = ["output", "outputs", "input", "claudeOutput"];

/// The place of the moved properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// The S3 bucket.
    pub bucket: String,
    /// The object: a JSON object of the moved properties.
    pub key: String,
    /// Hash of the content before anything was moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// The object key for an event's moved properties: `events/<entityId>/<eventId>-payload.json`.
///
/// Characters that a path could misread are percent-encoded; `.` and `..` alone too.
pub fn object_key(entity_id: &str, event_id: &str) -> String {
    format!("events/{}/{}-payload.json", path_segment(entity_id), path_segment(event_id))
}

/// A name as a segment of an object key.
pub fn path_segment(name: &str) -> String {
    let dots_only = name.bytes().all(|byte| byte == b'.');
    let mut segment = String::with_capacity(name.len());
    for byte in name.bytes() {
        let plain =
            byte.is_ascii_alphanumeric() || b"-_:@=+,!~".contains(&byte) || (byte == b'.' && !dots_only);
        if plain {
            segment.push(char::from(byte));
        } else {
            segment.push_str(&format!("%{byte:02X}"));
        }
    }
    segment
}

/// Moves properties out of `event` until it fits under [`LIMIT`], and adds the marker. The moved properties must be stored at
/// `marker.key` before the event is sent.
pub fn split(event: &mut Event, bucket: &str) -> Result<Option<(Marker, Properties)>, Invalid> {
    let size = |event: &Event| {
        serde_json::to_vec(&Keyed { keys: &event.keys(), event }).map_or(0, |json| json.len())
    };
    let mut excess = size(event);
    if excess <= LIMIT {
        return Ok(None);
    }
    let marker = Marker {
        bucket: bucket.to_owned(),
        key: object_key(&event.entity_id, &event.event_id),
        hash: Some(content_hash(event)),
    };
    let marker_json = serde_json::to_value(&marker).map_err(|e| Invalid::new("properties", e.to_string()))?;
    event.properties.insert(MARKER.to_owned(), marker_json);
    excess = size(event).saturating_sub(LIMIT).max(excess - LIMIT);

    let moved_first = |name: &str| MOVED_FIRST.contains(&name);
    let mut by_size: Vec<(bool, usize, String)> = event
        .properties
        .iter()
        .filter(|(name, _)| name.as_str() != MARKER)
        .map(|(name, value)| (moved_first(name), written_size(name, value), name.clone()))
        .collect();
    by_size.sort_unstable_by(|a, b| (b.0, b.1, &a.2).cmp(&(a.0, a.1, &b.2)));

    let mut moved = Properties::new();
    for (_, bytes, name) in by_size {
        if excess == 0 {
            break;
        }
        if let Some(value) = event.properties.remove(&name) {
            moved.insert(name, value);
            excess = excess.saturating_sub(bytes);
        }
    }
    if excess > 0 {
        let reason = format!("the event is still {excess} bytes over {LIMIT} without any of its properties");
        return Err(Invalid::new("context", reason));
    }
    Ok(Some((marker, moved)))
}

fn written_size(name: &str, value: &Value) -> usize {
    let text = |value: &Value| serde_json::to_vec(value).map_or(0, |json| json.len());
    text(&Value::String(name.to_owned())) + 1 + text(value) + 1
}

/// The place of the moved properties, if there are any.
pub fn marker(properties: &Properties) -> Option<Marker> {
    serde_json::from_value(properties.get(MARKER)?.clone()).ok()
}

/// Records in the marker why the moved properties could not be read.
pub fn note_missing(properties: &mut Properties, reason: &str) {
    if let Some(Value::Object(marker)) = properties.get_mut(MARKER) {
        marker.insert(MISSING.to_owned(), reason.into());
    }
}

/// Why the moved properties of an event could not be read, and their key; `None` if nothing is missing.
pub fn missing(properties: &Properties) -> Option<String> {
    let reason = properties.get(MARKER)?.get(MISSING)?.as_str()?;
    Some(format!("{reason}: {}", marker(properties)?.key))
}

/// The hash that the sender took before it moved anything.
pub(crate) fn content_hash_before(properties: &Properties) -> Option<&str> {
    properties.get(MARKER)?.get("hash")?.as_str()
}

/// Puts the moved properties back in place of the marker.
pub fn join(properties: &mut Properties, moved: Properties) {
    properties.remove(MARKER);
    properties.extend(moved);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{Millis, Name};

    fn event(properties: Value) -> Event {
        let name = |value: &str| Name::new("entityId", value).unwrap();
        let Value::Object(properties) = properties else { panic!("an object") };
        Event {
            event_id: name("evnt_1"),
            tenant_id: name("t"),
            app_name: name("a"),
            entity_type: name("TASK"),
            entity_id: name("r"),
            event_type: name("Task Completed"),
            timestamp: Millis::MIN,
            context: Default::default(),
            properties,
            idempotency_key: None,
            caused_by: None,
            workflow_run_id: None,
            source_system: None,
            sequence_no: None,
            ttl: None,
            received_at: None,
        }
    }

    #[test]
    fn a_small_event_travels_whole() {
        assert_eq!(split(&mut event(json!({"output": "x"})), "b").unwrap(), None);
    }

    #[test]
    fn named_properties_leave_before_larger_ones() {
        let mut large = event(
            json!({"a": "x".repeat(100_000), "output": "y".repeat(90_000), "input": "z".repeat(50_000)}),
        );
        let (_, moved) = split(&mut large, "b").unwrap().unwrap();
        assert_eq!(moved.keys().collect::<Vec<_>>(), ["output"]);
    }

    #[test]
    fn nothing_but_a_huge_context_is_an_error() {
        let mut large = event(json!({"a": 1}));
        large.context.origin = Some("x".repeat(300_000));
        assert_eq!(split(&mut large, "b").unwrap_err().field, "context");
    }

    #[test]
    fn object_keys_stay_below_their_folder() {
        assert_eq!(object_key("req-1", "evnt_A"), "events/req-1/evnt_A-payload.json");
        assert_eq!(object_key("job-1:task-A", "e"), "events/job-1:task-A/e-payload.json");
        assert_eq!(object_key("..", "e"), "events/%2E%2E/e-payload.json");
        assert_eq!(object_key("a/../b", "e"), "events/a%2F..%2Fb/e-payload.json");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_leaves_comes_back_and_the_rest_fits(sizes in proptest::collection::btree_map("[a-z]{1,9}|output|input", 0_usize..300_000, 0..8)) {
            let properties = sizes.iter().map(|(name, size)| (name.clone(), json!("é\"".repeat(size / 3)))).collect();
            let whole = event(Value::Object(properties));
            let mut sent = whole.clone();
            let before = content_hash(&whole);
            if let Some((marker, moved)) = split(&mut sent, "bucket").unwrap() {
                prop_assert_eq!(super::marker(&sent.properties), Some(marker));
                let json = serde_json::to_vec(&Keyed { keys: &sent.keys(), event: &sent }).unwrap();
                prop_assert!(json.len() <= LIMIT);
                prop_assert_eq!(content_hash(&sent), before);
                join(&mut sent.properties, moved);
            }
            prop_assert_eq!(sent, whole);
        }
    }
}
