//! Changes of subscriptions in the middle of a history: an operator disables, enables, changes and removes them.
//!
//! A pass of a drainer matches with the subscriptions as they were when it took the lease, or later. So two promises are
//! checked. First: after a change the drainer starts or parks every event that the subscription wants now, if no earlier
//! pass can have passed the event, or if the subscription wanted the event before too. Second: once every process that
//! ran at the change has ended, no event is started that the subscription does not want.

use std::collections::BTreeSet;

use fastrand::Rng;
use ledgerline_drains::{DrainState, ParkedState, SubscriptionChange};
use ledgerline_event::Event;
use ledgerline_stage::Stage;
use ledgerline_store::keys;
use ledgerline_test_support::{name, scan};

use super::{Ledger, Subscribed, TENANT, Wants};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    /// The one that the subscription began with.
    Own,
    /// Every third event.
    Thirds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubscriptionState {
    Enabled,
    Disabled,
    Removed,
}

/// The last change of a subscription.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// The fence of the drainer at that moment.
    fence: u64,
    /// What savers had begun to save.
    sent: BTreeSet<String>,
    /// Where the cursor stood when the first pass began that knows of the change; less if a rewind set it back since.
    cursor_at_first_pass: Option<String>,
    /// The events behind the cursor to which pointers led that pass.
    late_arrivals_at_first_pass: BTreeSet<String>,
    /// The events that were wanted before, and still are.
    kept: BTreeSet<String>,
    /// The actors that ran at the change: they may match with the subscription as it was.
    running_at_change: Vec<String>,
    /// The claims of the subscription when the last of those actors had ended: from then on every process knows the change.
    claims_when_known: Option<BTreeSet<(String, String)>>,
}

impl Wants {
    pub(super) fn takes(self, filter: Filter, event: &Event) -> bool {
        let n = event.properties["n"].as_u64().unwrap();
        let by_type = self == Self::EvenNumbers || &*event.event_type == "price.changed";
        by_type
            && match filter {
                Filter::Own => self != Self::EvenNumbers || n.is_multiple_of(2),
                Filter::Thirds => n.is_multiple_of(3),
            }
    }

    fn expression(self, filter: Filter) -> Option<String> {
        match (filter, self) {
            (Filter::Own, Self::EvenNumbers) => Some("event.properties.n % 2 == 0".into()),
            (Filter::Own, _) => None,
            (Filter::Thirds, _) => Some("event.properties.n % 3 == 0".into()),
        }
    }
}

impl Subscribed {
    /// Whether the drainer promises to start or park this event for it in the end.
    pub(super) fn must_start_or_park(&self, sk: &str, event: &Event) -> bool {
        self.matches(event)
            && self.change.as_ref().is_none_or(|change| {
                let was_ahead = change.cursor_at_first_pass.as_ref().is_some_and(|place| sk > place.as_str());
                was_ahead
                    || !change.sent.contains(sk)
                    || change.late_arrivals_at_first_pass.contains(sk)
                    || change.kept.contains(sk)
            })
    }

    /// Whether it has wanted an event all the time.
    pub(super) fn has_always_wanted(&self, event: &Event) -> bool {
        !self.interrupted
            && self.matches(event)
            && self.had.iter().all(|filter| self.wants.takes(*filter, event))
    }
}

impl Ledger<'_> {
    /// Changes a subscription, in most cases one whose starts wait. Returns what was done.
    pub(super) async fn change_one(&mut self, stage: &Stage, random: &mut Rng, running: Vec<&str>) -> String {
        let changeable =
            |subscribed: &Subscribed| !subscribed.steady && subscribed.state != SubscriptionState::Removed;
        let mut waiting = Vec::new();
        let mut any = Vec::new();
        for (position, subscribed) in self.subscribed.iter().enumerate() {
            if changeable(subscribed) {
                any.push(position);
                let starts = self.starts(subscribed.drainer).await;
                let waits = starts.iter().any(|start| {
                    start.state == ParkedState::Retrying && start.subscription_id == subscribed.id
                });
                waiting.extend(waits.then_some(position));
            }
        }
        let candidates = if waiting.is_empty() || random.u8(..4) == 0 { any } else { waiting };
        let Some(position) = random.choice(candidates) else { return "nothing is left to change".into() };
        self.check_claims_since_known(Some(position)).await;
        let before = self.subscribed[position].clone();
        let (mut state, mut filter) = (before.state, before.filter);
        match (random.u8(..6), before.state) {
            (0, _) => state = SubscriptionState::Removed,
            (1 | 2, SubscriptionState::Enabled) => state = SubscriptionState::Disabled,
            (1..=3, SubscriptionState::Disabled) => state = SubscriptionState::Enabled,
            _ => filter = if filter == Filter::Own { Filter::Thirds } else { Filter::Own },
        }
        let tenant = name(TENANT);
        let id = before.id.clone();
        if state == SubscriptionState::Removed {
            stage.registry().unsubscribe(&tenant, &id).await.unwrap();
        } else {
            let change = SubscriptionChange {
                enabled: Some(state == SubscriptionState::Enabled),
                filter_expr: Some(before.wants.expression(filter)),
                ..SubscriptionChange::default()
            };
            stage.registry().change_subscription(&tenant, &id, change).await.unwrap();
        }
        let record = self.record(before.drainer).await;
        let subscribed = &mut self.subscribed[position];
        (subscribed.state, subscribed.filter) = (state, filter);
        subscribed.interrupted |= state != SubscriptionState::Enabled;
        subscribed.had.extend((state == SubscriptionState::Enabled).then_some(filter));
        let after = subscribed.clone();
        let is_kept = |sk: &str, event: &Event| before.must_start_or_park(sk, event) && after.matches(event);
        let kept = self.events.iter().filter(|(sk, event)| is_kept(sk, event));
        let mut change = Change {
            fence: record.fence,
            sent: self.sent.clone(),
            cursor_at_first_pass: None,
            late_arrivals_at_first_pass: BTreeSet::new(),
            kept: kept.map(|(sk, _)| sk.clone()).collect(),
            running_at_change: running.into_iter().map(str::to_owned).collect(),
            claims_when_known: None,
        };
        if record.owner.is_none() {
            self.first_pass(&mut change, &record).await;
        }
        self.subscribed[position].change = Some(change);
        format!("{id} is {state:?} with {filter:?} of {:?}", before.wants)
    }

    /// Notes where the drainer is when the first pass begins that knows of the change.
    async fn first_pass(&self, change: &mut Change, record: &DrainState) {
        change.cursor_at_first_pass = Some(record.cursor.clone());
        let rows = self.store.control().partition(&keys::late_arrivals(TENANT)).send().await.unwrap();
        let keys = rows.items().iter().map(|row| row["SK"].as_s().unwrap());
        let ahead = keys.filter(|key| **key > record.late_cursor);
        change.late_arrivals_at_first_pass =
            ahead.map(|key| keys::parse_late_pointer(key).unwrap().1.to_owned()).collect();
    }

    /// Notes the first lease after a change, and rewinds.
    pub(super) async fn note_fence(&mut self, drainer: &str, now: &DrainState) {
        for position in 0..self.subscribed.len() {
            let subscribed = &self.subscribed[position];
            let Some(mut change) = subscribed.change.clone().filter(|_| subscribed.drainer == drainer) else {
                continue;
            };
            match &change.cursor_at_first_pass {
                None if now.fence > change.fence => self.first_pass(&mut change, now).await,
                Some(place) if now.cursor < *place => change.cursor_at_first_pass = Some(now.cursor.clone()),
                _ => continue,
            }
            self.subscribed[position].change = Some(change);
        }
    }

    /// Notes the claims of a changed subscription once every process that ran at the change has ended: such a process may
    /// have claimed starts that the subscription does not want any more.
    pub(super) async fn note_claims_before_known(&mut self, is_done: impl Fn(&str) -> bool) {
        for position in 0..self.subscribed.len() {
            let Some(change) = &self.subscribed[position].change else { continue };
            if change.claims_when_known.is_none()
                && change.running_at_change.iter().all(|actor| is_done(actor))
            {
                let claims = self.claims_of(position).await;
                self.subscribed[position].change.as_mut().unwrap().claims_when_known = Some(claims);
            }
        }
    }

    /// Checks that every claim which was made since then is of an event that the subscription wants.
    pub(super) async fn check_claims_since_known(&self, only: Option<usize>) {
        for (position, subscribed) in self.subscribed.iter().enumerate() {
            let known = subscribed.change.as_ref().and_then(|change| change.claims_when_known.as_ref());
            let Some(known) = known.filter(|_| only.is_none_or(|only| only == position)) else { continue };
            for (pk, sk) in self.claims_of(position).await.difference(known) {
                let event =
                    pk.rsplit_once("TIMESTAMP#").map(|(_, place)| format!("TIMESTAMP#{place}")).unwrap();
                let by_hand = self.by_hand.contains(&(subscribed.id.to_string(), event.clone()));
                let wanted = by_hand || subscribed.matches(&self.events[&event]);
                assert!(wanted, "{pk} {sk} was started for {subscribed:?}");
            }
        }
    }

    /// The starts of a subscription.
    async fn claims_of(&self, position: usize) -> BTreeSet<(String, String)> {
        let end = format!("#{}", self.subscribed[position].id);
        let rows = scan(&self.store.clients, &self.store.names.control_table).await;
        let rows = rows.iter().filter(|row| {
            let sk = row["SK"].as_s().unwrap();
            let dropped =
                row.get("state").is_some_and(|state| state.as_s().is_ok_and(|state| state == "dropped"));
            sk.starts_with("START#") && sk.ends_with(&end) && !dropped
        });
        rows.map(|row| (row["PK"].as_s().unwrap().clone(), row["SK"].as_s().unwrap().clone())).collect()
    }
}
