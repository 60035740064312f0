//! Checks that a list of tasks can be a job: ids fit into keys, parents exist, and there is an order in which the tasks can
//! run. Every error names the task that causes it.

use std::collections::{HashMap, HashSet};

use crate::{Invalid, Name, catalogue::JobTask, limits::check_limits};

/// How many tasks one request may submit or add.
pub const TASKS_MAX: usize = 1000;

/// Separates the job's id from the task's own in a task's entity id.
const SEPARATOR: char = ':';

/// The parts of a task that are checked.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// Its id within the job.
    pub task_id: &'a str,
    /// The name by which a worker finds what to run.
    pub name: &'a str,
    /// The ids of its parents, which must be completed first.
    pub depends_on: &'a [String],
    /// How long it may run.
    pub timeout_ms: Option<u64>,
    /// How many attempts it has.
    pub max_attempts: Option<u32>,
}

impl<'a> From<&'a JobTask> for Node<'a> {
    fn from(task: &'a JobTask) -> Self {
        Self {
            task_id: &task.task_id,
            name: &task.name,
            depends_on: &task.depends_on,
            timeout_ms: task.timeout_ms,
            max_attempts: task.max_attempts,
        }
    }
}

/// An id without `:`, so that it can be a part of an entity id: the id of a job, of a task within its job, or of a task in
/// no job. The error names `field`.
pub fn bare_id(field: &'static str, value: impl Into<String>) -> Result<Name, Invalid> {
    let name = Name::new(field, value)?;
    if name.contains(SEPARATOR) {
        let reason = format!("`{name}` contains ':', which separates a job's id from its task's");
        return Err(Invalid::new(field, reason));
    }
    Ok(name)
}

/// The longest name of a task, in bytes.
const TASK_NAME_MAX: usize = 256;

/// Checks the name by which workers find what to run.
pub fn check_task_name(name: &str) -> Result<(), Invalid> {
    let wrong = |reason: &str| Err(Invalid::new("name", reason));
    match name {
        _ if name.trim().is_empty() => wrong("has no name, so no worker could run it"),
        _ if name.len() > TASK_NAME_MAX => {
            wrong("has a name of over 256 bytes; what varies belongs into the input")
        }
        _ if name.chars().any(char::is_control) => wrong("has a name with control characters"),
        _ => Ok(()),
    }
}

/// The entity id of a job's task: `<jobId>:<taskId>`.
pub fn task_entity(job_id: &str, task_id: &str) -> Result<Name, Invalid> {
    bare_id("jobId", job_id)?;
    bare_id("taskId", task_id)?;
    let entity = format!("{job_id}{SEPARATOR}{task_id}");
    match entity.len() {
        bytes if bytes > Name::MAX_BYTES => {
            let reason = format!(
                "`{task_id}` is too long: `{entity}` has {bytes} bytes and at most {} are allowed; \
                 shorten the task's or the job's id",
                Name::MAX_BYTES
            );
            Err(Invalid::new("taskId", reason))
        }
        _ => Name::new("taskId", entity),
    }
}

/// The job's id and the task's own, of the entity id of a job's task; `None` for one of another shape.
pub fn split_task_entity(entity_id: &str) -> Option<(&str, &str)> {
    let (job_id, task_id) = entity_id.split_once(SEPARATOR)?;
    (!job_id.is_empty() && !task_id.is_empty() && !task_id.contains(SEPARATOR)).then_some((job_id, task_id))
}

/// Checks that `tasks` can become the job `job_id`.
pub fn check_job<'a>(job_id: &str, tasks: impl IntoIterator<Item = Node<'a>>) -> Result<(), Invalid> {
    bare_id("jobId", job_id)?;
    check(job_id, tasks, None).map_err(|reason| Invalid::new("tasks", reason))
}

/// Checks that `tasks` can be added to the job `job_id`, which has the tasks for which `known` is true.
pub fn check_added<'a>(
    job_id: &str,
    tasks: impl IntoIterator<Item = Node<'a>>,
    known: impl Fn(&str) -> bool,
) -> Result<(), Invalid> {
    bare_id("jobId", job_id)?;
    check(job_id, tasks, Some(&known)).map_err(|reason| Invalid::new("tasks", reason))
}

fn check<'a>(
    job_id: &str,
    tasks: impl IntoIterator<Item = Node<'a>>,
    known: Option<&dyn Fn(&str) -> bool>,
) -> Result<(), String> {
    let tasks: Vec<Node<'a>> = tasks.into_iter().collect();
    if tasks.is_empty() || tasks.len() > TASKS_MAX {
        return Err(format!("has {} tasks; 1 to {TASKS_MAX} are allowed", tasks.len()));
    }
    let in_job = |id: &str| known.is_some_and(|known| known(id));
    let mut index_of = HashMap::new();
    for (index, task) in tasks.iter().enumerate() {
        let id = task.task_id;
        if let Some(reason) = id_fault(id) {
            return Err(format!("the id {id:?} of task {} {reason}", index + 1));
        }
        task_entity(job_id, id)
            .map_err(|invalid| format!("the id of task {}: {}", index + 1, invalid.reason))?;
        if index_of.insert(id, index).is_some() {
            return Err(format!("two tasks have the id `{id}`"));
        }
        if in_job(id) {
            return Err(format!("the job already has a task `{id}`; give the new one another id"));
        }
    }
    for task in &tasks {
        let of_task = |reason: String| format!("task `{}`: {reason}", task.task_id);
        let exists = |parent: &str| index_of.contains_key(parent) || in_job(parent);
        if let Some(unknown) = task.depends_on.iter().find(|parent| !exists(parent)) {
            let place = if known.is_some() { "neither in the job nor added" } else { "not among the tasks" };
            return Err(of_task(format!("depends on `{unknown}`, which is {place}")));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = task.depends_on.iter().find(|parent| !seen.insert(parent.as_str())) {
            return Err(of_task(format!("depends on `{twice}` twice")));
        }
        check_task_name(task.name).map_err(|invalid| of_task(invalid.reason))?;
        check_limits(task.timeout_ms, task.max_attempts).map_err(|invalid| of_task(invalid.to_string()))?;
    }
    match cycle(&tasks, &index_of) {
        Some(cycle) => Err(format!("the tasks wait for each other: {}", cycle.join(" → "))),
        None => Ok(()),
    }
}

fn id_fault(id: &str) -> Option<&'static str> {
    if id.is_empty() || id.len() > Name::MAX_BYTES {
        return Some("does not have 1 to 128 bytes");
    }
    if id.contains(['#', SEPARATOR]) {
        return Some("contains `#` or `:`, which separate the parts of a key");
    }
    Name::new("taskId", id).is_err().then_some("has invisible characters")
}

/// A cycle of tasks in which each depends on the next one; the first is also the last.
fn cycle<'a>(tasks: &[Node<'a>], index_of: &HashMap<&str, usize>) -> Option<Vec<&'a str>> {
    // A parent that is not listed was in the job before, so it depends on none of these.
    let parents = |task: &Node<'a>| -> Vec<usize> {
        task.depends_on.iter().filter_map(|parent| index_of.get(parent.as_str()).copied()).collect()
    };
    let parents: Vec<Vec<usize>> = tasks.iter().map(parents).collect();
    // Removes tasks whose parents are all removed; the tasks that remain contain a cycle.
    let mut waiting: Vec<usize> = parents.iter().map(Vec::len).collect();
    let mut children = vec![Vec::new(); tasks.len()];
    for (child, parents) in parents.iter().enumerate() {
        for parent in parents {
            children[*parent].push(child);
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
        // Each remaining task has a remaining parent.
        at = parents[at].iter().copied().find(|parent| waiting[*parent] > 0)?;
    }
    let first = path.iter().position(|n| *n == at)?;
    path.push(at);
    Some(path[first..].iter().map(|n| tasks[*n].task_id).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn tasks(json: Value) -> Vec<JobTask> {
        serde_json::from_value(json).unwrap()
    }

    fn task(id: &str, parents: &[&str]) -> Value {
        json!({"taskId": id, "name": "n", "dependsOn": parents})
    }

    fn fault(tasks: &[JobTask]) -> String {
        check_job("job-1", tasks.iter().map(Node::from))
            .map_or_else(|invalid| invalid.to_string(), |()| String::new())
    }

    #[test]
    fn tasks_that_cannot_become_a_job_are_named() {
        for (json, expected) in [
            (json!([]), "tasks: has 0 tasks; 1 to 1000 are allowed"),
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
                json!([{"taskId": "a", "name": "n", "timeoutMs": 0}]),
                "task `a`: timeoutMs: is 0; 1 to 43200000",
            ),
            (
                json!([{"taskId": "a", "name": "n", "maxAttempts": 101}]),
                "task `a`: maxAttempts: is 101; 1 to 100",
            ),
            (json!([task("a", &[]), task(&"b".repeat(123), &[])]), "the id of task 2: `bbb"),
        ] {
            let fault = fault(&tasks(json));
            assert!(fault.contains(expected), "{expected}: {fault}");
        }
        assert_eq!(
            fault(&tasks(json!([task("a", &[]), task("b", &["a"]), task(&"c".repeat(122), &["a", "b"])]))),
            ""
        );
    }

    #[test]
    fn a_thousand_tasks_in_a_row_are_no_cycle() {
        let row = |n: usize| match n {
            0 => task("0", &[]),
            n => task(&n.to_string(), &[&(n - 1).to_string()]),
        };
        let mut tasks = tasks((0..1000).map(row).collect());
        assert_eq!(fault(&tasks), "");
        tasks.extend(self::tasks(json!([row(1000)])));
        assert!(fault(&tasks).contains("1001 tasks"));
    }

    #[test]
    fn added_tasks_may_depend_on_those_that_are_there_but_not_replace_them() {
        let fault = |json: Value| {
            let tasks = tasks(json);
            check_added("job-1", tasks.iter().map(Node::from), |id| ["a", "b"].contains(&id))
        };
        assert_eq!(fault(json!([task("c", &["a", "b"]), task("d", &["c", "a"])])), Ok(()));
        for (json, expected) in [
            (json!([task("a", &[])]), "tasks: the job already has a task `a`; give the new one another id"),
            (
                json!([task("c", &["z"])]),
                "tasks: task `c`: depends on `z`, which is neither in the job nor added",
            ),
            (
                json!([task("c", &["a", "d"]), task("d", &["b", "c"])]),
                "tasks: the tasks wait for each other: c → d → c",
            ),
        ] {
            assert_eq!(fault(json).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_tasks_entity_is_its_jobs_id_and_its_own() {
        let entity = task_entity("job-1", "task-A").unwrap();
        assert_eq!(entity.as_str(), "job-1:task-A");
        assert_eq!(split_task_entity(&entity), Some(("job-1", "task-A")));
        for other in ["task-A", ":task-A", "job-1:", "a:b:c"] {
            assert_eq!(split_task_entity(other), None, "{other}");
        }
        for (job_id, task_id, expected) in [
            ("job:1", "a", "jobId: `job:1` contains ':', which separates a job's id from its task's"),
            ("job-1", "a:b", "taskId: `a:b` contains ':'"),
            ("", "a", "jobId: is empty"),
            ("a#b", "a", "jobId: `a#b` contains '#'"),
            ("job-1", &"x".repeat(123), "has 129 bytes and at most 128 are allowed; shorten"),
        ] {
            let error = task_entity(job_id, task_id).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(task_entity("job-1", &"x".repeat(122)).is_ok());
        assert!(bare_id("requestId", "req:1").unwrap_err().to_string().starts_with("requestId: `req:1`"));
    }

    proptest! {
        /// Each task depends on earlier ones only; one more dependency then closes a cycle.
        #[test]
        fn only_a_cycle_refuses_a_list_whose_parents_exist(
            parents in proptest::collection::vec(proptest::collection::vec(any::<prop::sample::Index>(), 0..4), 2..40),
            at in any::<prop::sample::Index>(),
        ) {
            let ids: Vec<String> = (0..parents.len()).map(|n| n.to_string()).collect();
            let mut depends_on: Vec<Vec<String>> = (0..parents.len())
                .map(|n| {
                    let earlier = parents[n].iter().filter(|_| n > 0).map(|index| index.index(n));
                    earlier.collect::<HashSet<usize>>().into_iter().map(|parent| ids[parent].clone()).collect()
                })
                .collect();
            let fault = |depends_on: &[Vec<String>]| {
                let node = |n: usize| Node {
                    task_id: &ids[n],
                    name: "n",
                    depends_on: &depends_on[n],
                    timeout_ms: None,
                    max_attempts: None,
                };
                check_job("job-1", (0..ids.len()).rev().map(node)).err().map(|invalid| invalid.reason)
            };
            prop_assert_eq!(fault(&depends_on), None);
            let child = 1 + at.index(ids.len() - 1);
            if let Some(parent) = depends_on[child].first().cloned() {
                depends_on[parent.parse::<usize>().unwrap()].push(ids[child].clone());
                let reason = fault(&depends_on).unwrap_or_default();
                let cycle = reason.strip_prefix("the tasks wait for each other: ").unwrap_or_default();
                let cycle: Vec<usize> = cycle.split(" → ").filter_map(|id| id.parse().ok()).collect();
                prop_assert!(cycle.len() > 1 && cycle.first() == cycle.last(), "{}", reason);
                for pair in cycle.windows(2) {
                    prop_assert!(depends_on[pair[0]].contains(&ids[pair[1]]), "{}", reason);
                }
            }
        }
    }
}
