//! A queue as it is held in memory: who is next, who is hidden until when.
//!
//! Pure: no store, no clock. Bodies stay in the store; here is what a receive needs to choose without
//! scanning a backlog. The next message is the oldest of the group with the fewest messages in flight, so a
//! tenant with a thousand messages does not keep another's one waiting.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A group of messages; those sent without one share one.
pub(crate) type GroupKey = Option<Arc<str>>;

/// How many messages a queue holds, by what becomes of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ready to be received.
    pub visible: usize,
    /// Received and not yet deleted or visible again.
    pub in_flight: usize,
    /// Sent with a delay that has not passed.
    pub delayed: usize,
}

/// What the index knows of a message.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) group: GroupKey,
    /// Handed out before every message that is not.
    pub(crate) urgent: bool,
    pub(crate) sent_at: u64,
    pub(crate) receives: u32,
    pub(crate) state: State,
}

/// Whether a message can be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    Delayed { until: u64 },
    InFlight { until: u64 },
}

/// Messages that take turns as one: urgent ones and others of a group apart, urgent ones first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Turn {
    can_wait: bool,
    group: GroupKey,
}

impl Turn {
    fn of(entry: &Entry) -> Self {
        Self { can_wait: !entry.urgent, group: entry.group.clone() }
    }
}

#[derive(Default)]
struct Group {
    ready: BTreeSet<i64>,
    in_flight: usize,
}

/// The messages of one queue.
#[derive(Default)]
pub(crate) struct Index {
    entries: HashMap<i64, Entry>,
    groups: HashMap<Turn, Group>,
    /// Groups with something ready: urgent ones first, then fewest in flight, then the oldest message.
    turns: BTreeSet<(bool, usize, i64, Turn)>,
    hidden: BTreeSet<(u64, i64)>,
    ages: BTreeSet<(u64, i64)>,
    counts: Counts,
}

impl Index {
    /// Adds a message.
    pub(crate) fn insert(&mut self, seq: i64, entry: Entry) {
        self.ages.insert((entry.sent_at, seq));
        self.enter(seq, &Turn::of(&entry), entry.state);
        self.entries.insert(seq, entry);
    }

    /// Takes a message out for good.
    pub(crate) fn remove(&mut self, seq: i64) -> Option<Entry> {
        let entry = self.entries.remove(&seq)?;
        self.ages.remove(&(entry.sent_at, seq));
        self.leave(seq, &Turn::of(&entry), entry.state);
        Some(entry)
    }

    /// What is known of a message.
    pub(crate) fn get(&self, seq: i64) -> Option<&Entry> {
        self.entries.get(&seq)
    }

    /// Makes ready what was hidden until now.
    pub(crate) fn wake(&mut self, now: u64) {
        while let Some(&(until, seq)) = self.hidden.first()
            && until <= now
        {
            self.change(seq, State::Ready);
        }
    }

    /// Whose turn it is.
    pub(crate) fn next(&self) -> Option<i64> {
        self.turns.first().map(|(_, _, seq, _)| *seq)
    }

    /// Marks a message received once more and hides it.
    pub(crate) fn take(&mut self, seq: i64, until: u64) {
        if let Some(entry) = self.entries.get_mut(&seq) {
            entry.receives += 1;
            self.change(seq, State::InFlight { until });
        }
    }

    /// Moves a message to another state.
    pub(crate) fn change(&mut self, seq: i64, state: State) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        let before = std::mem::replace(&mut entry.state, state);
        let group = Turn::of(entry);
        self.leave(seq, &group, before);
        self.enter(seq, &group, state);
    }

    /// The messages sent at `cutoff` or before.
    pub(crate) fn sent_until(&self, cutoff: u64) -> Vec<i64> {
        self.ages.range(..=(cutoff, i64::MAX)).map(|(_, seq)| *seq).collect()
    }

    /// The messages received and not yet deleted.
    pub(crate) fn in_flight(&self) -> Vec<i64> {
        let flies =
            |seq: &i64| matches!(self.entries.get(seq), Some(Entry { state: State::InFlight { .. }, .. }));
        self.hidden.iter().map(|(_, seq)| *seq).filter(flies).collect()
    }

    /// When the next hidden message becomes ready.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.hidden.first().map(|(until, _)| *until)
    }

    /// When the oldest message was sent.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.ages.first().map(|(sent_at, _)| *sent_at)
    }

    /// When the oldest message was sent that can be received.
    pub(crate) fn oldest_visible(&self) -> Option<u64> {
        let sent_at = |seq: &i64| self.entries.get(seq).map(|entry| entry.sent_at);
        self.groups.values().filter_map(|group| group.ready.first().and_then(sent_at)).min()
    }

    /// How many messages there are.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    fn enter(&mut self, seq: i64, group: &Turn, state: State) {
        match state {
            State::Ready => {
                self.counts.visible += 1;
                self.with_group(group, |group| _ = group.ready.insert(seq));
            }
            State::Delayed { until } => {
                self.counts.delayed += 1;
                self.hidden.insert((until, seq));
            }
            State::InFlight { until } => {
                self.counts.in_flight += 1;
                self.hidden.insert((until, seq));
                self.with_group(group, |group| group.in_flight += 1);
            }
        }
    }

    fn leave(&mut self, seq: i64, group: &Turn, state: State) {
        match state {
            State::Ready => {
                self.counts.visible -= 1;
                self.with_group(group, |group| _ = group.ready.remove(&seq));
            }
            State::Delayed { until } => {
                self.counts.delayed -= 1;
                self.hidden.remove(&(until, seq));
            }
            State::InFlight { until } => {
                self.counts.in_flight -= 1;
                self.hidden.remove(&(until, seq));
                self.with_group(group, |group| group.in_flight -= 1);
            }
        }
    }

    /// Changes a group and gives it its new turn.
    fn with_group(&mut self, key: &Turn, change: impl FnOnce(&mut Group)) {
        let group = self.groups.entry(key.clone()).or_default();
        if let Some(oldest) = group.ready.first() {
            self.turns.remove(&(key.can_wait, group.in_flight, *oldest, key.clone()));
        }
        change(group);
        if let Some(oldest) = group.ready.first() {
            self.turns.insert((key.can_wait, group.in_flight, *oldest, key.clone()));
        } else if group.in_flight == 0 {
            self.groups.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(group: Option<&str>) -> Entry {
        Entry { group: group.map(Arc::from), urgent: false, sent_at: 0, receives: 0, state: State::Ready }
    }

    fn receive(index: &mut Index, count: usize) -> Vec<i64> {
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(seq) = index.next()
        {
            index.take(seq, 100);
            taken.push(seq);
        }
        taken
    }

    #[test]
    fn a_large_group_does_not_starve_a_small_one() {
        let mut index = Index::default();
        for seq in 0..1000 {
            index.insert(seq, ready(Some("large")));
        }
        index.insert(1000, ready(Some("small")));
        assert_eq!(receive(&mut index, 3), [0, 1000, 1]);
    }

    #[test]
    fn urgent_messages_come_before_all_others_also_when_they_reappear() {
        let mut index = Index::default();
        for seq in 0..100 {
            index.insert(seq, ready(None));
        }
        index.insert(100, Entry { urgent: true, ..ready(None) });
        index.insert(101, Entry { urgent: true, ..ready(None) });
        assert_eq!(receive(&mut index, 3), [100, 101, 0]);
        index.wake(100);
        assert_eq!(receive(&mut index, 3), [100, 101, 0]);
    }

    #[test]
    fn within_a_group_the_oldest_comes_first_even_after_it_reappears() {
        let mut index = Index::default();
        for seq in 0..3 {
            index.insert(seq, ready(None));
        }
        assert_eq!(receive(&mut index, 2), [0, 1]);
        index.wake(100);
        assert_eq!(receive(&mut index, 3), [0, 1, 2]);
        assert_eq!(index.get(0).map(|entry| entry.receives), Some(2));
    }

    #[test]
    fn the_oldest_visible_message_is_not_one_in_flight() {
        let mut index = Index::default();
        index.insert(1, Entry { sent_at: 10, ..ready(Some("a")) });
        index.insert(2, Entry { sent_at: 20, ..ready(Some("a")) });
        index.insert(3, Entry { sent_at: 30, ..ready(Some("b")) });
        assert_eq!(index.oldest_visible(), Some(10));
        assert_eq!(receive(&mut index, 1), [1]);
        assert_eq!((index.oldest(), index.oldest_visible()), (Some(10), Some(20)));
        assert_eq!(receive(&mut index, 2).len(), 2);
        assert_eq!((index.oldest(), index.oldest_visible()), (Some(10), None));
    }

    #[test]
    fn an_emptied_index_keeps_nothing() {
        let mut index = Index::default();
        index.insert(1, ready(Some("a")));
        index.insert(2, Entry { state: State::Delayed { until: 9 }, ..ready(Some("b")) });
        receive(&mut index, 1);
        assert_eq!(index.counts(), Counts { visible: 0, in_flight: 1, delayed: 1 });
        index.remove(1);
        index.remove(2);
        assert_eq!(index.counts(), Counts::default());
        assert!(index.groups.is_empty() && index.turns.is_empty() && index.hidden.is_empty());
        assert!(index.ages.is_empty() && index.entries.is_empty());
    }
}
