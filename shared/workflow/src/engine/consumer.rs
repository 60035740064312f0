//! Which command takes which event of the log. The engine offers the events in the order of the log, one
//! at a time, each to the subscription of its entity. It finds the subscription by the ULID in the
//! entity's id, so that an event costs the same however many commands a run has. (By the ULID and not by
//! the whole id: this also finds a command whose kind has changed, so that the mismatch can name it.) An
//! event that no command takes is a mismatch.

use std::collections::HashMap;

use ledgerline_event::LogEvent;
use ulid::Ulid;

/// What a subscription says to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It was for this command, and more may come.
    Consumed,
    /// It does not fit.
    NotConsumed,
    /// It was for this command, and the last one.
    Finished,
}

/// What became of an event that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// The command in this slot took it.
    Taken(usize),
    /// The command in this slot refused it.
    Refused(usize),
    /// No command has its ULID.
    Unknown,
}

/// The subscriptions of a run.
#[derive(Default)]
pub(crate) struct Consumer {
    subscriptions: HashMap<u128, usize>,
}

impl Consumer {
    pub(crate) fn subscribe(&mut self, ulid: Ulid, slot: usize) {
        self.subscriptions.insert(ulid.into(), slot);
    }

    /// Offers the event to the command that may take it.
    pub(crate) fn offer(
        &mut self,
        event: &mut LogEvent,
        inspect: impl FnOnce(usize, &mut LogEvent) -> Answer,
    ) -> Offered {
        let Some(key) = ulid_of(&event.correlation_id).map(u128::from) else { return Offered::Unknown };
        let Some(slot) = self.subscriptions.get(&key).copied() else { return Offered::Unknown };
        match inspect(slot, event) {
            Answer::Consumed => Offered::Taken(slot),
            Answer::NotConsumed => Offered::Refused(slot),
            Answer::Finished => {
                self.subscriptions.remove(&key);
                Offered::Taken(slot)
            }
        }
    }

    /// The slots of those that still wait, in no order.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = usize> {
        self.subscriptions.values().copied()
    }
}

/// The ULID in an id of ours.
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
    fn a_subscription_takes_refuses_and_finishes() {
        let (mine, other) = (Ulid::from_parts(1, 1), Ulid::from_parts(1, 2));
        let mut consumer = Consumer::default();
        consumer.subscribe(mine, 7);
        let mut offer = |ulid, answer| consumer.offer(&mut event(ulid), |_, _| answer);
        assert_eq!(offer(other, Answer::Consumed), Offered::Unknown);
        assert_eq!(offer(mine, Answer::Consumed), Offered::Taken(7));
        assert_eq!(offer(mine, Answer::NotConsumed), Offered::Refused(7));
        assert_eq!(offer(mine, Answer::Finished), Offered::Taken(7));
        assert_eq!(offer(mine, Answer::Consumed), Offered::Unknown);
    }
}
