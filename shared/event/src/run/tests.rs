mod random;

use std::collections::BTreeMap;

use serde_json::json;
use ulid::Ulid;

use super::*;
use crate::{LogDraft, RunEntity, RunEventType};

/// Every state, every event, and the state that follows; `-` where it cannot.
const GRIDS: [(RunEntity, &str); 4] = [
    (
        RunEntity::Run,
        "           run_created  run_started  run_completed  run_failed  run_cancelled
         absent     pending      -            -              -           -
         pending    -            running      -              failed      cancelled
         running    -            -            completed      failed      cancelled
         completed  -            -            -              -           -
         failed     -            -            -              -           -
         cancelled  -            -            -              -           -",
    ),
    (
        RunEntity::Step,
        "           step_created  step_started  step_completed  step_failed  step_retrying
         absent     pending       -             -               -            -
         pending    -             running       -               failed       -
         running    -             running       completed       failed       pending
         completed  -             -             -               -            -
         failed     -             -             -               -            -",
    ),
    (
        RunEntity::Hook,
        "            hook_created  hook_conflict  hook_received  hook_disposed
         absent      active        conflicted     -              -
         active      -             -              active         disposed
         disposed    -             -              -              -
         conflicted  -             -              -              -",
    ),
    (
        RunEntity::Wait,
        "           wait_created  wait_completed
         absent     waiting       -
         waiting    -             completed
         completed  -             -",
    ),
];

/// By state and event: what follows, if anything can.
type Table = BTreeMap<(&'static str, RunEventType), Option<&'static str>>;

fn table(entity: RunEntity) -> Table {
    let (_, grid) = GRIDS.iter().find(|(own, _)| *own == entity).unwrap();
    let mut lines = grid.lines().map(str::split_whitespace);
    let events: Vec<_> = lines.next().unwrap().map(|text| RunEventType::parse(text).unwrap()).collect();
    let of_entity: Vec<_> =
        RunEventType::ALL.iter().copied().filter(|kind| kind.entity() == entity).collect();
    assert_eq!(events, of_entity, "no event is left out");
    let row = |mut cells: std::str::SplitWhitespace<'static>| {
        let state = cells.next().unwrap();
        let cells = cells.map(|cell| Some(cell).filter(|cell| *cell != "-"));
        events.iter().copied().zip(cells).map(move |(kind, next)| ((state, kind), next)).collect::<Vec<_>>()
    };
    lines.flat_map(row).collect()
}

fn states(entity: RunEntity) -> Vec<&'static str> {
    match entity {
        RunEntity::Run => RunState::ALL.iter().map(|state| state.as_str()).collect(),
        RunEntity::Step => StepState::ALL.iter().map(|state| state.as_str()).collect(),
        RunEntity::Hook => HookState::ALL.iter().map(|state| state.as_str()).collect(),
        RunEntity::Wait => WaitState::ALL.iter().map(|state| state.as_str()).collect(),
    }
}

fn id_of(entity: RunEntity, number: u128) -> Name {
    // One run, as a log has it.
    let number = if entity == RunEntity::Run { 0 } else { number };
    entity.id_kind().id(Ulid::from_parts(1_767_453_739_640, number))
}

fn draft(event_type: RunEventType, number: u128, data: Value) -> LogDraft {
    let Value::Object(event_data) = data else { panic!("an object") };
    LogDraft { event_type, correlation_id: id_of(event_type.entity(), number), event_data }
}

fn append(history: &mut RunHistory, draft: LogDraft) -> Result<(), Illegal> {
    let at = history.last_at().map_or(Millis::MIN, |at| at.plus(10));
    let checked = history.check(&draft);
    let before = history.clone();
    let applied = history.apply(&draft.at(Name::new("eventId", "e").unwrap(), at));
    assert_eq!(checked, applied, "what is checked is what is done");
    assert!(applied.is_ok() || *history == before, "a refused event changes nothing");
    applied
}

fn state_of(history: &RunHistory, entity: RunEntity, id: &str) -> &'static str {
    match entity {
        RunEntity::Run => history.state().map_or("absent", RunState::as_str),
        RunEntity::Step => history.steps().get(id).map_or("absent", |step| step.state.as_str()),
        RunEntity::Hook => history.hooks().get(id).map_or("absent", |hook| hook.state.as_str()),
        RunEntity::Wait => history.waits().get(id).map_or("absent", |wait| wait.state.as_str()),
    }
}

fn told(events: &[RunEventType]) -> RunHistory {
    let mut history = RunHistory::new();
    events.iter().for_each(|kind| append(&mut history, draft(*kind, 1, json!({}))).unwrap());
    history
}

/// A running run whose entity number 1 is in `state`, and for a run the run itself.
fn in_state(entity: RunEntity, state: &str) -> RunHistory {
    use RunEventType as T;
    let way: &[T] = match (entity, state) {
        (RunEntity::Run, "absent") => return RunHistory::new(),
        (RunEntity::Run, "pending") => return told(&[T::RunCreated]),
        (RunEntity::Run, "running") | (_, "absent") => &[],
        (RunEntity::Run, "completed") => &[T::RunCompleted],
        (RunEntity::Run, "failed") => &[T::RunFailed],
        (RunEntity::Run, "cancelled") => &[T::RunCancelled],
        (RunEntity::Step, "pending") => &[T::StepCreated],
        (RunEntity::Step, "running") => &[T::StepCreated, T::StepStarted],
        (RunEntity::Step, "completed") => &[T::StepCreated, T::StepStarted, T::StepCompleted],
        (RunEntity::Step, "failed") => &[T::StepCreated, T::StepStarted, T::StepFailed],
        (RunEntity::Hook, "active") => &[T::HookCreated],
        (RunEntity::Hook, "disposed") => &[T::HookCreated, T::HookDisposed],
        (RunEntity::Hook, "conflicted") => &[T::HookConflict],
        (RunEntity::Wait, "waiting") => &[T::WaitCreated],
        (RunEntity::Wait, "completed") => &[T::WaitCreated, T::WaitCompleted],
        other => panic!("{other:?}"),
    };
    let history = told(&[&[T::RunCreated, T::RunStarted], way].concat());
    assert_eq!(state_of(&history, entity, &id_of(entity, 1)), state);
    history
}

#[test]
fn every_pair_of_state_and_event_is_as_the_table_says() {
    for (entity, _) in GRIDS {
        let table = table(entity);
        let kinds = RunEventType::ALL.iter().filter(|kind| kind.entity() == entity).count();
        assert_eq!(table.len(), (states(entity).len() + 1) * kinds, "no pair is left out");
        for ((state, kind), expected) in table {
            let mut history = in_state(entity, state);
            let result = append(&mut history, draft(kind, 1, json!({})));
            match expected {
                Some(next) => assert_eq!(state_of(&history, entity, &id_of(entity, 1)), next),
                None => {
                    let error = result.clone().unwrap_err();
                    assert_eq!((error.entity, error.state, error.event_type), (entity, state, kind));
                    assert!(error.to_string().starts_with(&format!("{kind} is not possible: ")), "{error}");
                }
            }
            assert_eq!(result.is_ok(), expected.is_some(), "{kind} of what is {state}");
        }
    }
}

#[test]
fn nothing_happens_in_a_run_that_is_not_running() {
    for state in ["absent", "pending", "completed", "failed", "cancelled"] {
        for kind in RunEventType::ALL.iter().filter(|kind| kind.entity() != RunEntity::Run) {
            let error = append(&mut in_state(RunEntity::Run, state), draft(*kind, 1, json!({}))).unwrap_err();
            assert_eq!((error.entity, error.state), (RunEntity::Run, state), "{kind}");
        }
    }
}

#[test]
fn terminal_states_are_those_that_nothing_leaves() {
    let leaves =
        |entity, state| table(entity).into_iter().any(|((from, _), next)| from == state && next.is_some());
    for state in RunState::ALL {
        assert_eq!(state.is_terminal(), !leaves(RunEntity::Run, state.as_str()), "{state}");
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
    }
    for state in StepState::ALL {
        assert_eq!(state.is_terminal(), !leaves(RunEntity::Step, state.as_str()), "{state}");
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
    }
    for state in HookState::ALL {
        assert_eq!(state.is_terminal(), !leaves(RunEntity::Hook, state.as_str()), "{state}");
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
    }
    for state in WaitState::ALL {
        assert_eq!(state.is_terminal(), !leaves(RunEntity::Wait, state.as_str()), "{state}");
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
    }
    for outcome in WaitOutcome::ALL {
        assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.as_str());
    }
}

#[test]
fn a_refusal_says_what_is_in_the_way() {
    use RunEventType as T;
    let (run, step) = (id_of(RunEntity::Run, 0), id_of(RunEntity::Step, 1));
    let refused = |entity, state, kind| {
        append(&mut in_state(entity, state), draft(kind, 1, json!({}))).unwrap_err().to_string()
    };
    for (entity, state, kind, expected) in [
        (RunEntity::Step, "pending", T::StepCompleted, format!("step {step} is pending; it must be running")),
        (RunEntity::Step, "absent", T::StepStarted, format!("there is no step {step}")),
        (RunEntity::Step, "running", T::StepCreated, format!("step {step} is there already; it is running")),
        (RunEntity::Step, "failed", T::StepStarted, format!("step {step} is failed, which is final")),
        (RunEntity::Run, "pending", T::StepCreated, format!("run {run} is pending; it must be running")),
        (RunEntity::Run, "completed", T::RunFailed, format!("run {run} is completed, which is final")),
        (RunEntity::Run, "completed", T::HookReceived, format!("run {run} is completed, which is final")),
        (RunEntity::Run, "running", T::RunStarted, format!("run {run} is running; it must be pending")),
        (RunEntity::Run, "absent", T::RunStarted, "there is no run".into()),
    ] {
        assert_eq!(refused(entity, state, kind), format!("{kind} is not possible: {expected}"));
    }
}

#[test]
fn a_log_is_of_one_run() {
    let mut history = in_state(RunEntity::Run, "running");
    let mut of_another = draft(RunEventType::RunCompleted, 1, json!({"output": 1}));
    of_another.correlation_id = Name::new("correlationId", "other").unwrap();
    let error = append(&mut history, of_another.clone()).unwrap_err();
    assert_eq!(error.to_string(), "run_completed is not possible: there is no run other");
    of_another.event_type = RunEventType::RunCreated;
    let error = append(&mut history, of_another).unwrap_err().to_string();
    assert!(error.ends_with("is there already; it is running"), "{error}");
}

const AT: u64 = 1_767_453_739_640;

fn story() -> Vec<LogDraft> {
    use RunEventType as T;
    vec![
        draft(T::RunCreated, 0, json!({"workflowName": "order", "input": {"id": 7}})),
        draft(T::RunStarted, 0, json!({"workflowVersion": "v1"})),
        draft(T::StepCreated, 1, json!({"stepName": "charge", "input": 1})),
        draft(T::StepStarted, 1, json!({"attempt": 1})),
        draft(T::StepRetrying, 1, json!({"error": "busy", "errorCode": "B", "retryAfter": AT})),
        draft(T::HookCreated, 2, json!({"token": "tok", "metadata": {"who": "me"}})),
        draft(T::HookReceived, 2, json!({"payload": 1})),
        draft(T::HookReceived, 2, json!({"payload": 2})),
        draft(T::WaitCreated, 3, json!({"resumeAt": AT + 1})),
        draft(
            T::WaitCreated,
            4,
            json!({"eventName": "paid", "matchCriteria": {"id": 7}, "timeoutAt": AT + 2, "since": AT}),
        ),
        draft(T::WaitCreated, 5, json!({"task": "req-1"})),
        draft(T::WaitCreated, 6, json!({"job": "job-1", "timeoutAt": AT + 3})),
        draft(T::StepCreated, 7, json!({"stepName": "ship"})),
        draft(T::StepStarted, 7, json!({"attempt": 1})),
        draft(T::StepCompleted, 7, json!({"result": {"sent": true}})),
        draft(
            T::WaitCompleted,
            4,
            json!({"outcome": "event", "eventId": "e-1", "eventName": "paid", "data": 1, "matchCriteria": {"id": 7}}),
        ),
    ]
}

fn folded(drafts: impl IntoIterator<Item = LogDraft>) -> RunHistory {
    let mut history = RunHistory::new();
    drafts.into_iter().for_each(|draft| append(&mut history, draft).unwrap());
    history
}

#[test]
fn a_view_shows_the_run_with_everything_in_it() {
    let history = folded(story());
    let at = |number: u64| Millis::MIN.plus(number * 10).get();
    let id = |entity, number| id_of(entity, number).to_string();
    let view = history.view().unwrap();
    let expected = json!({
        "runId": id(RunEntity::Run, 0), "state": "running", "workflowName": "order", "workflowVersion": "v1",
        "input": {"id": 7}, "createdAt": at(0), "startedAt": at(1),
        "steps": [
            {
                "stepId": id(RunEntity::Step, 1), "stepName": "charge", "state": "pending", "attempt": 1, "retries": 1,
                "error": "busy", "errorCode": "B", "retryAfter": AT, "createdAt": at(2), "startedAt": at(3),
            },
            {
                "stepId": id(RunEntity::Step, 7), "stepName": "ship", "state": "completed", "attempt": 1, "retries": 0,
                "result": {"sent": true}, "createdAt": at(12), "startedAt": at(13), "endedAt": at(14),
            },
        ],
        "hooks": [{
            "hookId": id(RunEntity::Hook, 2), "state": "active", "token": "tok", "metadata": {"who": "me"}, "received": 2,
            "createdAt": at(5),
        }],
        "waits": [
            {"waitId": id(RunEntity::Wait, 3), "state": "waiting", "kind": "sleep", "resumeAt": AT + 1, "createdAt": at(8)},
            {
                "waitId": id(RunEntity::Wait, 4), "state": "completed", "kind": "event", "eventName": "paid",
                "matchCriteria": {"id": 7}, "timeoutAt": AT + 2, "since": AT, "outcome": "event", "eventId": "e-1",
                "createdAt": at(9), "completedAt": at(15),
            },
            {"waitId": id(RunEntity::Wait, 5), "state": "waiting", "kind": "task", "task": "req-1", "createdAt": at(10)},
            {
                "waitId": id(RunEntity::Wait, 6), "state": "waiting", "kind": "job", "job": "job-1",
                "timeoutAt": AT + 3, "createdAt": at(11),
            },
        ],
    });
    assert_eq!(serde_json::to_value(&view).unwrap(), expected);
    let read: RunView<'static> = serde_json::from_value(expected).unwrap();
    assert_eq!(read, view);
    let step = history.entity(RunEntity::Step, &id(RunEntity::Step, 7)).unwrap();
    assert_eq!(serde_json::to_value(step).unwrap()["step"]["stepName"], "ship");
    assert_eq!(history.entity(RunEntity::Step, "step_x"), None);
    assert_eq!(RunHistory::new().view(), None);
}

#[test]
fn timers_are_those_of_sleeps_timeouts_and_retries_that_are_open() {
    let mut history = folded(story());
    let open = |history: &RunHistory| -> Vec<_> {
        history.open_timers().map(|(id, due)| (id.to_string(), due.get() - AT)).collect()
    };
    let id = |entity, number| id_of(entity, number).to_string();
    let (step, sleep, job) = (id(RunEntity::Step, 1), id(RunEntity::Wait, 3), id(RunEntity::Wait, 6));
    assert_eq!(open(&history), [(step, 0), (sleep.clone(), 1), (job.clone(), 3)]);
    append(&mut history, draft(RunEventType::StepStarted, 1, json!({"attempt": 2}))).unwrap();
    assert_eq!(open(&history), [(sleep, 1), (job, 3)]);
    assert_eq!(history.open_waits().count(), 3);
    assert_eq!(history.active_hooks().count(), 1);
    append(&mut history, draft(RunEventType::RunFailed, 0, json!({"error": "x"}))).unwrap();
    assert_eq!(open(&history), [], "whatever a runner left open is over with the run");
    assert_eq!((history.open_waits().count(), history.active_hooks().count()), (0, 0));
    assert_eq!(history.closings(), []);
}

#[test]
fn closings_end_what_is_open_and_nothing_else() {
    let mut history = folded(story());
    let closings = history.closings();
    let told: Vec<_> =
        closings.iter().map(|draft| (draft.event_type, draft.correlation_id.to_string())).collect();
    use RunEventType as T;
    let id = |entity, number| id_of(entity, number).to_string();
    assert_eq!(
        told,
        [
            (T::StepFailed, id(RunEntity::Step, 1)),
            (T::HookDisposed, id(RunEntity::Hook, 2)),
            (T::WaitCompleted, id(RunEntity::Wait, 3)),
            (T::WaitCompleted, id(RunEntity::Wait, 5)),
            (T::WaitCompleted, id(RunEntity::Wait, 6)),
        ]
    );
    for closing in &closings {
        let LogDraft { event_type, correlation_id, event_data } = closing.clone();
        assert_eq!(read_draft(event_type, Some(&correlation_id), event_data).as_ref(), Ok(closing));
    }
    let end = draft(T::RunCompleted, 0, json!({"output": null}));
    assert_eq!(history.check_all(closings.iter().chain([&end])), Ok(()));
    assert!(history.check_all([&end].into_iter().chain(&closings)).is_err(), "the end comes last");
    closings.into_iter().for_each(|closing| append(&mut history, closing).unwrap());
    assert_eq!(history.closings(), []);
    let sleep = history.waits().get(&id(RunEntity::Wait, 3)).unwrap();
    assert_eq!(sleep.outcome, Some(WaitOutcome::Abandoned));
    let step = history.steps().get(&id(RunEntity::Step, 1)).unwrap();
    assert_eq!((step.error_code.as_deref(), step.attempt), (Some("abandoned"), 1));
}

#[test]
fn a_whole_entry_is_checked_at_once() {
    use RunEventType as T;
    let all: Vec<_> = story();
    assert_eq!(RunHistory::new().check_all(&all), Ok(()), "an empty log may get all of it");
    let begun = folded(all[..2].to_vec());
    let step = |kind| draft(kind, 9, json!({}));
    let fast = [T::StepCreated, T::StepStarted, T::StepCompleted].map(step);
    assert_eq!(begun.check_all(&fast), Ok(()));
    let error = begun.check_all(&[T::StepCreated, T::StepCompleted].map(step)).unwrap_err();
    assert_eq!(error.state, "pending");
    assert!(begun.check_all(&[T::StepCreated, T::StepCreated].map(step)).is_err());
}

#[test]
fn what_a_foreign_runner_leaves_out_is_filled_in() {
    use RunEventType as T;
    let mut history = in_state(RunEntity::Step, "running");
    for kind in [T::StepStarted, T::StepRetrying, T::StepStarted, T::WaitCreated, T::WaitCompleted] {
        append(&mut history, draft(kind, 1, json!({}))).unwrap();
    }
    let step = history.steps().iter().next().unwrap();
    assert_eq!((step.attempt, step.retries, step.retry_after), (3, 1, None));
    let wait = history.waits().iter().next().unwrap();
    assert_eq!((&wait.target, wait.outcome), (&WaitFor::Unknown, Some(WaitOutcome::Elapsed)));
}
