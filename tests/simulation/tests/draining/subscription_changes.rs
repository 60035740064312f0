//! Subscriptions that are disabled, enabled, changed and removed in the middle of a history, and what is promised of the
//! events around such a moment.
//!
//! A pass matches with the subscriptions as they were when it took the lease, or later. So what is promised by a change
//! is promised of events that no earlier pass can have passed, and of those that were wanted before and are still.

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
pub(super) enum Standing {
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
    /// Where the cursor stood when the first pass began that knows of the change, or later went back to.
    unpassed: Option<String>,
    /// The events behind the cursor that the late lane led that pass to.
    led_to: BTreeSet<String>,
    /// The events that were wanted before, and still are.
    kept: BTreeSet<String>,
    /// Those that ran at that moment: they may not know of it.
    unaware: Vec<String>,
    /// The claims of the subscription when the last of those had ended.
    claims: Option<BTreeSet<(String, String)>>,
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
    /// Whether an event that it wants has to be started or parked in the end.
    pub(super) fn owes(&self, sk: &str, event: &Event) -> bool {
        self.matches(event)
            && self.change.as_ref().is_none_or(|change| {
                let unpassed = change.unpassed.as_ref().is_some_and(|place| sk > place.as_str());
                unpassed
                    || !change.sent.contains(sk)
                    || change.led_to.contains(sk)
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
    /// Changes a subscription, rather one whose starts wait. Answers what was done.
    pub(super) async fn change_one(&mut self, stage: &Stage, random: &mut Rng, live: Vec<&str>) -> String {
        let changeable =
            |subscribed: &Subscribed| !subscribed.steady && subscribed.standing != Standing::Removed;
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
        let rather = if waiting.is_empty() || random.u8(..4) == 0 { any } else { waiting };
        let Some(position) = random.choice(rather) else { return "nothing is left to change".into() };
        self.check_quiet(Some(position)).await;
        let before = self.subscribed[position].clone();
        let (mut standing, mut filter) = (before.standing, before.filter);
        match (random.u8(..6), before.standing) {
            (0, _) => standing = Standing::Removed,
            (1 | 2, Standing::Enabled) => standing = Standing::Disabled,
            (1..=3, Standing::Disabled) => standing = Standing::Enabled,
            _ => filter = if filter == Filter::Own { Filter::Thirds } else { Filter::Own },
        }
        let tenant = name(TENANT);
        let id = before.id.clone();
        if standing == Standing::Removed {
            stage.registry().unsubscribe(&tenant, &id).await.unwrap();
        } else {
            let change = SubscriptionChange {
                enabled: Some(standing == Standing::Enabled),
                filter_expr: Some(before.wants.expression(filter)),
                ..SubscriptionChange::default()
            };
            stage.registry().change_subscription(&tenant, &id, change).await.unwrap();
        }
        let record = self.record(before.drainer).await;
        let subscribed = &mut self.subscribed[position];
        (subscribed.standing, subscribed.filter) = (standing, filter);
        subscribed.interrupted |= standing != Standing::Enabled;
        subscribed.had.extend((standing == Standing::Enabled).then_some(filter));
        let after = subscribed.clone();
        let is_kept = |sk: &str, event: &Event| before.owes(sk, event) && after.matches(event);
        let kept = self.events.iter().filter(|(sk, event)| is_kept(sk, event));
        let mut change = Change {
            fence: record.fence,
            sent: self.sent.clone(),
            unpassed: None,
            led_to: BTreeSet::new(),
            kept: kept.map(|(sk, _)| sk.clone()).collect(),
            unaware: live.into_iter().map(str::to_owned).collect(),
            claims: None,
        };
        if record.owner.is_none() {
            self.first_pass(&mut change, &record).await;
        }
        self.subscribed[position].change = Some(change);
        format!("{id} is {standing:?} with {filter:?} of {:?}", before.wants)
    }

    /// The next pass knows of a change.
    async fn first_pass(&self, change: &mut Change, record: &DrainState) {
        change.unpassed = Some(record.cursor.clone());
        let rows = self.store.control().partition(&keys::late_lane(TENANT)).send().await.unwrap();
        let keys = rows.items().iter().map(|row| row["SK"].as_s().unwrap());
        let ahead = keys.filter(|key| **key > record.late_cursor);
        change.led_to = ahead.map(|key| keys::parse_late_pointer(key).unwrap().1.to_owned()).collect();
    }

    /// Notes the first lease after a change, and rewinds.
    pub(super) async fn note_fence(&mut self, drainer: &str, now: &DrainState) {
        for position in 0..self.subscribed.len() {
            let subscribed = &self.subscribed[position];
            let Some(mut change) = subscribed.change.clone().filter(|_| subscribed.drainer == drainer) else {
                continue;
            };
            match &change.unpassed {
                None if now.fence > change.fence => self.first_pass(&mut change, now).await,
                Some(place) if now.cursor < *place => change.unpassed = Some(now.cursor.clone()),
                _ => continue,
            }
            self.subscribed[position].change = Some(change);
        }
    }

    /// Notes the claims that were made by those that may not know of a change.
    pub(super) async fn note_quiet(&mut self, is_done: impl Fn(&str) -> bool) {
        for position in 0..self.subscribed.len() {
            let Some(change) = &self.subscribed[position].change else { continue };
            if change.claims.is_none() && change.unaware.iter().all(|actor| is_done(actor)) {
                let claims = self.claims_of(position).await;
                self.subscribed[position].change.as_mut().unwrap().claims = Some(claims);
            }
        }
    }

    /// What was claimed since by those that know of a change is wanted.
    pub(super) async fn check_quiet(&self, only: Option<usize>) {
        for (position, subscribed) in self.subscribed.iter().enumerate() {
            let known = subscribed.change.as_ref().and_then(|change| change.claims.as_ref());
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
