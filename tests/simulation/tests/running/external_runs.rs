//! Drivers of external runs: each appends one event at a time; two may drive the same run.

use fastrand::Rng;
use ledgerline_event::{RunHistory, RunState, StepState, WaitFor};
use ledgerline_ledger::Emitter;
use ledgerline_outbox::ComponentError;
use ledgerline_runs::ExternalEvent;
use ledgerline_stage::Stage;
use ledgerline_test_support::name;
use serde_json::{Value, json};

use super::{
    TENANT,
    workflow_script::{EVENTS, criteria},
};

/// How many waits, and how many steps, such a run has at most.
const MOST: usize = 3;

/// Looks at the log of a run and appends something that can follow. In a `hurry` it comes to the end.
pub(super) async fn append_one(stage: Stage, emitter: Emitter, run_id: String, mut random: Rng, hurry: bool) {
    let log = match stage.runs.run_events(&name(TENANT), &run_id).await {
        Ok(log) => log,
        Err(ComponentError::Unknown { .. }) => Vec::new(),
        Err(_) => return,
    };
    let now = stage.now().get();
    let Some(event) = next(&RunHistory::of(&log).unwrap(), &run_id, now, &mut random, hurry) else { return };
    match stage.external_runs.append_external(&emitter, &run_id, event).await {
        // Another driver was faster, or a service did not do its part.
        Ok(_) | Err(ComponentError::Illegal(_) | ComponentError::Refused(_) | ComponentError::Store(_)) => {}
        Err(ComponentError::Emit(_)) => {}
        Err(error) => panic!("{error:?}"),
    }
}

fn next(
    history: &RunHistory,
    run_id: &str,
    now: u64,
    random: &mut Rng,
    hurry: bool,
) -> Option<ExternalEvent> {
    let event = |event_type: &str, id: Option<String>, data: Value| {
        let Value::Object(event_data) = data else { unreachable!("an object") };
        Some(ExternalEvent { event_type: event_type.to_owned(), correlation_id: id, event_data })
    };
    let number = run_id.bytes().fold(0_u64, |sum, byte| sum * 31 % 10_000_000 + u64::from(byte));
    let id = |prefix: &str, n: usize| Some(format!("{prefix}_01KE277JKR{:016}", number * 100 + n as u64));
    match history.state() {
        None => return event("run_created", None, json!({ "workflowName": "elsewhere", "input": null })),
        Some(RunState::Pending) => return event("run_started", None, json!({})),
        Some(RunState::Running) => {}
        Some(RunState::Completed | RunState::Failed | RunState::Cancelled) => return None,
    }
    let (steps, waits, hooks) =
        (history.steps().as_slice(), history.waits().as_slice(), history.hooks().as_slice());
    if let Some(step) = history.open_steps().next() {
        let id = Some(step.step_id.to_string());
        return match step.state {
            StepState::Pending => event("step_started", id, json!({ "attempt": step.attempt + 1 })),
            _ if !hurry && random.bool() => {
                event("step_retrying", id, json!({ "error": "not yet", "retryAfter": now + 1_000 }))
            }
            _ => event("step_completed", id, json!({ "result": step.attempt })),
        };
    }
    match random.u8(..8) {
        0 | 1 if steps.len() < MOST => {
            event("step_created", id("step", steps.len()), json!({ "stepName": "n" }))
        }
        2..5 if waits.len() < MOST => {
            let mut data = match random.u8(..4) {
                0 => json!({ "resumeAt": now + random.u64(..100_000) }),
                _ => {
                    json!({ "eventName": EVENTS[random.usize(..EVENTS.len())], "matchCriteria": criteria(random) })
                }
            };
            if random.bool() && data.get("eventName").is_some() {
                data["timeoutAt"] = json!(now + random.u64(..100_000));
            }
            event("wait_created", id("wait", waits.len()), data)
        }
        5 if hooks.len() < MOST => event("hook_created", id("hook", hooks.len()), json!({})),
        6 if random.bool() => {
            let hook = history.active_hooks().next()?;
            event("hook_disposed", Some(hook.hook_id.to_string()), json!({}))
        }
        7 if random.bool() => {
            let wait = history.open_waits().next()?;
            let outcome = if matches!(wait.target, WaitFor::Sleep { .. }) { "elapsed" } else { "timeout" };
            event("wait_completed", Some(wait.wait_id.to_string()), json!({ "outcome": outcome }))
        }
        // What it still waits for is closed with it.
        _ if hurry && history.open_waits().count() == 0 || random.u8(..8) == 0 => {
            event("run_completed", None, json!({ "output": null }))
        }
        _ => None,
    }
}
