use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{Context, Properties};

const START: u64 = 1_767_453_739_000;

fn at(offset: u64) -> Millis {
    Millis::MIN.plus(START - Millis::MIN.get() + offset)
}

/// Properties with every field, as the catalogue has them.
fn properties(kind: TaskEvent) -> Value {
    let mut properties = json!({"requestId": "job-1:a", "jobId": "job-1"});
    let more = match kind {
        TaskEvent::Pending => json!({"name": "scrape", "dependsOn": ["b"]}),
        TaskEvent::Started => json!({"effectiveUntil": 1_767_453_800, "workerId": "w", "processId": 7}),
        TaskEvent::AttemptFailed => {
            json!({"attemptNumber": 2, "error": "ETIMEDOUT", "errorCategory": "network"})
        }
        TaskEvent::Heartbeat => json!({
            "effectiveUntil": 1_767_453_900, "heartbeatNumber": 3, "elapsedMs": 60_000, "workerId": "w", "processId": 7,
            "memoryUsage": {"rss": 256_000_000},
            "lastActivity": {"type": "step_running", "stepName": "tags", "timestamp": 1_767_453_700}
        }),
        TaskEvent::Completed => json!({
            "output": {"pages": 3}, "durationMs": 45_000, "exitCode": 0, "usage": {"inputTokens": 12_000, "cents": 4}
        }),
        TaskEvent::Failed => {
            json!({"error": "Invalid API key", "errorCategory": "auth", "retryCount": 3, "source": "worker"})
        }
        TaskEvent::TimedOut => json!({"timeoutMs": 200_000, "elapsedMs": 200_050, "signal": "SIGKILL"}),
    };
    properties.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    properties
}

fn event(kind: TaskEvent, offset: u64, generation: Option<u32>, attempt: Option<u32>) -> Event {
    let Value::Object(properties) = properties(kind) else { panic!("an object") };
    let name = |text: &str| Name::new("name", text).unwrap();
    Event {
        event_id: name(&format!("{}-{offset}-{generation:?}-{attempt:?}", kind.event_type())),
        tenant_id: name("t"),
        app_name: name("app"),
        entity_type: name("TASK"),
        entity_id: name("job-1:a"),
        event_type: name(kind.event_type()),
        timestamp: at(offset),
        context: Context { generation, attempt, ..Context::default() },
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

fn history<'a>(events: impl IntoIterator<Item = &'a Event>) -> TaskHistory {
    let mut history = TaskHistory::default();
    events.into_iter().for_each(|event| history.add(event));
    history
}

fn summary<'a>(events: impl IntoIterator<Item = &'a Event>) -> TaskSummary {
    history(events).summary().unwrap()
}

#[test]
fn a_task_is_followed_from_pending_to_its_end() {
    use TaskEvent::{AttemptFailed, Completed, Heartbeat, Pending, Started};
    let events = [
        event(Pending, 0, Some(1), None),
        event(Started, 10, Some(1), Some(1)),
        event(AttemptFailed, 20, Some(1), Some(1)),
        event(Started, 30, Some(1), Some(2)),
        event(Heartbeat, 40, Some(1), Some(2)),
        event(Completed, 50, Some(1), Some(2)),
    ];
    let after = |count: usize| serde_json::to_value(summary(&events[..count])).unwrap();
    let about = json!({"requestId": "job-1:a", "jobId": "job-1", "name": "scrape", "dependsOn": ["b"], "generation": 1});
    let expected = |more: Value| {
        let mut expected = about.clone();
        expected["pendingAt"] = json!(at(0));
        expected.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        expected
    };
    assert_eq!(
        after(1),
        expected(
            json!({"state": "pending", "enteredAt": at(0), "lastEventAt": at(0), "lastEventType": "Task Pending"})
        )
    );
    assert_eq!(
        after(3),
        expected(json!({
            "state": "processing", "enteredAt": at(10), "attempt": 2, "startedAt": at(10), "workerId": "w",
            "lastEventAt": at(20), "lastEventType": "Task Processing Failed", "error": "ETIMEDOUT", "errorCategory": "network",
        })),
        "no worker holds it, so there is no effectiveUntil"
    );
    assert_eq!(
        after(5),
        expected(json!({
            "state": "processing", "enteredAt": at(10), "attempt": 2, "startedAt": at(30), "workerId": "w", "processId": 7,
            "effectiveUntil": 1_767_453_900, "memoryUsage": {"rss": 256_000_000},
            "lastActivity": {"type": "step_running", "stepName": "tags", "timestamp": 1_767_453_700},
            "lastEventAt": at(40), "lastEventType": "Task Heartbeat", "error": "ETIMEDOUT", "errorCategory": "network",
        }))
    );
    assert_eq!(
        after(6),
        expected(json!({
            "state": "completed", "enteredAt": at(50), "attempt": 2, "startedAt": at(30), "endedAt": at(50), "workerId": "w",
            "lastEventAt": at(50), "lastEventType": "Task Completed", "durationMs": 45_000,
            "usage": {"inputTokens": 12_000, "cents": 4}, "endedBy": events[5].event_id,
        }))
    );
}

#[test]
fn both_ways_to_fail_are_failed_with_their_own_details() {
    let failed = serde_json::to_value(summary(&[event(TaskEvent::Failed, 5, Some(1), Some(3))])).unwrap();
    assert_eq!(failed["state"], "failed");
    assert_eq!([&failed["error"], &failed["errorCategory"]], ["Invalid API key", "auth"]);
    assert_eq!((&failed["retryCount"], &failed["source"]), (&json!(3), &json!("worker")));
    let timed_out =
        serde_json::to_value(summary(&[event(TaskEvent::TimedOut, 5, Some(1), Some(1))])).unwrap();
    assert_eq!(timed_out["state"], "failed");
    assert_eq!((&timed_out["timeoutMs"], &timed_out["durationMs"]), (&json!(200_000), &json!(200_050)));
}

#[test]
fn what_is_not_about_a_task_changes_nothing() {
    let mut other_type = event(TaskEvent::Completed, 5, Some(1), None);
    other_type.event_type = Name::new("eventType", "Task Abandoned").unwrap();
    let mut other_entity = event(TaskEvent::Completed, 5, Some(1), None);
    other_entity.entity_type = Name::new("entityType", "JOB").unwrap();
    assert_eq!(history([&other_type, &other_entity]), TaskHistory::default());
    assert_eq!(TaskHistory::default().summary(), None);
}

#[test]
fn an_event_with_bad_properties_still_counts() {
    for kind in TaskEvent::ALL {
        let whole = event(kind, 5, Some(1), Some(1));
        let mut empty = whole.clone();
        empty.properties = Properties::new();
        let mut wrong = whole.clone();
        wrong.properties.values_mut().for_each(|value| *value = json!([{"not": "that"}]));
        let states = [&whole, &empty, &wrong].map(|event| {
            let summary = summary([event]);
            (summary.state, summary.entered_at, summary.last_event_type, summary.ended_by)
        });
        assert!(states.iter().all(|state| *state == states[0]), "{kind:?}: {states:?}");
        // One bad field does not spoil the others.
        let mut partly = event(TaskEvent::Failed, 5, Some(1), None);
        partly.properties.insert("errorCategory".into(), json!("cosmic rays"));
        let partly = summary([&partly]);
        assert_eq!((partly.error.as_deref(), partly.error_category), (Some("Invalid API key"), None));
    }
}

#[test]
fn a_stale_worker_does_not_speak_for_the_attempt_that_took_over() {
    let mut stale = event(TaskEvent::Heartbeat, 90, Some(1), Some(1));
    stale.properties.insert("workerId".into(), json!("stale"));
    let mut taken_over = event(TaskEvent::Started, 50, Some(1), Some(2));
    taken_over.properties.insert("workerId".into(), json!("second"));
    let summary = summary([&event(TaskEvent::Started, 10, Some(1), Some(1)), &taken_over, &stale]);
    assert_eq!(summary.worker_id.as_deref(), Some("second"));
    assert_eq!((summary.started_at, summary.last_event_at), (Some(at(50)), at(50)));
    assert_eq!(summary.entered_at, at(10));
    assert_eq!(
        (summary.memory_usage, summary.last_activity),
        (None, None),
        "the first attempt's are not its own"
    );
}

#[test]
fn events_of_a_worker_that_names_no_generation_belong_to_the_one_that_was_pending() {
    use TaskEvent::{Completed, Failed, Heartbeat, Pending, Started};
    let first =
        [event(Pending, 0, Some(1), None), event(Started, 10, None, None), event(Failed, 20, None, None)];
    assert_eq!(summary(&first).state, TaskState::Failed);
    let resumed = [event(Pending, 30, Some(2), None)];
    let pending = summary(first.iter().chain(&resumed));
    assert_eq!((pending.state, pending.generation, pending.error), (TaskState::Pending, 2, None));
    let second: Vec<Event> = [(Started, 40), (Heartbeat, 50), (Heartbeat, 60)]
        .map(|(kind, offset)| event(kind, offset, None, None))
        .into();
    let running = summary(first.iter().chain(&second).chain(&resumed));
    assert_eq!((running.state, running.entered_at), (TaskState::Processing, at(40)));
    let end = [event(Completed, 70, None, None)];
    assert_eq!(summary(end.iter().chain(&second).chain(&resumed).chain(&first)).state, TaskState::Completed);
    // A producer that knows nothing of generations: all that it says is before the resume.
    let foreign = [event(Pending, 0, None, None), event(Failed, 20, None, None), resumed[0].clone()];
    assert_eq!(summary(&foreign).state, TaskState::Pending);
}

#[test]
fn a_generation_is_opened_by_any_event_that_names_it() {
    let ended = event(TaskEvent::Failed, 20, Some(1), None);
    let opened = summary([&event(TaskEvent::Heartbeat, 40, Some(2), Some(1)), &ended]);
    assert_eq!((opened.state, opened.generation, opened.pending_at), (TaskState::Processing, 2, None));
    // 0 is no generation, so it is not one before the first either.
    let first = [event(TaskEvent::Completed, 40, Some(0), None), event(TaskEvent::Pending, 0, Some(1), None)];
    assert_eq!((summary(&first).generation, summary(&first).state), (1, TaskState::Completed));
}

#[test]
fn a_history_stays_small() {
    use TaskEvent::{AttemptFailed, Completed, Failed, Heartbeat, Pending, Started};
    let mut ours = vec![event(Pending, 0, Some(1), None)];
    for attempt in 1..=5 {
        let start = u64::from(attempt) * 1000;
        ours.push(event(Started, start, Some(1), Some(attempt)));
        ours.extend((1..200).map(|n| event(Heartbeat, start + n, Some(1), Some(attempt))));
        ours.push(event(AttemptFailed, start + 500, Some(1), Some(attempt)));
    }
    ours.push(event(Completed, 9000, Some(1), Some(5)));
    let bytes = |events: &[Event]| serde_json::to_string(&history(events)).unwrap().len();
    assert!(bytes(&ours) < 1024, "{}", bytes(&ours));

    let mut failed = event(Failed, 9999, Some(2), Some(5));
    failed.properties.insert("error".into(), json!("é".repeat(100_000)));
    failed.properties.insert("workerId".into(), json!("w".repeat(100_000)));
    ours.push(failed);
    assert!(bytes(&ours) < 1024, "{}", bytes(&ours));
    let error = summary(&ours).error.unwrap();
    assert_eq!((error.chars().count(), error.ends_with("é…")), (300, true));

    let mut others: Vec<Event> =
        (0..2000).map(|n| event(TaskEvent::ALL[n % 7], n as u64, None, Some(n as u32 % 5))).collect();
    for event in &mut others {
        event.properties.insert("error".into(), json!("e".repeat(100_000)));
        event.properties.insert("usage".into(), json!({"inputTokens": 1, "log": "l".repeat(100_000)}));
        event.properties.insert("dependsOn".into(), json!(vec!["parent"; 1000]));
    }
    assert!(bytes(&others) < 4096, "{}", bytes(&others));
    assert_eq!(summary(&others).depends_on, None, "half a list would be a lie");
}

#[test]
fn two_events_lead_to_one_state_in_either_order_unless_both_are_ends() {
    for first in TaskEvent::ALL {
        for second in TaskEvent::ALL {
            let one_way = second.after(Some(first.after(None)));
            if first.is_end() && second.is_end() {
                assert_eq!(one_way, first.after(None), "{first:?}, {second:?}");
            } else {
                assert_eq!(one_way, first.after(Some(second.after(None))), "{first:?}, {second:?}");
            }
        }
    }
}

#[test]
fn every_event_type_is_spelt_as_in_the_catalogue() {
    for kind in TaskEvent::ALL {
        let read = crate::catalogue::Known::read(kind.event_type(), properties(kind).as_object().unwrap());
        assert!(read.unwrap().is_ok(), "{kind:?}");
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.event_type());
    }
}

/// Events of one task, of up to three generations, some of senders that name none.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let generation = prop_oneof![2 => Just(None), 3 => (1..=3_u32).prop_map(Some)];
    let one = (0..7_usize, 0..12_u64, generation, proptest::option::of(1..=3_u32), any::<bool>());
    proptest::collection::vec(one, 0..24).prop_map(|drawn| {
        let numbered = drawn.into_iter().enumerate();
        let made = numbered.map(|(number, (kind, offset, generation, attempt, bad))| {
            let mut event = event(TaskEvent::ALL[kind], offset, generation, attempt);
            // Ids that sort otherwise than they were drawn.
            event.event_id = Name::new("eventId", format!("evnt-{:02}-{number}", number * 7 % 24)).unwrap();
            event.properties.insert("error".into(), json!(format!("error {number}")));
            event.properties.insert("workerId".into(), json!(format!("worker {number}")));
            if bad {
                event.properties.insert("attemptNumber".into(), json!("first"));
                event.properties.remove("effectiveUntil");
            }
            event
        });
        made.collect()
    })
}

/// The rules said plainly over the whole list: state, generation and what ended it.
fn by_the_rules(events: &[Event]) -> Option<(TaskState, u32, Option<Name>)> {
    let pending = |generation: u32| {
        let of = |event: &&Event| event.context.generation == Some(generation);
        let named: Vec<&Event> = events.iter().filter(of).collect();
        let first = |kind: Option<TaskEvent>| {
            let of_kind = named.iter().filter(|event| kind.is_none() || TaskEvent::of(event) == kind);
            of_kind.map(|event| event.timestamp).min()
        };
        first(Some(TaskEvent::Pending)).or(first(None))
    };
    let generation_of = |event: &Event| {
        let open = |generation: &u32| pending(*generation).is_some_and(|from| from <= event.timestamp);
        event.context.generation.unwrap_or_else(|| (1..=3).rev().find(open).unwrap_or(1))
    };
    let highest = events.iter().map(generation_of).max()?;
    let mut last: Vec<&Event> = events.iter().filter(|event| generation_of(event) == highest).collect();
    last.sort_by_key(|event| (event.timestamp, event.event_id.clone()));
    let kinds: Vec<TaskEvent> = last.iter().filter_map(|event| TaskEvent::of(event)).collect();
    let end = kinds.iter().position(|kind| kind.is_end());
    let state = match end.map(|place| kinds[place]) {
        Some(TaskEvent::Completed) => TaskState::Completed,
        Some(_) => TaskState::Failed,
        None if kinds.iter().all(|kind| *kind == TaskEvent::Pending) => TaskState::Pending,
        None => TaskState::Processing,
    };
    Some((state, highest, end.map(|place| last[place].event_id.clone())))
}

proptest! {
    #[test]
    fn order_repetition_and_splitting_change_no_history(
        (events, shuffled) in events().prop_flat_map(|events| {
            let twice = [events.clone(), events.clone()].concat();
            (Just(events), Just(twice).prop_shuffle())
        }),
        cuts in (0..48_usize, 0..48_usize),
    ) {
        let once = history(&events);
        prop_assert_eq!(&history(&shuffled), &once);
        let cut = |at: usize| at.min(shuffled.len());
        let (low, high) = (cut(cuts.0.min(cuts.1)), cut(cuts.0.max(cuts.1)));
        let parts = [&shuffled[..low], &shuffled[low..high], &shuffled[high..]].map(|part| {
            // As it comes out of a control record.
            let stored = serde_json::to_string(&history(part)).unwrap();
            serde_json::from_str::<TaskHistory>(&stored).unwrap()
        });
        for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]] {
            let [a, b, c] = order.map(|n| &parts[n]);
            let (mut left, mut right, mut joined) = (a.clone(), b.clone(), a.clone());
            left.join(b);
            left.join(c);
            right.join(c);
            joined.join(&right);
            prop_assert_eq!(&left, &joined);
            prop_assert_eq!(&left, &once);
            left.join(&joined);
            prop_assert_eq!(&left, &once);
        }
        prop_assert_eq!(parts[0].clone().summary(), history(&shuffled[..low]).summary());
    }

    #[test]
    fn the_state_is_what_the_rules_say_of_the_whole_list(events in events()) {
        // Of the ends that name no generation four or more may be too many to be kept.
        let loose = events.iter().filter(|event| event.context.generation.is_none());
        prop_assume!(loose.filter_map(TaskEvent::of).filter(|kind| kind.is_end()).count() <= 3);
        let folded = history(&events).summary().map(|is| (is.state, is.generation, is.ended_by));
        prop_assert_eq!(folded, by_the_rules(&events));
    }

    #[test]
    fn an_end_absorbs_what_is_of_its_generation(
        events in events(), end in 4..7_usize, kind in 0..7_usize, offset in 0..30_u64,
        attempt in proptest::option::of(1..=9_u32), named in any::<bool>(),
    ) {
        let pending = event(TaskEvent::Pending, 12, Some(4), None);
        let end = event(TaskEvent::ALL[end], 14, Some(4), Some(1));
        let whole: Vec<Event> = events.into_iter().chain([pending, end]).collect();
        let kind = TaskEvent::ALL[kind];
        // Another end came second; another pending does not open the generation earlier.
        let offset = if kind.is_end() || kind == TaskEvent::Pending { offset + 15 } else { offset };
        let more = event(kind, offset, named.then_some(4), attempt);
        let (before, after) = (summary(&whole), summary([&more].into_iter().chain(&whole)));
        prop_assert_eq!((after.state, after.ended_by, after.ended_at), (before.state, before.ended_by, before.ended_at));
        prop_assert_eq!((after.entered_at, after.last_event_type), (before.entered_at, before.last_event_type));
        prop_assert_eq!((after.error, after.duration_ms), (before.error, before.duration_ms));
    }

    #[test]
    fn a_heartbeat_after_the_end_changes_nothing_at_all(
        events in events(), offset in 0..30_u64, attempt in proptest::option::of(1..=9_u32), named in any::<bool>(),
    ) {
        let last = event(TaskEvent::Pending, 12, Some(4), None);
        let end = event(TaskEvent::Completed, 14, Some(4), Some(1));
        let whole: Vec<Event> = events.into_iter().chain([last, end]).collect();
        let late = event(TaskEvent::Heartbeat, offset, named.then_some(4), attempt);
        prop_assert_eq!(summary(whole.iter().chain([&late])), summary(&whole));
        prop_assert_eq!(summary([&late].into_iter().chain(&whole)).state, TaskState::Completed);
    }

    #[test]
    fn heartbeats_do_not_move_the_time_at_which_work_began(
        beats in proptest::collection::vec(10..99_u64, 0..9), named in any::<bool>(),
    ) {
        let generation = named.then_some(1);
        let mut events = vec![event(TaskEvent::Pending, 0, Some(1), None), event(TaskEvent::Started, 9, generation, None)];
        events.extend(beats.into_iter().map(|offset| event(TaskEvent::Heartbeat, offset, generation, None)));
        prop_assert_eq!(summary(&events).entered_at, at(9));
    }

    #[test]
    fn the_next_generation_supersedes_all_before_it(events in events()) {
        let next = event(TaskEvent::Pending, 12, Some(4), None);
        let is = summary([&next].into_iter().chain(&events));
        prop_assert_eq!((is.state, is.generation, is.entered_at), (TaskState::Pending, 4, at(12)));
        prop_assert_eq!((is.ended_at, is.ended_by, is.error, is.worker_id), (None, None, None, None));
        prop_assert_eq!((is.attempt, is.started_at, is.duration_ms), (None, None, None));
    }
}

/// The rows of earlier versions are still read, so the names of the fields never change.
#[test]
fn a_stored_history_has_the_names_of_the_first_version() {
    let known = history(&[
        event(TaskEvent::Pending, 0, Some(1), None),
        event(TaskEvent::Started, 1, Some(1), Some(1)),
        event(TaskEvent::Heartbeat, 2, Some(1), Some(1)),
        event(TaskEvent::AttemptFailed, 3, Some(1), Some(1)),
        event(TaskEvent::Failed, 4, Some(1), Some(1)),
        event(TaskEvent::Completed, 5, None, None),
    ]);
    let stored = serde_json::to_value(&known).unwrap();
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&stored), ["dependsOn", "generation", "jobId", "loose", "name", "requestId", "span"]);
    let of_span = ["activeAt", "attemptFailed", "end", "heartbeat", "pendingAt", "started"];
    assert_eq!(fields(&stored["span"]), of_span);
    assert_eq!(
        stored["loose"][0],
        json!({
            "at": at(5), "id": "Task Completed-5-None-None", "kind": "Task Completed", "durationMs": 45_000,
            "usage": {"inputTokens": 12_000, "cents": 4}
        })
    );
}
