//! The tasks of a job that is started by an event. In their inputs a text that begins with
//! `$` is a JSONPath over the start's input and `literal:…` is a text, at any depth; all else
//! is itself.

use std::collections::{HashMap, HashSet};

use ledgerline_event::catalogue::JobTask;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{mapper::LITERAL, path::Path, row::Input};

/// How many tasks a template may have.
const TASKS_MAX: usize = 1000;
/// The longest task id, in bytes.
const TASK_ID_MAX: usize = 128;

/// One task of a job template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateTask {
    /// Its id within the job.
    pub task_id: String,
    /// What a worker is to run.
    pub name: String,
    /// The tasks that must be completed before.
    #[serde(default)]
    pub depends_on: Vec<String>,
    /// Its input, with paths still to be looked up.
    #[serde(default)]
    pub input: Map<String, Value>,
}

/// The tasks with the paths in their inputs looked up in `input`.
pub fn fill(tasks: &[TemplateTask], input: &Map<String, Value>) -> Result<Vec<JobTask>, String> {
    let source = Input::new(input);
    let one = |task: &TemplateTask| {
        let filled =
            fill_map(&task.input, &source).map_err(|reason| format!("task `{}`: {reason}", task.task_id))?;
        Ok(JobTask {
            task_id: task.task_id.clone(),
            name: task.name.clone(),
            depends_on: task.depends_on.clone(),
            input: filled,
        })
    };
    tasks.iter().map(one).collect()
}

fn fill_map(template: &Map<String, Value>, source: &Input<'_>) -> Result<Map<String, Value>, String> {
    template.iter().map(|(name, value)| Ok((name.clone(), fill_value(value, source)?))).collect()
}

fn fill_value(template: &Value, source: &Input<'_>) -> Result<Value, String> {
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

/// What is wrong with `tasks`; the reason names the task.
pub(crate) fn fault(tasks: &[TemplateTask]) -> Option<String> {
    check(tasks).err()
}

fn check(tasks: &[TemplateTask]) -> Result<(), String> {
    if tasks.is_empty() || tasks.len() > TASKS_MAX {
        return Err(format!("has {} tasks; 1 to {TASKS_MAX} are allowed", tasks.len()));
    }
    let mut known = HashMap::new();
    for (index, task) in tasks.iter().enumerate() {
        let id = &task.task_id;
        if let Some(reason) = id_fault(id) {
            return Err(format!("the id {id:?} of task {} {reason}", index + 1));
        }
        if known.insert(id.as_str(), index).is_some() {
            return Err(format!("two tasks have the id `{id}`"));
        }
    }
    for task in tasks {
        let of_task = |reason: String| format!("task `{}`: {reason}", task.task_id);
        if let Some(unknown) = task.depends_on.iter().find(|parent| !known.contains_key(parent.as_str())) {
            return Err(of_task(format!("depends on `{unknown}`, which is not among the tasks")));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = task.depends_on.iter().find(|parent| !seen.insert(parent.as_str())) {
            return Err(of_task(format!("depends on `{twice}` twice")));
        }
        if task.name.trim().is_empty() {
            return Err(of_task("has no name, so no worker could run it".into()));
        }
        check_map(&task.input).map_err(of_task)?;
    }
    match cycle(tasks, &known) {
        Some(cycle) => Err(format!("the tasks wait for each other: {}", cycle.join(" → "))),
        None => Ok(()),
    }
}

fn id_fault(id: &str) -> Option<&'static str> {
    let hidden = |c: char| ledgerline_event::Name::new("taskId", format!("x{c}x")).is_err();
    if id.is_empty() || id.len() > TASK_ID_MAX {
        return Some("does not have 1 to 128 bytes");
    }
    if id.contains(['#', ':']) {
        return Some("contains `#` or `:`, which separate the parts of a key");
    }
    (id.trim() != id || id.chars().any(hidden)).then_some("has invisible characters")
}

fn check_map(template: &Map<String, Value>) -> Result<(), String> {
    let one =
        |(name, value): (&String, &Value)| check_value(value).map_err(|reason| format!("{name}: {reason}"));
    template.iter().try_for_each(one)
}

fn check_value(template: &Value) -> Result<(), String> {
    match template {
        Value::String(text) if text.starts_with('$') => match Path::parse(text) {
            Ok(_) => Ok(()),
            Err(reason) => Err(format!("{reason}; `literal:{text}` is the text itself")),
        },
        Value::Array(items) => items.iter().try_for_each(check_value),
        Value::Object(members) => check_map(members),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// Tasks that wait for each other, the first also last, as each is waited for by the one before.
fn cycle<'a>(tasks: &'a [TemplateTask], index_of: &HashMap<&str, usize>) -> Option<Vec<&'a str>> {
    // Takes away whatever waits for nothing that is left; a cycle is what stays.
    let mut waiting: Vec<usize> = tasks.iter().map(|task| task.depends_on.len()).collect();
    let mut children = vec![Vec::new(); tasks.len()];
    for (child, task) in tasks.iter().enumerate() {
        for parent in &task.depends_on {
            children[index_of[parent.as_str()]].push(child);
        }
    }
    let mut free: Vec<usize> = (0..tasks.len()).filter(|n| waiting[*n] == 0).collect();
    while let Some(parent) = free.pop() {
        for child in &children[parent] {
            waiting[*child] -= 1;
            if waiting[*child] == 0 {
                free.push(*child);
            }
        }
    }
    let mut at = waiting.iter().position(|count| *count > 0)?;
    let mut path = Vec::new();
    while !path.contains(&at) {
        path.push(at);
        // What stays waits for something that stays.
        let parents = tasks[at].depends_on.iter().map(|parent| index_of[parent.as_str()]);
        at = parents.into_iter().find(|parent| waiting[*parent] > 0)?;
    }
    let first = path.iter().position(|n| *n == at)?;
    path.push(at);
    Some(path[first..].iter().map(|n| tasks[*n].task_id.as_str()).collect())
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
            {"taskId": "b", "name": "report", "dependsOn": ["a"]},
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
                {"taskId": "b", "name": "report", "dependsOn": ["a"], "input": {}},
            ])
        );
        assert_eq!(fill(&tasks, &Map::new()).unwrap_err(), "task `a`: `$.id` finds nothing in the input");
    }

    #[test]
    fn a_template_that_cannot_become_a_job_names_the_task() {
        let task = |id: &str, parents: &[&str]| json!({"taskId": id, "name": "n", "dependsOn": parents});
        for (json, expected) in [
            (json!([]), "has 0 tasks; 1 to 1000 are allowed"),
            (json!([task("a", &[]), task("a", &[])]), "two tasks have the id `a`"),
            (json!([task("a", &["b"])]), "task `a`: depends on `b`, which is not among the tasks"),
            (json!([task("a", &[]), task("b", &["a", "a"])]), "task `b`: depends on `a` twice"),
            (json!([task("a", &["a"])]), "the tasks wait for each other: a → a"),
            (json!([task("x", &["a"]), task("a", &["b"]), task("b", &["a"])]), "a → b → a"),
            (json!([task("a", &["c"]), task("b", &["a"]), task("c", &["b"])]), "a → c → b → a"),
            (json!([task("a:b", &[])]), "the id \"a:b\" of task 1 contains `#` or `:`"),
            (json!([task("", &[])]), "the id \"\" of task 1 does not have 1 to 128 bytes"),
            (json!([task("a", &[]), task("b\u{200b}", &[])]), "of task 2 has invisible characters"),
            (json!([{"taskId": "a", "name": " "}]), "task `a`: has no name"),
            (
                json!([{"taskId": "a", "name": "n", "input": {"x": ["$5"]}}]),
                "task `a`: x: \"$5\" is no JSONPath: it goes wrong at position 2; `literal:$5` is the text itself",
            ),
        ] {
            let fault = fault(&tasks(json)).unwrap_or_default();
            assert!(fault.contains(expected), "{expected}: {fault}");
        }
    }

    #[test]
    fn a_thousand_tasks_in_a_row_are_no_cycle() {
        let row = |n: usize| TemplateTask {
            task_id: n.to_string(),
            name: "n".into(),
            depends_on: if n == 0 { vec![] } else { vec![(n - 1).to_string()] },
            input: Map::new(),
        };
        let mut tasks: Vec<TemplateTask> = (0..1000).map(row).collect();
        assert_eq!(fault(&tasks), None);
        tasks.push(row(1000));
        assert!(fault(&tasks).unwrap().contains("1001 tasks"));
    }
}
