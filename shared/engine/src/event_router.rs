//! Which command an event of the log is about.
//!
//! The engine routes the events one at a time, in the order of the log. It finds the command by the ULID in the entity's
//! id, so an event costs the same however many commands a run has. (By the ULID and not by the whole id: this also finds a
//! command whose kind has changed, so that the mismatch can name it.) An event that no command accepts is a mismatch.

use std::collections::HashMap;

use ledgerline_event::LogEvent;
use ulid::Ulid;

/// What a command says to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The event is for this command, and more may come.
    Accepted,
    /// The event is for this command, and it is the last one.
    AcceptedLast,
    /// The event does not fit the command.
    Rejected,
}

/// What became of an event that was routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routed {
    /// The command in this slot accepted it.
    Accepted(usize),
    /// The command in this slot rejected it.
    Rejected(usize),
    /// No command with this ULID expects events.
    NoCommand,
}

/// The commands of a run that expect events.
#[derive(Default)]
pub(crate) struct EventRouter {
    slots: HashMap<u128, usize>,
}

impl EventRouter {
    pub(crate) fn subscribe(&mut self, ulid: Ulid, slot: usize) {
        self.slots.insert(ulid.into(), slot);
    }

    /// Offers the event to the command that it is about.
    pub(crate) fn route(
        &mut self,
        event: &mut LogEvent,
        offer: impl FnOnce(usize, &mut LogEvent) -> Answer,
    ) -> Routed {
        let Some(key) = ulid_of(&event.correlation_id).map(u128::from) else { return Routed::NoCommand };
        let Some(slot) = self.slots.get(&key).copied() else { return Routed::NoCommand };
        match offer(slot, event) {
            Answer::Accepted => Routed::Accepted(slot),
            Answer::AcceptedLast => {
                self.slots.remove(&key);
                Routed::Accepted(slot)
            }
            Answer::Rejected => Routed::Rejected(slot),
        }
    }

    /// The slots of the commands that expect events, in no order.
    pub(crate) fn subscribed(&self) -> impl Iterator<Item = usize> {
        self.slots.values().copied()
    }
}

/// The ULID in an id that this system made.
pub(crate) fn ulid_of(id: &str) -> Option<Ulid> {
    let (_, digits) = id.split_once('_')?;
    Ulid::from_string(digits).ok()
}

#[cfg(test)]
mod tests {
    use ledgerline_event::{Kind, LogDraft, Millis, RunEventType};
    use serde_json::Map;

    use super::*;

    fn event(ulid: Ulid) -> LogEvent {
        let draft = LogDraft {
            event_type: RunEventType::WaitCreated,
            correlation_id: Kind::Wait.id(ulid),
            event_data: Map::new(),
        };
        draft.at(Kind::Event.id(ulid), Millis::MIN)
    }

    #[test]
    fn a_command_gets_its_own_events_until_the_last_one() {
        let (own, other) = (Ulid::from_parts(1, 1), Ulid::from_parts(1, 2));
        let mut router = EventRouter::default();
        router.subscribe(own, 7);
        let mut route = |ulid, answer| router.route(&mut event(ulid), |_, _| answer);
        assert_eq!(route(other, Answer::Accepted), Routed::NoCommand);
        assert_eq!(route(own, Answer::Accepted), Routed::Accepted(7));
        assert_eq!(route(own, Answer::Rejected), Routed::Rejected(7));
        assert_eq!(route(own, Answer::AcceptedLast), Routed::Accepted(7));
        assert_eq!(route(own, Answer::Accepted), Routed::NoCommand);
    }
}
