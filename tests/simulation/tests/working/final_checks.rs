//! What must hold when everything has come to rest.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{Event, TaskHistory, catalogue::TaskState};
use ledgerline_simulation::Store;
use ledgerline_stage::Stage;
use ledgerline_store::{Item, keys, read};
use ledgerline_test_support::{name, rows_of, scan};
use ledgerline_verify::Mode;
use serde_json::Value;

use super::{ATTEMPTS, ByGeneration, JOB, Plan, Ran, TENANT, external_ends::is_external};

/// Everything has come to rest: each started once, each ended once, each child after its parents.
pub(super) async fn check(store: &Store, plan: &Plan, ran: &[Ran], stage: &Stage) {
    let mut pending: ByGeneration<Vec<Event>> = BTreeMap::new();
    let ended_by = ended_by(store).await;
    let mut ends: ByGeneration<Vec<Event>> = BTreeMap::new();
    // Tasks that another system has ended, and that had ended.
    let mut contested = BTreeSet::new();
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
            "Task Completed" | "Task Failed" | "Task Timeout" => match ended_by.get(&*event.event_id) {
                Some(run) => ends.entry(run.clone()).or_default().push(event),
                None => {
                    assert!(is_external(&event), "ended more than once: {run:?}");
                    contested.insert(run.0);
                }
            },
            "Task Processing Failed" => drop(setbacks.insert((run, event.context.attempt.unwrap()))),
            "Job Completed" => completions += 1,
            "Job Failure Detected" => {
                let task = event.properties["failedTaskId"].as_str().unwrap().to_owned();
                *told.entry(task).or_insert(0) += 1;
            }
            // A start that a queue did not take is told too, and made later.
            "workflow.dispatch_failed" if event.properties["drainerId"] == "jobs" => {
                panic!("refused: {:?}", event.properties)
            }
            _ => {}
        }
    }
    assert_eq!(completions, 1, "Job Completed");
    for (run, events) in &pending {
        assert_eq!(events.len(), 1, "started more than once: {run:?}");
    }
    for (run, events) in &ends {
        assert_eq!(events.len(), 1, "ended more than once: {run:?}");
        assert!(pending.contains_key(run) || is_external(&events[0]), "ended and never started: {run:?}");
        // No worker ends a task that another one has acquired since.
        let key = keys::task_record(TENANT, &run.0, run.1);
        let record: Value = store.control().get(&key).await.unwrap().unwrap();
        if !is_external(&events[0]) {
            let attempt = events[0].context.attempt.map(u64::from);
            assert_eq!(record["attempt"].as_u64(), attempt, "{run:?}: {:?}", events[0].properties);
        }
        // The worker that released it because of an error has emitted so, or another process did.
        if let Some(attempt) = record["failedAttempt"].as_u64() {
            let attempt = u32::try_from(attempt).unwrap();
            assert!(setbacks.contains(&(run.clone(), attempt)), "attempt {attempt} of {run:?} is not told");
        }
        assert!(record["counted"].as_u64() <= Some(u64::from(ATTEMPTS)), "{run:?} was tried too often");
        if let Some((_, task)) = run.0.split_once(':')
            && &*events[0].event_type != "Task Completed"
        {
            // One that was never added to the job is none of its tasks.
            let was_told = told.contains_key(task);
            if was_told || !is_external(&events[0]) {
                *failures.entry(task.to_owned()).or_insert(0) += 1;
            }
        }
    }
    assert_eq!(told, failures, "failures told, and failures");
    let job = stage.jobs.job(&name(TENANT), JOB).await.unwrap();
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
        let Some((_, task)) = request_id.split_once(':') else { continue };
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
        let id = format!("{JOB}:{}", task.task_id);
        assert!(task.state == Some(TaskState::Completed) || contested.contains(&id), "{id}");
        let history = &histories[&id];
        assert_eq!(task.summary, history.summary(), "the row of {}", task.task_id);
    }
    for row in scan(&store.clients, &store.names.control_table).await {
        check_row(&row);
    }
    // Records, counts, marks and rows are what the ledger says.
    let verified = Box::pin(stage.verify.verify(&name(TENANT), Mode::Report, &mut |_| {})).await.unwrap();
    // Of two ends that contradict each other the record has one, and the list may show the other.
    let explained = |id: &str, what: String| what == "TwoEnds" && contested.contains(id);
    let mut differences = verified.differences.iter();
    let wrong = differences.find(|found| !explained(&found.entity_id, format!("{:?}", found.difference)));
    assert!(wrong.is_none(), "{wrong:?}");
    let listed = stage.tasks.tasks(&name(TENANT), Some(TaskState::Completed), 100, None).await.unwrap();
    let completed = histories.values().filter_map(TaskHistory::summary);
    let completed = completed.filter(|summary| summary.state == TaskState::Completed);
    assert_eq!(listed.items.len(), completed.count());
}

/// The generations that have ended, by the event that their records name.
async fn ended_by(store: &Store) -> BTreeMap<String, (String, u32)> {
    let mut ended = BTreeMap::new();
    for row in scan(&store.clients, &store.names.control_table).await {
        let (pk, sk) = (row["PK"].as_s().unwrap(), row["SK"].as_s().unwrap());
        let Some((_, task)) = keys::parse_task(pk) else { continue };
        let Some(generation) = keys::parse_generation(sk) else { continue };
        if let Some(event) = row.get("endEvent").and_then(|event| event.as_s().ok()) {
            ended.insert(event.clone(), (task.to_owned(), generation));
        }
    }
    ended
}

fn check_row(row: &Item) {
    let (pk, sk) = (row["PK"].as_s().unwrap().clone(), row["SK"].as_s().unwrap().clone());
    assert!(!keys::is_dirty_partition(&pk), "a mark is left: {sk}");
    let claim: Value = read(row.clone()).unwrap();
    let state = &claim["state"];
    assert!(state.is_null() || state == "done" || state == "dropped", "{pk} {sk} is {state}");
    assert!(claim["dueAt"].is_null(), "{pk} {sk} is due");
}
