//! Workflow types: the record of something that a subscription can start.

use std::collections::BTreeMap;

use ledgerline_event::{Invalid, Millis, Name, check_limits};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    glob::reserved_beginning,
    mapper::Recipes,
    path::Path,
    source::InputSource,
    template::{self, TemplateTask},
};

/// The longest idempotency key, in bytes.
const KEY_MAX: usize = 512;

/// One workflow type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowType {
    /// Its name.
    pub workflow_type: Name,
    /// What a start of it becomes.
    #[serde(flatten)]
    pub kind: Kind,
    /// A JSONPath over the start's input: one start per value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// When it was created.
    pub created_at: Millis,
}

/// What a start of a workflow type becomes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum Kind {
    /// One task for a worker.
    Task {
        /// The name by which a worker finds what to run; by default the type's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<Name>,
        /// How long it may run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        /// How many attempts it has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_attempts: Option<u32>,
    },
    /// Several tasks that depend on each other.
    Job {
        /// The template.
        tasks: Vec<TemplateTask>,
    },
    /// A durable workflow.
    Run {
        /// Its name; by default the type's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workflow: Option<Name>,
    },
    /// A sent event, for runs that wait for it.
    Send {
        /// Its name; by default the type's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        event: Option<Name>,
        /// Recipes over the input for the event's match, which waiting runs compare with their criteria.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        r#match: Option<BTreeMap<String, String>>,
    },
}

impl WorkflowType {
    /// Checks that starts of it are possible; the error names the field.
    pub fn check(&self) -> Result<(), Invalid> {
        if let Some(text) = &self.idempotency_key {
            check_key(text).map_err(|reason| Invalid::new("idempotencyKey", reason))?;
        }
        match &self.kind {
            Kind::Task { timeout_ms, max_attempts, .. } => check_limits(*timeout_ms, *max_attempts),
            Kind::Job { tasks } => {
                template::fault(tasks).map_or(Ok(()), |reason| Err(Invalid::new("tasks", reason)))
            }
            Kind::Run { .. } => Ok(()),
            Kind::Send { r#match, .. } => {
                let name = self.target();
                if let Some(beginning) = reserved_beginning(name) {
                    let reason =
                        format!("`{name}` cannot be sent: `{beginning}…` are the system's own events");
                    return Err(Invalid::new("event", reason));
                }
                let checked = r#match.as_ref().map_or(Ok(()), Recipes::check_over_input);
                checked.map_err(|reason| Invalid::new("match", reason))
            }
        }
    }

    /// The name of the task, the workflow or the sent event; a job has the type's name.
    pub fn target(&self) -> &Name {
        let own = match &self.kind {
            Kind::Task { name, .. } => name,
            Kind::Run { workflow } => workflow,
            Kind::Send { event, .. } => event,
            Kind::Job { .. } => &None,
        };
        own.as_ref().unwrap_or(&self.workflow_type)
    }

    /// The idempotency key of a start with `input`, if the type declares one.
    pub fn key_of(&self, input: &Map<String, Value>) -> Result<Option<String>, String> {
        let Some(text) = &self.idempotency_key else { return Ok(None) };
        let of_key = |reason: String| format!("idempotencyKey: {reason}");
        let found = key_path(text).and_then(|path| path.find_in(&InputSource::new(input), "the input"));
        let key = match found.map_err(of_key)? {
            Value::String(key) => key,
            Value::Number(number) => number.to_string(),
            Value::Bool(yes) => yes.to_string(),
            Value::Null => return Err(of_key(format!("`{text}` is null"))),
            Value::Array(_) => {
                return Err(of_key(format!("`{text}` is a list; a text, number or boolean is needed")));
            }
            Value::Object(_) => {
                return Err(of_key(format!("`{text}` is an object; a text, number or boolean is needed")));
            }
        };
        match key.len() {
            0 => Err(of_key(format!("`{text}` is empty"))),
            1..=KEY_MAX => Ok(Some(key)),
            bytes => Err(of_key(format!("`{text}` has {bytes} bytes; at most {KEY_MAX} are allowed"))),
        }
    }

    /// The match of a sent event; empty unless the kind is `send` and has recipes.
    pub fn match_of(&self, input: &Map<String, Value>) -> Result<Map<String, Value>, String> {
        match &self.kind {
            Kind::Send { r#match: Some(recipes), .. } => {
                let found = Recipes::over_input(recipes).and_then(|recipes| recipes.fill(input));
                found.map_err(|reason| format!("match: {reason}"))
            }
            Kind::Send { .. } | Kind::Task { .. } | Kind::Job { .. } | Kind::Run { .. } => Ok(Map::new()),
        }
    }
}

/// Checks that an input can have a key at this path.
fn check_key(text: &str) -> Result<(), String> {
    key_path(text)?;
    if text.trim_end() == "$" {
        return Err(format!("{text:?} is the whole input, an object; a text, number or boolean is needed"));
    }
    Path::check_root(text, |_| None, |_| Ok(true))
}

/// A key is one value, so its path must be singular.
fn key_path(text: &str) -> Result<Path, String> {
    let path = Path::parse(text)?;
    if path.is_singular() {
        return Ok(path);
    }
    Err(format!("{text:?} may find several values; a key needs a path of names and indexes only"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workflow_type(json: Value) -> WorkflowType {
        let mut record = json!({"workflowType": "vendor_cost_review", "createdAt": 1_767_453_739_640_u64});
        record.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn each_kind_is_stored_and_shown_as_one_flat_object() {
        for more in [
            json!({"kind": "task"}),
            json!({"kind": "task", "name": "review", "timeoutMs": 43_200_000, "maxAttempts": 100, "idempotencyKey": "$.id"}),
            json!({"kind": "job", "tasks": [{"taskId": "a", "name": "n", "dependsOn": [], "input": {"x": "$.id"}}]}),
            json!({"kind": "run"}),
            json!({"kind": "run", "workflow": "onboarding"}),
            json!({"kind": "send"}),
            json!({"kind": "send", "event": "approved", "match": {"id": "$.id", "to": "literal:all"}}),
        ] {
            let record = workflow_type(more.clone());
            assert_eq!(record.check(), Ok(()), "{more}");
            let mut written = serde_json::to_value(&record).unwrap();
            written.as_object_mut().unwrap().retain(|name, _| more.get(name).is_some());
            assert_eq!(written, more);
        }
    }

    #[test]
    fn a_check_names_the_field() {
        for (json, expected) in [
            (
                json!({"kind": "task", "timeoutMs": 0}),
                "timeoutMs: is 0; 1 to 43200000 (twelve hours) are allowed",
            ),
            (json!({"kind": "task", "timeoutMs": 43_200_001}), "timeoutMs: is 43200001"),
            (json!({"kind": "task", "maxAttempts": 0}), "maxAttempts: is 0; 1 to 100 are allowed"),
            (json!({"kind": "task", "maxAttempts": 101}), "maxAttempts: is 101"),
            (json!({"kind": "job", "tasks": []}), "tasks: has 0 tasks"),
            (json!({"kind": "send", "match": {"id": "id"}}), "match: id: \"id\" is neither"),
            (json!({"kind": "run", "idempotencyKey": "id"}), "idempotencyKey: \"id\" is no JSONPath"),
            (json!({"kind": "run", "idempotencyKey": "$"}), "idempotencyKey: \"$\" is the whole input"),
            (
                json!({"kind": "run", "idempotencyKey": "$[0].id"}),
                "idempotencyKey: \"$[0].id\" at position 2: `$` is an object",
            ),
            (json!({"kind": "send", "match": {"id": "$[1]"}}), "match: id: \"$[1]\" at position 2"),
            (
                json!({"kind": "run", "idempotencyKey": "$.ids[*]"}),
                "idempotencyKey: \"$.ids[*]\" may find several",
            ),
        ] {
            let error = workflow_type(json).check().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_key_is_one_scalar_of_the_input_as_text() {
        let key = |path: &str, input: Value| {
            workflow_type(json!({"kind": "run", "idempotencyKey": path})).key_of(input.as_object().unwrap())
        };
        assert_eq!(key("$.id", json!({"id": "B5875"})), Ok(Some("B5875".into())));
        assert_eq!(key("$.a[0].id", json!({"a": [{"id": 8421}]})), Ok(Some("8421".into())));
        assert_eq!(key("$.id", json!({"id": 1.5})), Ok(Some("1.5".into())));
        assert_eq!(key("$.id", json!({"id": true})), Ok(Some("true".into())));
        for (input, expected) in [
            (json!({}), "idempotencyKey: `$.id` finds nothing in the input"),
            (json!({"id": null}), "idempotencyKey: `$.id` is null"),
            (json!({"id": [1]}), "idempotencyKey: `$.id` is a list"),
            (json!({"id": {}}), "idempotencyKey: `$.id` is an object"),
            (json!({"id": ""}), "idempotencyKey: `$.id` is empty"),
            (json!({"id": "x".repeat(513)}), "idempotencyKey: `$.id` has 513 bytes"),
        ] {
            let error = key("$.id", input).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        assert_eq!(workflow_type(json!({"kind": "run"})).key_of(&Map::new()), Ok(None));
    }

    #[test]
    fn what_is_started_has_the_types_name_unless_it_has_its_own() {
        for (json, expected) in [
            (json!({"kind": "task"}), "vendor_cost_review"),
            (json!({"kind": "task", "name": "review"}), "review"),
            (json!({"kind": "run", "workflow": "w"}), "w"),
            (json!({"kind": "send", "event": "e"}), "e"),
            (json!({"kind": "send"}), "vendor_cost_review"),
        ] {
            assert_eq!(workflow_type(json).target().as_str(), expected);
        }
    }

    #[test]
    fn a_sent_event_is_matched_by_what_its_recipes_find() {
        let send =
            workflow_type(json!({"kind": "send", "match": {"orderId": "$.order.id", "to": "literal:all"}}));
        let input = json!({"order": {"id": 7}});
        let found = send.match_of(input.as_object().unwrap()).map(Value::Object);
        assert_eq!(found, Ok(json!({"orderId": 7, "to": "all"})));
        assert_eq!(
            send.match_of(&Map::new()),
            Err("match: orderId: `$.order.id` finds nothing in the input".into())
        );
        assert_eq!(workflow_type(json!({"kind": "run"})).match_of(&Map::new()), Ok(Map::new()));
    }
}
