//! What a workflow wants to be written down and the ledger cannot hold becomes the error that it is.

use ledgerline_dispatch::{Dispatch, check_loggable};
use ledgerline_event::{LogDraft, RunEventType};
use serde_json::{Map, Value};

/// The events as they can be appended: tokens are made, and what cannot be held is told instead.
pub(super) fn appendable(dispatch: &Dispatch, drafts: Vec<LogDraft>) -> Vec<LogDraft> {
    drafts.into_iter().map(|draft| with_token(dispatch, held(draft))).collect()
}

fn with_token(dispatch: &Dispatch, mut draft: LogDraft) -> LogDraft {
    if draft.event_type == RunEventType::HookCreated && !draft.event_data.contains_key("token") {
        draft.event_data.insert("token".into(), Value::from(dispatch.new_hook_token()));
    }
    draft
}

fn held(draft: LogDraft) -> LogDraft {
    let Err(invalid) = check_loggable(&draft) else { return draft };
    let (event_type, what) = match draft.event_type {
        RunEventType::StepCompleted => (RunEventType::StepFailed, "the result"),
        RunEventType::RunCompleted => (RunEventType::RunFailed, "the output"),
        // What is only told beside the fact is left out.
        _ => {
            tracing::warn!(event = %draft.event_type, id = %draft.correlation_id, %invalid, "a detail is left out of the log");
            return LogDraft { event_data: plain(draft.event_data), ..draft };
        }
    };
    let error = format!("{what} cannot be stored: {}", invalid.reason);
    let event_data = Map::from_iter([
        ("error".to_owned(), Value::from(error)),
        ("errorCode".to_owned(), Value::from("unstorable")),
    ]);
    LogDraft { event_type, correlation_id: draft.correlation_id, event_data }
}

/// What is text, number or truth by itself.
fn plain(data: Map<String, Value>) -> Map<String, Value> {
    let simple = |value: &Value| matches!(value, Value::String(_) | Value::Bool(_)) || value.is_u64();
    data.into_iter().filter(|(_, value)| simple(value)).collect()
}
