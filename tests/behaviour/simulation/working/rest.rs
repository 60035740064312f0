//! What must hold when everything has come to rest.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_dispatch::Dispatch;
use ledgerline_event::{Event, TaskHistory, catalogue::TaskState};
use ledgerline_ledger::control::{Item, keys, read};
use serde_json::Value;

use super::{ATTEMPTS, ByRun, JOB, Plan, Ran, TENANT};
use crate::{
    simulation::Store,
    world::{name, rows_of, scan},
};

/// Everything has come to rest: each started once, each ended once, each child after its parents.
pub(super) async fn check(store: &Store, plan: &Plan, ran: &[Ran], dispatch: &Dispatch) {
    let mut pending: ByRun<Vec<Event>> = BTreeMap::new();
    let mut ends: ByRun<Vec<Event>> = BTreeMap::new();
    let mut told = BTreeMap::new();
    let mut histories: BTreeMap<String, TaskHistory> = BTreeMap::new();
    let (mut completions, mut failures) = (0, BTreeMap::new());
    let mut setbacks = BTreeSet::new();
    for row in rows_of(&store.clients, &store.names.events_table, TENANT).await {
        let event: Event = serde_dynamo::aws_sdk_dynamodb_1::from_item(row).unwrap();
        let run = (event.entity_id.to_string(), event.context.generation.unwrap_or(1));
        if &*event.entity_type == "TASK" {
            histories.entry(run.0.clone()).or_default().add(&event);
        }
        match &*event.event_type {
            "Task Pending" => pending.entry(run).or_default().push(event),
            "Task Completed" | "Task Failed" | "Task Timeout" => ends.entry(run).or_default().push(event),
            "Task Processing Failed" => drop(setbacks.insert((run, event.context.attempt.unwrap()))),
            "Job Completed" => completions += 1,
            "Job Failure Detected" => {
                let task = event.properties["failedTaskId"].as_str().unwrap().to_owned();
                *told.entry(task).or_insert(0) += 1;
            }
            "workflow.dispatch_failed" => panic!("refused: {:?}", event.properties),
            _ => {}
        }
    }
    assert_eq!(completions, 1, "Job Completed");
    for (run, events) in &pending {
        assert_eq!(events.len(), 1, "started more than once: {run:?}");
    }
    for (run, events) in &ends {
        assert_eq!(events.len(), 1, "ended more than once: {run:?}");
        assert!(pending.contains_key(run), "ended and never started: {run:?}");
        // Nobody ends a task that somebody else has taken since.
        let key = keys::task_record(TENANT, &run.0, run.1);
        let record: Value = store.control().get(&key).await.unwrap().unwrap();
        assert_eq!(record["attempt"].as_u64(), events[0].context.attempt.map(u64::from), "{run:?}");
        // Whoever let go of it because of an error has said so, or somebody has for them.
        if let Some(attempt) = record["failedAttempt"].as_u64() {
            let attempt = u32::try_from(attempt).unwrap();
            assert!(setbacks.contains(&(run.clone(), attempt)), "attempt {attempt} of {run:?} is not told");
        }
        assert!(record["counted"].as_u64() <= Some(u64::from(ATTEMPTS)), "{run:?} was tried too often");
        if &*events[0].event_type != "Task Completed" {
            let task = run.0.split_once(':').unwrap().1.to_owned();
            *failures.entry(task).or_insert(0) += 1;
        }
    }
    assert_eq!(told, failures, "failures told, and failures");
    let job = dispatch.job(&name(TENANT), JOB).await.unwrap();
    let count = plan.natures.len();
    let was_added = job.tasks.len() == count;
    assert!(was_added || job.tasks.len() == plan.tasks.as_array().unwrap().len(), "{}", job.tasks.len());
    let record = &job.job.job;
    assert_eq!((record.done, record.total), (record.total, u32::try_from(job.tasks.len()).unwrap()));
    assert_eq!((record.failed, record.active), (0, 0));
    // Each run has what its parents put out, and every attempt has a number of its own.
    let mut attempts = BTreeSet::new();
    for run in ran {
        let Ran { request_id, generation, attempt, input } = run;
        assert!(attempts.insert((request_id.clone(), *generation, *attempt)), "{run:?}");
        let task = request_id.split_once(':').unwrap().1;
        for parent in &plan.parents[task] {
            let parent_id = format!("{JOB}:{parent}");
            let end = ends
                .iter()
                .find(|((id, _), events)| *id == parent_id && &*events[0].event_type == "Task Completed");
            let (_, events) = end.unwrap_or_else(|| panic!("{parent} had not completed: {run:?}"));
            assert_eq!(input["dependencyOutputs"][parent], events[0].properties["output"], "{run:?}");
        }
    }
    for task in &job.tasks {
        assert_eq!(task.state, Some(TaskState::Completed), "{}", task.task_id);
        let history = &histories[&format!("{JOB}:{}", task.task_id)];
        assert_eq!(task.summary, history.summary(), "the row of {}", task.task_id);
    }
    for row in scan(&store.clients, &store.names.control_table).await {
        check_row(&row);
    }
    // Records, counts, marks and rows are what the ledger says.
    let verified = Box::pin(dispatch.verify(&name(TENANT), false, &mut |_| {})).await.unwrap();
    assert!(verified.differences.is_empty(), "{:?}", verified.differences);
    let listed = dispatch.tasks(&name(TENANT), Some(TaskState::Completed), 100, None).await.unwrap();
    assert_eq!(listed.items.len(), job.tasks.len());
}

fn check_row(row: &Item) {
    let (pk, sk) = (row["PK"].as_s().unwrap().clone(), row["SK"].as_s().unwrap().clone());
    assert_ne!(pk, keys::DIRTY, "a mark is left: {sk}");
    let claim: Value = read(row.clone()).unwrap();
    let state = &claim["state"];
    assert!(state.is_null() || state == "done" || state == "dropped", "{pk} {sk} is {state}");
    assert!(claim["dueAt"].is_null(), "{pk} {sk} is due");
}
