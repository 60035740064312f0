use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{Context, catalogue::Known};

fn event(number: u64, kind: JobEvent, properties: Value) -> Event {
    let Value::Object(properties) = properties else { panic!("an object") };
    let name = |text: &str| Name::new("name", text).unwrap();
    Event {
        event_id: name(&format!("evnt-{}-{number}", number * 7 % 10)),
        tenant_id: name("t"),
        app_name: name("app"),
        entity_type: name("JOB"),
        entity_id: name("job-1"),
        event_type: name(kind.event_type()),
        timestamp: Millis::MIN.plus(number),
        context: Context { generation: Some(1), ..Context::default() },
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

fn task(id: &str, name: &str, parents: &[&str]) -> Value {
    json!({"taskId": id, "name": name, "dependsOn": parents, "input": {}})
}

fn story() -> Vec<Event> {
    let created = json!({
        "jobId": "job-1", "requestId": "req-1", "totalTasks": 2, "tasks": [task("a", "fetch", &[]), task("b", "sum", &["a"])],
    });
    let added = |id: &str, before: u32| {
        json!({
            "jobId": "job-1", "newTasks": [task(id, "more", &["a"])], "previousTotalTasks": before, "totalTasksNow": before + 1,
        })
    };
    vec![
        event(1, JobEvent::Created, created),
        event(2, JobEvent::TasksAdded, added("c", 2)),
        event(
            3,
            JobEvent::FailureDetected,
            json!({"jobId": "job-1", "failedTaskId": "b", "taskStatuses": {"a": "completed"}}),
        ),
        event(4, JobEvent::Resumed, json!({"jobId": "job-1", "generation": 2, "tasks": {"b": 2}})),
        // A producer adds a task that the job already has.
        event(5, JobEvent::TasksAdded, added("b", 3)),
        event(
            6,
            JobEvent::Completed,
            json!({"jobId": "job-1", "totalTasks": 3, "taskStatuses": {"a": "completed"}}),
        ),
    ]
}

fn history<'a>(events: impl IntoIterator<Item = &'a Event>) -> JobHistory {
    let mut history = JobHistory::default();
    events.into_iter().for_each(|event| history.add(event));
    history
}

#[test]
fn a_history_tells_what_the_jobs_events_say() {
    let all = story();
    for event in &all {
        assert!(Known::read(&event.event_type, &event.properties).unwrap().is_ok(), "{}", event.event_type);
    }
    let told = history(&all);
    assert_eq!(told.job_id().unwrap().as_str(), "job-1");
    assert_eq!(told.request_id(), Some("req-1"));
    assert_eq!(
        (told.created_at(), told.completed_at()),
        (Some(Millis::MIN.plus(1)), Some(Millis::MIN.plus(6)))
    );
    assert_eq!((told.total(), told.generation()), (3, 2));
    let tasks: Vec<_> = told.tasks().iter().map(|(id, node)| (id.as_str(), node.name.as_str())).collect();
    assert_eq!(tasks, [("a", "fetch"), ("b", "sum"), ("c", "more")], "the first definition stands");
    assert_eq!(told.tasks()["b"].depends_on, ["a"]);
    let failures: Vec<_> =
        told.failures().iter().map(|failure| (failure.task_id.as_deref(), failure.generation)).collect();
    assert_eq!(failures, [(Some("b"), Some(1))]);
    let resumes: Vec<_> =
        told.resumes().iter().map(|resume| (resume.generation, resume.tasks["b"])).collect();
    assert_eq!(resumes, [(Some(2), 2)]);
}

#[test]
fn an_event_with_bad_properties_still_counts() {
    let bad = |kind: JobEvent| {
        event(1, kind, json!({"tasks": 5, "newTasks": [7], "failedTaskId": {}, "generation": -1}))
    };
    assert!(history(&[bad(JobEvent::Created)]).created_at().is_some());
    assert_eq!(history(&[bad(JobEvent::TasksAdded)]).job_id().unwrap().as_str(), "job-1");
    assert_eq!(history(&[bad(JobEvent::Completed)]).progress(|_| None).state, JobState::Completed);
    assert_eq!(history(&[bad(JobEvent::FailureDetected)]).failures().len(), 1);
    assert_eq!(history(&[bad(JobEvent::Resumed)]).resumes().len(), 1);
    let mut other = bad(JobEvent::Completed);
    other.entity_type = Name::new("entityType", "TASK").unwrap();
    assert_eq!(history(&[other]), JobHistory::default());
}

#[test]
fn the_total_is_counted_once_the_first_list_is_there() {
    let all = story();
    assert_eq!(history(&all[1..2]).total(), 3, "what is said, while the list is missing");
    let mut boasting = all[0].clone();
    boasting.properties.insert("totalTasks".into(), json!(9));
    assert_eq!(history([&boasting]).total(), 2);
    boasting.properties.remove("tasks");
    assert_eq!(history([&boasting]).total(), 9);
    assert_eq!(history([&boasting]).progress(|_| None).waiting, 9);
}

#[test]
fn the_state_follows_from_the_states_of_the_tasks() {
    use TaskState::{Completed, Failed, Pending, Processing};
    let open = history(&story()[..2]);
    for (states, expected) in [
        ([None, None, None], JobState::Running),
        ([Some(Pending), None, None], JobState::Running),
        ([Some(Completed), None, None], JobState::Running),
        ([Some(Completed), Some(Processing), Some(Completed)], JobState::Running),
        // Only `Job Completed` completes it.
        ([Some(Completed), Some(Completed), Some(Completed)], JobState::Running),
        ([Some(Completed), Some(Failed), Some(Processing)], JobState::Failing),
        ([Some(Completed), Some(Failed), Some(Pending)], JobState::Failing),
        ([Some(Completed), Some(Failed), Some(Completed)], JobState::Failed),
        ([Some(Failed), None, None], JobState::Failed),
    ] {
        let state_of =
            |id: &str| ["a", "b", "c"].iter().position(|own| *own == id).and_then(|place| states[place]);
        let progress = open.progress(state_of);
        assert_eq!(progress.state, expected, "{states:?}");
        let counts =
            [progress.waiting, progress.pending, progress.processing, progress.completed, progress.failed];
        assert_eq!(counts.iter().sum::<u64>(), 3);
        let count = |state: Option<TaskState>| states.iter().filter(|own| **own == state).count() as u64;
        assert_eq!(counts, [None, Some(Pending), Some(Processing), Some(Completed), Some(Failed)].map(count));
        assert_eq!(history(&story()).progress(state_of).state, JobState::Completed, "which is final");
    }
    for state in [JobState::Running, JobState::Failing, JobState::Failed, JobState::Completed] {
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
    }
}

proptest! {
    #[test]
    fn order_repetition_and_splitting_change_no_history(
        shuffled in Just([story(), story()].concat()).prop_shuffle(), low in 0..12_usize, high in 0..12_usize,
    ) {
        let once = history(&story());
        prop_assert_eq!(&history(&shuffled), &once);
        let (low, high) = (low.min(high), low.max(high));
        let parts = [&shuffled[..low], &shuffled[low..high], &shuffled[high..]].map(|part| {
            let stored = serde_json::to_string(&history(part)).unwrap();
            serde_json::from_str::<JobHistory>(&stored).unwrap()
        });
        for order in [[0, 1, 2], [2, 0, 1], [2, 1, 0]] {
            let [a, b, c] = order.map(|n| &parts[n]);
            let (mut left, mut right, mut joined) = (a.clone(), b.clone(), a.clone());
            left.join(b);
            left.join(c);
            right.join(c);
            joined.join(&right);
            prop_assert_eq!(&left, &once);
            prop_assert_eq!(&joined, &once);
        }
    }
}
