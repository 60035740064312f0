//! Parses the file of `submit` and `job add`, in YAML or JSON. An error names the file, the task and the field.

use std::path::Path;

use anyhow::{Context, bail};
use ledgerline_jobs::{JobSubmission, SubmittedJobTask, TaskSubmission};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::commands::input;

/// A job or a task.
#[derive(Debug)]
pub(in crate::commands) enum Submission {
    Job(JobSubmission),
    Task(TaskSubmission),
}

/// The name of a file in errors.
pub(in crate::commands) fn shown_name(path: &Path) -> String {
    match path == Path::new("-") {
        true => "standard input".into(),
        false => path.display().to_string(),
    }
}

/// The job or the task in a file.
pub(in crate::commands) fn read_submission(path: &Path) -> anyhow::Result<Submission> {
    let text = input::file("FILE", path)?;
    parse_submission(&text, path).with_context(|| shown_name(path))
}

/// The tasks in a file.
pub(in crate::commands) fn read_tasks(path: &Path) -> anyhow::Result<Vec<SubmittedJobTask>> {
    let text = input::file("FILE", path)?;
    parse_tasks(&text, path).with_context(|| shown_name(path))
}

fn parse_submission(text: &str, path: &Path) -> anyhow::Result<Submission> {
    let value = under_tasks(parse_value(text, path)?);
    match &value {
        Value::Object(fields) if fields.contains_key("tasks") => Ok(Submission::Job(deserialize(value)?)),
        Value::Object(fields) if fields.contains_key("name") => Ok(Submission::Task(deserialize(value)?)),
        Value::Object(_) => bail!(
            "has neither `tasks`, which makes it a job, nor `name`, which makes it a task; `submit --help` shows both"
        ),
        Value::Null => bail!("is empty; `submit --help` shows what a job and a task look like"),
        _ => bail!("a job or a task is expected; `submit --help` shows what they look like"),
    }
}

fn parse_tasks(text: &str, path: &Path) -> anyhow::Result<Vec<SubmittedJobTask>> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Tasks {
        tasks: Vec<SubmittedJobTask>,
    }
    let value = under_tasks(parse_value(text, path)?);
    if !value.is_object() {
        bail!("a list of tasks is expected; `job add --help` shows what they look like");
    }
    Ok(deserialize::<Tasks>(value)?.tasks)
}

/// Treats a bare list as the tasks of a job.
fn under_tasks(value: Value) -> Value {
    if value.is_array() { json!({ "tasks": value }) } else { value }
}

/// Parses JSON or YAML, by the extension or else by the first character.
fn parse_value(text: &str, path: &Path) -> anyhow::Result<Value> {
    let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_lowercase);
    let is_json = match extension.as_deref() {
        Some("json") => true,
        Some("yaml" | "yml") => false,
        // YAML takes no tabs, and so not all JSON.
        _ => text.trim_start().starts_with(['{', '[']),
    };
    if is_json {
        return serde_json::from_str(text).context("is not JSON");
    }
    // First as YAML's own value: it notices keys that are there twice.
    let mut yaml: serde_yaml_ng::Value = serde_yaml_ng::from_str(text).context("is not YAML")?;
    yaml.apply_merge().context("is not YAML")?;
    serde_json::to_value(yaml).context("has something that JSON has not")
}

fn deserialize<T: DeserializeOwned>(value: Value) -> anyhow::Result<T> {
    serde_path_to_error::deserialize(&value).map_err(|error| {
        let location = location(error.path(), &value);
        let problem = error.into_inner().to_string();
        let hint = hint(&problem);
        anyhow::anyhow!("{location}{problem}{hint}")
    })
}

/// Where an error is, with the id of the task if it has one.
fn location(path: &serde_path_to_error::Path, value: &Value) -> String {
    use serde_path_to_error::Segment;
    let mut location = String::new();
    let mut segments = path.iter().peekable();
    if let Some(Segment::Map { key }) = segments.peek()
        && key == "tasks"
    {
        segments.next();
        match segments.next() {
            Some(Segment::Seq { index }) => {
                let number = index + 1;
                location = match value["tasks"][*index]["taskId"].as_str() {
                    Some(id) => format!("task {number}, `{id}`: "),
                    None => format!("task {number}: "),
                };
            }
            _ => location = "tasks: ".into(),
        }
    }
    let mut field = String::new();
    for segment in segments {
        match segment {
            Segment::Seq { index } => field.push_str(&format!("[{index}]")),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                let dot = if field.is_empty() { "" } else { "." };
                field.push_str(&format!("{dot}{key}"));
            }
            Segment::Unknown => {}
        }
    }
    match field.is_empty() || location.ends_with(&format!("{field}: ")) {
        true => location,
        false => format!("{location}{field}: "),
    }
}

/// A hint for common mistakes.
fn hint(problem: &str) -> &'static str {
    let Some(found) = problem.strip_prefix("invalid type: ") else { return "" };
    let number = ["integer", "floating point", "boolean"].iter().any(|kind| found.starts_with(kind));
    if number && found.ends_with("expected a string") {
        "; put it in quotes"
    } else if found.starts_with("string") && found.ends_with("expected a sequence") {
        "; write a list, as in [fetch]"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(file: &str, text: &str) -> String {
        format!("{:#}", parse_submission(text, Path::new(file)).unwrap_err())
    }

    #[test]
    fn yaml_and_json_are_told_apart_by_their_name_or_by_how_they_begin() {
        let yaml = "jobId: j\ntasks:\n  - {taskId: a, name: fetch, input: {n: 1}}\n  - {taskId: b, name: load, dependsOn: [a]}\n";
        let json = "{\t\"name\": \"fetch\", \"input\": {\"n\": 1}, \"maxAttempts\": 2}";
        for name in ["job.yaml", "job.yml", "job", "-"] {
            let Submission::Job(job) = parse_submission(yaml, Path::new(name)).unwrap() else {
                panic!("{name}")
            };
            assert_eq!((job.job_id.as_deref(), job.tasks.len()), (Some("j"), 2));
            assert_eq!(job.tasks[1].depends_on, ["a"]);
        }
        for name in ["task.json", "task.JSON", "task", "-"] {
            let Submission::Task(task) = parse_submission(json, Path::new(name)).unwrap() else {
                panic!("{name}")
            };
            assert_eq!((task.name.as_str(), task.max_attempts), ("fetch", Some(2)));
        }
        let list = "- {taskId: a, name: fetch}";
        assert!(matches!(parse_submission(list, Path::new("-")).unwrap(), Submission::Job(_)));
        assert_eq!(parse_tasks(list, Path::new("-")).unwrap().len(), 1);
        assert_eq!(parse_tasks(&format!("tasks:\n  {list}"), Path::new("-")).unwrap().len(), 1);
    }

    #[test]
    fn tasks_may_share_what_they_have_in_common() {
        let text = "tasks:\n  - &first {taskId: a, name: n, timeoutMs: 5}\n  - {<<: *first, taskId: b}\n";
        let tasks = parse_tasks(text, Path::new("-")).unwrap();
        assert_eq!((tasks[1].task_id.as_str(), tasks[1].timeout_ms), ("b", Some(5)));
    }

    #[test]
    fn a_mistake_names_the_task_and_says_what_to_do() {
        for (file, text, expected) in [
            ("-", "", "is empty; `submit --help`"),
            ("-", "input: {a: 1}", "has neither `tasks`, which makes it a job, nor `name`"),
            ("-", "just text", "a job or a task is expected"),
            ("a.json", "{\"name\": }", "is not JSON: expected value at line 1 column 10"),
            ("a.yaml", "tasks:\n  - taskId: a\n  name: b", "is not YAML: "),
            ("a.yaml", "name: a\nname: b", "is not YAML: duplicate entry with key \"name\""),
            ("-", "tasks: 3", "tasks: invalid type: integer `3`, expected a sequence"),
            ("-", "tasks:\n  - {taskId: a}", "task 1, `a`: missing field `name`"),
            ("-", "tasks:\n  - {name: a}", "task 1: missing field `taskId`"),
            (
                "-",
                "tasks:\n  - {taskId: a, name: n}\n  - {taskId: b, name: n, dependson: [a]}",
                "task 2, `b`: dependson: unknown field `dependson`, expected one of",
            ),
            (
                "-",
                "tasks:\n  - {taskId: b, name: n, dependsOn: a}",
                "task 1, `b`: dependsOn: invalid type: string \"a\", expected a sequence; write a list",
            ),
            (
                "-",
                "tasks:\n  - {taskId: 1, name: n}",
                "task 1: taskId: invalid type: integer `1`, expected a string; put it in quotes",
            ),
            ("-", "name: a\ninput: 3", "input: invalid type: integer `3`, expected a map"),
            ("-", "name: a\nretries: 3", "retries: unknown field `retries`, expected one of `name`"),
            ("-", "tasks: []\nname: a", "name: unknown field `name`, expected one of `jobId`"),
        ] {
            let problem = problem(file, text);
            assert!(problem.contains(expected), "{expected}\n{problem}");
        }
    }
}
