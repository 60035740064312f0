//! The error of an event that the state of its entity does not allow.

use super::{RunState, change::Lifecycle};
use crate::{Name, RunEntity, RunEventType};

/// The state of an entity that does not exist.
const ABSENT: &str = "absent";

/// An illegal event: the state of an entity does not allow it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event_type} is not possible: {}", self.why())]
pub struct Illegal {
    /// The event that was refused.
    pub event_type: RunEventType,
    /// The entity whose state does not allow it: its own, or the run.
    pub entity: RunEntity,
    /// Its id; `None` for the run of an empty log.
    pub id: Option<Name>,
    /// Its state, or `absent`.
    pub state: &'static str,
    /// Whether that state is terminal.
    pub is_final: bool,
    /// The states that allow the event.
    pub allowed: Vec<&'static str>,
}

impl Illegal {
    /// About an event that is `change` to what is in the state `before`.
    pub(super) fn of<S: Lifecycle>(
        event_type: RunEventType,
        id: Option<&Name>,
        before: Option<S>,
        change: S::Change,
    ) -> Self {
        let states = std::iter::once(None).chain(S::STATES.iter().copied().map(Some));
        let text = |state: Option<S>| state.map_or(ABSENT, S::text);
        Self {
            event_type,
            entity: S::ENTITY,
            id: id.cloned(),
            state: text(before),
            is_final: before.is_some_and(S::is_final),
            allowed: states.filter(|state| S::after(*state, change).is_some()).map(text).collect(),
        }
    }

    /// About an event of a step, hook or wait of a `run` that is not running.
    pub(super) fn unless_running(event_type: RunEventType, run: Option<(&Name, RunState)>) -> Self {
        Self {
            event_type,
            entity: RunEntity::Run,
            id: run.map(|(id, _)| id.clone()),
            state: run.map_or(ABSENT, |(_, state)| state.as_str()),
            is_final: run.is_some_and(|(_, state)| state.is_terminal()),
            allowed: vec![RunState::Running.as_str()],
        }
    }

    fn why(&self) -> String {
        let entity = match self.entity {
            RunEntity::Run => "run",
            RunEntity::Step => "step",
            RunEntity::Hook => "hook",
            RunEntity::Wait => "wait",
        };
        let which = self.id.as_ref().map_or_else(|| entity.to_owned(), |id| format!("{entity} {id}"));
        let state = self.state;
        if state == ABSENT {
            format!("there is no {which}")
        } else if self.allowed == [ABSENT] {
            format!("{which} is there already; it is {state}")
        } else if self.is_final {
            format!("{which} is {state}, which is final")
        } else {
            format!("{which} is {state}; it must be {}", self.allowed.join(" or "))
        }
    }
}
