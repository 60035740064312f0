//! The events that a run wants appended to its log.

use ledgerline_event::{LogDraft, Millis, Name, RunEntity, RunEventType};
use serde_json::{Map, Value};

use crate::{Error, error::ABANDONED};

/// An event without details.
pub(crate) fn draft(event_type: RunEventType, id: &Name) -> LogDraft {
    LogDraft { event_type, correlation_id: id.clone(), event_data: Map::new() }
}

/// An event with these details.
pub(crate) fn draft_with<const N: usize>(
    event_type: RunEventType,
    id: &Name,
    data: [(&str, Value); N],
) -> LogDraft {
    let event_data = data.into_iter().map(|(field, value)| (field.to_owned(), value)).collect();
    LogDraft { event_data, ..draft(event_type, id) }
}

/// An event about an error.
pub(crate) fn draft_error(event_type: RunEventType, id: &Name, error: &Error) -> LogDraft {
    LogDraft { event_data: error.to_log(), ..draft(event_type, id) }
}

/// The event that closes an entity for which the run no longer waits; `None` for a run, which ends instead.
pub(crate) fn closing(entity: RunEntity, id: &Name) -> Option<LogDraft> {
    match entity {
        RunEntity::Run => None,
        RunEntity::Step => {
            let error = Error::fatal("abandoned: the workflow does not wait for it any more").code(ABANDONED);
            Some(draft_error(RunEventType::StepFailed, id, &error))
        }
        RunEntity::Wait => Some(draft_with(RunEventType::WaitCompleted, id, [("outcome", ABANDONED.into())])),
        RunEntity::Hook => Some(draft(RunEventType::HookDisposed, id)),
    }
}

/// A time in a log.
pub(crate) fn millis(value: &Value) -> Option<Millis> {
    value.as_u64().and_then(|ms| Millis::try_from(ms).ok())
}
