//! Makes the events of a workflow storable: values that the log cannot hold become errors.

use ledgerline_event::{LogDraft, RunEventType};
use ledgerline_runs::check_loggable;
use ledgerline_stage::Stage;
use serde_json::{Map, Value};

/// The events as they can be appended: hooks get tokens, and values that cannot be stored are replaced.
pub(super) fn sanitize(stage: &Stage, drafts: Vec<LogDraft>) -> Vec<LogDraft> {
    drafts.into_iter().map(|draft| with_token(stage, storable(draft))).collect()
}

fn with_token(stage: &Stage, mut draft: LogDraft) -> LogDraft {
    if draft.event_type == RunEventType::HookCreated && !draft.event_data.contains_key("token") {
        draft.event_data.insert("token".into(), Value::from(stage.runs.logs.new_hook_token()));
    }
    draft
}

fn storable(draft: LogDraft) -> LogDraft {
    let Err(invalid) = check_loggable(&draft) else { return draft };
    let (event_type, what) = match draft.event_type {
        RunEventType::StepCompleted => (RunEventType::StepFailed, "the result"),
        RunEventType::RunCompleted => (RunEventType::RunFailed, "the output"),
        // The other events keep their fact; only the details are left out.
        _ => {
            tracing::warn!(event = %draft.event_type, id = %draft.correlation_id, %invalid, "event data that cannot be stored was dropped from the run's log");
            return LogDraft { event_data: scalars(draft.event_data), ..draft };
        }
    };
    let error = format!("{what} cannot be stored: {}", invalid.reason);
    let event_data = Map::from_iter([
        ("error".to_owned(), Value::from(error)),
        ("errorCode".to_owned(), Value::from("unstorable")),
    ]);
    LogDraft { event_type, correlation_id: draft.correlation_id, event_data }
}

/// The fields that are texts, whole numbers or booleans.
fn scalars(data: Map<String, Value>) -> Map<String, Value> {
    let is_scalar = |value: &Value| matches!(value, Value::String(_) | Value::Bool(_)) || value.is_u64();
    data.into_iter().filter(|(_, value)| is_scalar(value)).collect()
}
