//! Job templates: the tasks of a job that an event starts. In their inputs, at any depth, a text that begins with `$` is a
//! JSONPath over the start's input, `literal:…` is a text, and every other value is itself.

use ledgerline_event::{
    catalogue::JobTask,
    dag::{Node, check_job},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{mapper::LITERAL, path::Path, source::InputSource};

/// As long as the id that a start gives its job: the id of each task must fit beside it.
const EXAMPLE_JOB_ID: &str = "job_00000000000000000000000000";

/// One task of a job template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateTask {
    /// Its id within the job.
    pub task_id: String,
    /// The name by which a worker finds what to run.
    pub name: String,
    /// The ids of its parents, which must be completed first.
    #[serde(default)]
    pub depends_on: Vec<String>,
    /// Its input, with paths.
    #[serde(default)]
    pub input: Map<String, Value>,
    /// How long it may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How many attempts it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
}

impl<'a> From<&'a TemplateTask> for Node<'a> {
    fn from(task: &'a TemplateTask) -> Self {
        Self {
            task_id: &task.task_id,
            name: &task.name,
            depends_on: &task.depends_on,
            timeout_ms: task.timeout_ms,
            max_attempts: task.max_attempts,
        }
    }
}

/// The tasks, with the paths in their inputs replaced by what they find in `input`.
pub fn fill(tasks: &[TemplateTask], input: &Map<String, Value>) -> Result<Vec<JobTask>, String> {
    let source = InputSource::new(input);
    let one = |task: &TemplateTask| {
        let filled =
            fill_map(&task.input, &source).map_err(|reason| format!("task `{}`: {reason}", task.task_id))?;
        Ok(JobTask {
            task_id: task.task_id.clone(),
            name: task.name.clone(),
            depends_on: task.depends_on.clone(),
            input: filled,
            timeout_ms: task.timeout_ms,
            max_attempts: task.max_attempts,
        })
    };
    tasks.iter().map(one).collect()
}

fn fill_map(template: &Map<String, Value>, source: &InputSource<'_>) -> Result<Map<String, Value>, String> {
    template.iter().map(|(name, value)| Ok((name.clone(), fill_value(value, source)?))).collect()
}

fn fill_value(template: &Value, source: &InputSource<'_>) -> Result<Value, String> {
    match template {
        Value::String(text) => match text.strip_prefix(LITERAL) {
            Some(literal) => Ok(literal.into()),
            None if text.starts_with('$') => Path::parse(text)?.find_in(source, "the input"),
            None => Ok(text.as_str().into()),
        },
        Value::Array(items) => items.iter().map(|item| fill_value(item, source)).collect(),
        Value::Object(members) => fill_map(members, source).map(Value::Object),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(template.clone()),
    }
}

/// The error in `tasks`, if there is one; it names the task.
pub(crate) fn fault(tasks: &[TemplateTask]) -> Option<String> {
    check(tasks).err()
}

fn check(tasks: &[TemplateTask]) -> Result<(), String> {
    check_job(EXAMPLE_JOB_ID, tasks.iter().map(Node::from)).map_err(|invalid| invalid.reason)?;
    let inputs = |task: &TemplateTask| {
        check_map(&task.input).map_err(|reason| format!("task `{}`: {reason}", task.task_id))
    };
    tasks.iter().try_for_each(inputs)
}

fn check_map(template: &Map<String, Value>) -> Result<(), String> {
    let one =
        |(name, value): (&String, &Value)| check_value(value).map_err(|reason| format!("{name}: {reason}"));
    template.iter().try_for_each(one)
}

fn check_value(template: &Value) -> Result<(), String> {
    match template {
        Value::String(text) if text.starts_with('$') => match Path::parse(text) {
            Ok(_) => Path::check_root(text, |_| None, |_| Ok(true)),
            Err(reason) => Err(format!("{reason}; `literal:{text}` is the text itself")),
        },
        Value::Array(items) => items.iter().try_for_each(check_value),
        Value::Object(members) => check_map(members),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tasks(json: Value) -> Vec<TemplateTask> {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn paths_are_looked_up_at_any_depth_and_all_else_is_itself() {
        let tasks = tasks(json!([
            {"taskId": "a", "name": "fetch", "input": {
                "id": "$.id", "deep": [{"all": "$.lines[*].sku"}, 1, null, true], "price": "literal:$5", "plain": "x $.id",
            }},
            {"taskId": "b", "name": "report", "dependsOn": ["a"], "timeoutMs": 60_000, "maxAttempts": 5},
        ]));
        assert_eq!(fault(&tasks), None);
        let input = json!({"id": 7, "lines": [{"sku": "s"}, {"sku": "t"}]});
        let filled = fill(&tasks, input.as_object().unwrap()).unwrap();
        assert_eq!(
            serde_json::to_value(&filled).unwrap(),
            json!([
                {"taskId": "a", "name": "fetch", "dependsOn": [], "input": {
                    "id": 7, "deep": [{"all": ["s", "t"]}, 1, null, true], "price": "$5", "plain": "x $.id",
                }},
                {
                    "taskId": "b", "name": "report", "dependsOn": ["a"], "input": {},
                    "timeoutMs": 60_000, "maxAttempts": 5,
                },
            ])
        );
        assert_eq!(fill(&tasks, &Map::new()).unwrap_err(), "task `a`: `$.id` finds nothing in the input");
    }

    #[test]
    fn a_template_that_cannot_become_a_job_names_the_task() {
        for (json, expected) in [
            (json!([]), "has 0 tasks; 1 to 1000 are allowed"),
            (
                json!([{"taskId": "a", "name": "n", "dependsOn": ["a"]}]),
                "the tasks wait for each other: a → a",
            ),
            (
                json!([{"taskId": "a", "name": "n", "maxAttempts": 0}]),
                "task `a`: maxAttempts: is 0; 1 to 100 are allowed",
            ),
            (json!([{"taskId": "x".repeat(98), "name": "n"}]), "has 129 bytes and at most 128 are allowed"),
            (
                json!([{"taskId": "a", "name": "n", "input": {"x": ["$5"]}}]),
                "task `a`: x: \"$5\" is no JSONPath: it goes wrong at position 2; `literal:$5` is the text itself",
            ),
        ] {
            let fault = fault(&tasks(json)).unwrap_or_default();
            assert!(fault.contains(expected), "{expected}: {fault}");
        }
    }
}
