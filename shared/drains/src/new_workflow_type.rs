//! A workflow type as it is asked for. The stored record takes what it finds; this is where a
//! field that is not there, or not of that kind, is named in the error.

use std::collections::BTreeMap;

use ledgerline_event::{Invalid, Millis, Name};
use ledgerline_subscription::{Kind, TemplateTask, WorkflowType};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The kinds, and the fields that each of them has.
const KINDS: [(&str, &[&str]); 4] = [
    ("task", &["name", "timeoutMs", "maxAttempts"]),
    ("job", &["tasks"]),
    ("run", &["workflow"]),
    ("send", &["event", "match"]),
];

/// A workflow type to be.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs)]
pub struct NewWorkflowType {
    pub workflow_type: String,
    pub kind: String,
    pub idempotency_key: Option<String>,
    pub name: Option<Name>,
    pub timeout_ms: Option<u64>,
    pub max_attempts: Option<u32>,
    pub tasks: Option<Vec<NewTask>>,
    pub workflow: Option<Name>,
    pub event: Option<Name>,
    pub r#match: Option<BTreeMap<String, String>>,
}

/// A task of a job template to be.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs)]
pub struct NewTask {
    pub task_id: String,
    pub name: String,
    #[serde(default)]
    pub depends_on: Vec<String>,
    #[serde(default)]
    pub input: Map<String, Value>,
    pub timeout_ms: Option<u64>,
    pub max_attempts: Option<u32>,
}

impl NewWorkflowType {
    /// The type, checked.
    pub fn created_at(self, now: Millis) -> Result<WorkflowType, Invalid> {
        let workflow_type = Name::new("workflowType", self.workflow_type.as_str())?;
        self.only_fields_of_its_kind()?;
        let kind = match self.kind.as_str() {
            "task" => {
                Kind::Task { name: self.name, timeout_ms: self.timeout_ms, max_attempts: self.max_attempts }
            }
            "job" => {
                let tasks =
                    self.tasks.ok_or_else(|| Invalid::new("tasks", "is missing; a job needs tasks"))?;
                Kind::Job { tasks: tasks.into_iter().map(Into::into).collect() }
            }
            "run" => Kind::Run { workflow: self.workflow },
            _ => Kind::Send { event: self.event, r#match: self.r#match },
        };
        let made =
            WorkflowType { workflow_type, kind, idempotency_key: self.idempotency_key, created_at: now };
        made.check()?;
        Ok(made)
    }

    fn only_fields_of_its_kind(&self) -> Result<(), Invalid> {
        let Some((kind, fields)) = KINDS.iter().find(|(kind, _)| *kind == self.kind) else {
            let known: Vec<String> = KINDS.iter().map(|(kind, _)| format!("`{kind}`")).collect();
            let reason = format!("`{}` is not a kind; there are {}", self.kind, known.join(", "));
            return Err(Invalid::new("kind", reason));
        };
        let given = [
            ("name", self.name.is_some()),
            ("timeoutMs", self.timeout_ms.is_some()),
            ("maxAttempts", self.max_attempts.is_some()),
            ("tasks", self.tasks.is_some()),
            ("workflow", self.workflow.is_some()),
            ("event", self.event.is_some()),
            ("match", self.r#match.is_some()),
        ];
        match given.into_iter().find(|(field, given)| *given && !fields.contains(field)) {
            None => Ok(()),
            Some((field, _)) => {
                let reason = format!("the kind `{kind}` does not have it; it has `{}`", fields.join("`, `"));
                Err(Invalid::new(field, reason))
            }
        }
    }
}

impl From<NewTask> for TemplateTask {
    fn from(task: NewTask) -> Self {
        Self {
            task_id: task.task_id,
            name: task.name,
            depends_on: task.depends_on,
            input: task.input,
            timeout_ms: task.timeout_ms,
            max_attempts: task.max_attempts,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn made(json: Value) -> Result<WorkflowType, String> {
        let new: NewWorkflowType = serde_json::from_value(json).map_err(|error| error.to_string())?;
        new.created_at(Millis::MIN).map_err(|invalid| invalid.to_string())
    }

    #[test]
    fn every_kind_can_be_made_of_its_own_fields() {
        for fields in [
            json!({"kind": "task", "name": "n", "timeoutMs": 1, "maxAttempts": 2}),
            json!({"kind": "job", "tasks": [{"taskId": "a", "name": "n", "timeoutMs": 1, "maxAttempts": 2}]}),
            json!({"kind": "run", "workflow": "w", "idempotencyKey": "$.id"}),
            json!({"kind": "send", "event": "e", "match": {"id": "$.id"}}),
        ] {
            let mut asked = fields.clone();
            asked["workflowType"] = json!("t");
            let made = serde_json::to_value(made(asked).unwrap()).unwrap();
            for (field, value) in fields.as_object().unwrap() {
                match field.as_str() {
                    "tasks" => {
                        let expected = json!({
                            "taskId": "a", "name": "n", "dependsOn": [], "input": {}, "timeoutMs": 1, "maxAttempts": 2,
                        });
                        assert_eq!(made["tasks"][0], expected);
                    }
                    _ => assert_eq!(made[field], *value),
                }
            }
        }
    }

    #[test]
    fn what_is_not_there_or_not_of_that_kind_is_named() {
        for (asked, expected) in [
            (
                json!({"workflowType": "t", "kind": "cron"}),
                "kind: `cron` is not a kind; there are `task`, `job`, `run`, `send`",
            ),
            (
                json!({"workflowType": "t", "kind": "job", "name": "n"}),
                "name: the kind `job` does not have it; it has `tasks`",
            ),
            (json!({"workflowType": "t", "kind": "job"}), "tasks: is missing"),
            (json!({"workflowType": "a#b", "kind": "run"}), "workflowType: `a#b` contains '#'"),
            (json!({"workflowType": "t", "kind": "run", "colour": 1}), "unknown field `colour`"),
            (
                json!({"workflowType": "t", "kind": "job", "tasks": [{"taskId": "a", "name": "n", "dependson": []}]}),
                "unknown field `dependson`",
            ),
            (json!({"workflowType": "t", "kind": "task", "timeoutMs": 0}), "timeoutMs: is 0"),
            (
                json!({"workflowType": "t", "kind": "run", "idempotencyKey": "id"}),
                "idempotencyKey: \"id\" is no JSONPath",
            ),
        ] {
            let error = made(asked.clone()).unwrap_err();
            assert!(error.contains(expected), "{asked}: {error}");
        }
    }
}
