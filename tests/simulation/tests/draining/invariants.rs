//! What is checked while a history goes on, and when it has come to rest.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_drains::{DrainState, ParkedStart, ParkedState};
use ledgerline_event::Event;
use ledgerline_simulation::Store;
use ledgerline_store::{Item, keys, read};
use ledgerline_test_support::{rows_of, scan};

use super::{DRAINERS, Subscribed, TENANT, Wants};

/// Everything about one history that checks need.
pub(super) struct Ledger<'s> {
    pub(super) store: &'s Store,
    pub(super) subscribed: Vec<Subscribed>,
    pub(super) events: BTreeMap<String, Event>,
    /// What savers have begun to save, by sort key.
    pub(super) sent: BTreeSet<String>,
    /// What savers have acknowledged, by sort key.
    pub(super) acknowledged: BTreeSet<String>,
    pub(super) records: BTreeMap<&'static str, DrainState>,
    /// What was in the ledger when a second drain was told that the holder of the lease would look again.
    pub(super) promised: BTreeMap<&'static str, BTreeSet<String>>,
    /// Whether no process goes on after it has lost its lease: one that does may start what it has planned.
    pub(super) ordered: bool,
    /// The claims that were there at the last look.
    pub(super) claims: BTreeSet<(String, String)>,
    /// Where starts have waited, by subscription and event.
    pub(super) waited: BTreeMap<(String, String), (String, u64)>,
    /// The events that have been late arrivals.
    pub(super) late: BTreeSet<String>,
    /// The starts that operators have dropped, by subscription and event.
    pub(super) dropped: BTreeSet<(String, String)>,
    /// The starts that operators have retried: such a start is made though its subscription is disabled.
    pub(super) by_hand: BTreeSet<(String, String)>,
    /// Whether the workflow type that comes late is there.
    pub(super) registered: bool,
    /// Whether operators retry and drop. Their visits have a deadline: one that is out of time leaves a mark.
    pub(super) operators: bool,
    /// Whether drainers of versions before 0.1.0 take part. They leave a mark instead of looking again.
    pub(super) old_drainers: bool,
    /// Whether a mark may be put only after the lease is released: a request for it may fail.
    pub(super) marks_fail: bool,
}

impl Ledger<'_> {
    pub(super) async fn record(&self, drainer: &str) -> DrainState {
        self.store.control().get(&keys::drain(TENANT, drainer)).await.unwrap().unwrap_or_default()
    }

    /// Where the starts of an event by one drainer are: `done`, `pending`, `dropped`, `parked`, `blocked`, `retrying`.
    async fn settled(&self, drainer: &str, sk: &str, epoch: u64) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for subscribed in self.subscribed.iter().filter(|subscribed| subscribed.drainer == drainer) {
            let key = keys::start_claim(TENANT, sk, drainer, epoch, &subscribed.id);
            let claim: Option<serde_json::Value> = self.store.control().get(&key).await.unwrap();
            if let Some(claim) = claim {
                found.insert(subscribed.id.to_string(), claim["state"].as_str().unwrap().to_owned());
            }
        }
        for start in self.starts(drainer).await {
            if start.event_place != sk || start.epoch != epoch {
                continue;
            }
            let state = match (start.state, &start.block) {
                (ParkedState::Parked, _) => "parked",
                // A drainer of a version before 0.1.0 that has lost its lease may write over the row of a start that waits.
                (ParkedState::Retrying, None) if self.is_member(&start).await => "blocked",
                (ParkedState::Retrying, None) => "retrying",
                (ParkedState::Retrying, Some(block)) => {
                    let member = keys::block_member(TENANT, drainer, block, start.place_in_block.unwrap());
                    let member: Option<serde_json::Value> = self.store.control().get(&member).await.unwrap();
                    let record = keys::block(TENANT, drainer, block);
                    let record: Option<serde_json::Value> = self.store.control().get(&record).await.unwrap();
                    assert!(
                        member.is_some_and(|member| member["startId"] == start.id),
                        "no member: {start:?}"
                    );
                    assert!(record.is_some(), "no block: {start:?}");
                    assert!(self.record(drainer).await.blocks > 0, "not counted: {start:?}");
                    "blocked"
                }
            };
            let entry = found.entry(start.subscription_id.to_string()).or_insert_with(|| state.to_owned());
            // Its claim is written, and its effects are not sent yet.
            if entry == "pending" && state == "blocked" {
                *entry = state.to_owned();
            }
        }
        found
    }

    /// Whether a start waits in a block, whatever its row says.
    async fn is_member(&self, start: &ParkedStart) -> bool {
        let entity = (start.entity_type.as_str(), start.entity_id.as_str());
        for of in [None, Some(entity)] {
            let block = keys::block_name(&start.subscription_id, of);
            let members = keys::block_members(TENANT, &start.drainer_id, &block);
            let members: Vec<serde_json::Value> = self.store.control().all(&members).await.unwrap();
            if members.iter().any(|member| member["startId"] == start.id) {
                return true;
            }
        }
        false
    }

    /// What waits or is parked by one drainer.
    pub(super) async fn starts(&self, drainer: &str) -> Vec<ParkedStart> {
        let starts: Vec<ParkedStart> = self.store.control().all(&keys::parked(TENANT)).await.unwrap();
        starts.into_iter().filter(|start| &*start.drainer_id == drainer).collect()
    }

    /// Nothing overtakes a start that waits: looks at the claims that are new since the last look.
    async fn check_order(&mut self) {
        if !self.ordered {
            return;
        }
        for drainer in DRAINERS {
            let waiting: Vec<ParkedStart> = self
                .starts(drainer)
                .await
                .into_iter()
                .filter(|start| start.state == ParkedState::Retrying && start.block.is_some())
                .collect();
            let epochs = self.record(drainer).await.epochs;
            for subscribed in self.subscribed.iter().filter(|subscribed| subscribed.drainer == drainer) {
                for (sk, event) in &self.events {
                    let key = keys::start_claim(TENANT, sk, drainer, epochs.of(sk), &subscribed.id);
                    if self.claims.contains(&(key.pk.clone(), key.sk.clone())) {
                        continue;
                    }
                    let claim: Option<serde_json::Value> = self.store.control().get(&key).await.unwrap();
                    let Some(claim) = claim else { continue };
                    self.claims.insert((key.pk, key.sk));
                    if claim["state"] == "dropped" {
                        continue;
                    }
                    let own = self.waited.get(&(subscribed.id.to_string(), sk.clone()));
                    for other in &waiting {
                        let behind = other.subscription_id == subscribed.id
                            && other.entity_id == event.entity_id
                            && other.epoch == epochs.of(sk)
                            // What is not wanted any more leaves with those that have their turn.
                            && subscribed.has_always_wanted(&self.events[&other.event_place])
                            && other.event_place != *sk;
                        let before = match own {
                            // In one block by their places there; a late arrival has joined at the end.
                            Some((block, place)) if Some(block) == other.block.as_ref() => {
                                other.place_in_block.unwrap() < *place
                            }
                            Some(_) => false,
                            None => other.event_place < *sk && !self.late.contains(&other.event_place),
                        };
                        if !(behind && before) {
                            continue;
                        }
                        let claim = keys::start_claim(
                            TENANT,
                            &other.event_place,
                            drainer,
                            other.epoch,
                            &other.subscription_id,
                        );
                        let claim: Option<serde_json::Value> =
                            self.store.control().get(&claim).await.unwrap();
                        // What is released together is claimed first and then sent; its rows go last.
                        let waits = match (claim, own) {
                            (None, _) => true,
                            (Some(_), Some(_)) => false,
                            (Some(claim), None) => claim["state"] == "pending",
                        };
                        assert!(
                            !waits,
                            "{sk} was started by {} while {} waits",
                            subscribed.id, other.event_place
                        );
                    }
                }
            }
            for start in waiting {
                let place = (start.block.unwrap(), start.place_in_block.unwrap());
                self.waited.insert((start.subscription_id.to_string(), start.event_place), place);
            }
        }
        let rows = self.store.control().partition(&keys::late_arrivals(TENANT)).send().await.unwrap();
        for row in rows.items() {
            let (_, sk) = keys::parse_late_pointer(row["SK"].as_s().unwrap()).unwrap();
            self.late.insert(sk.to_owned());
        }
    }

    /// What this drainer has not even tried to start for an event.
    async fn untouched(&self, drainer: &str, record: &DrainState, sk: &str) -> Option<String> {
        let event = &self.events[sk];
        let settled = self.settled(drainer, sk, record.epochs.of(sk)).await;
        let mut wanted = self.subscribed.iter().filter(|subscribed| subscribed.drainer == drainer);
        wanted
            .find(|subscribed| {
                subscribed.must_start_or_park(sk, event) && !settled.contains_key(subscribed.id.as_str())
            })
            .map(|subscribed| format!("{} of {sk} by {drainer}", subscribed.id))
    }

    /// Looks at the records after each step.
    pub(super) async fn watch(&mut self) {
        self.check_order().await;
        for drainer in DRAINERS {
            let now = self.record(drainer).await;
            let before = self.records.insert(drainer, now.clone()).unwrap_or_default();
            assert!(now.fence >= before.fence, "the fence of {drainer} fell");
            assert!(now.watermarks.events >= before.watermarks.events, "the watermark of {drainer} fell");
            assert!(
                now.watermarks.late_arrivals >= before.watermarks.late_arrivals,
                "the watermark for late arrivals of {drainer} fell"
            );
            assert!(
                now.late_cursor >= before.late_cursor,
                "the cursor of late arrivals of {drainer} went back"
            );
            if now.rewinds == before.rewinds {
                assert!(
                    now.cursor >= before.cursor,
                    "the cursor of {drainer} went back from {} to {}",
                    before.cursor,
                    now.cursor
                );
            } else {
                self.promised.remove(drainer);
            }
            if now.cursor != before.cursor && now.rewinds == before.rewinds {
                self.check_passed(drainer, &now, &before.cursor).await;
            }
            self.note_fence(drainer, &now).await;
            if before.owner.is_some() && now.owner.is_none() {
                self.check_promise(drainer, &now).await;
            }
        }
    }

    /// No cursor passes unfinished work.
    async fn check_passed(&self, drainer: &str, record: &DrainState, before: &str) {
        for sk in &self.acknowledged {
            let passed = sk.as_str() > before && *sk <= record.cursor;
            if !passed || self.has_pointer(record, sk).await {
                continue;
            }
            let settled = self.settled(drainer, sk, record.epochs.of(sk)).await;
            for subscribed in self.subscribed.iter().filter(|subscribed| subscribed.drainer == drainer) {
                if subscribed.must_start_or_park(sk, &self.events[sk]) {
                    let state = settled.get(subscribed.id.as_str()).map(String::as_str);
                    assert!(
                        matches!(state, Some("done" | "parked" | "blocked" | "dropped")),
                        "the cursor of {drainer} passed {sk}, {state:?} for {}",
                        subscribed.id
                    );
                }
            }
        }
    }

    async fn has_pointer(&self, record: &DrainState, sk: &str) -> bool {
        let rows = self.store.control().partition(&keys::late_arrivals(TENANT)).send().await.unwrap();
        rows.items().iter().any(|row| {
            let key = row["SK"].as_s().unwrap();
            *key > record.late_cursor && keys::parse_late_pointer(key).unwrap().1 == sk
        })
    }

    /// Checks that a holder which releases the lease has handled what was there when it promised to look again.
    async fn check_promise(&mut self, drainer: &'static str, record: &DrainState) {
        let promised = self.promised.remove(drainer).unwrap_or_default();
        // A drain that met trouble, or an event that does not start, has left a mark instead.
        if record.last_error.is_some() || self.operators || self.old_drainers {
            return;
        }
        // A visit of a sweep has a deadline too: one that is out of time leaves its mark before it releases the lease.
        if self.marks_fail || self.is_marked(drainer, record.fence).await {
            return;
        }
        for sk in promised {
            let left = self.untouched(drainer, record, &sk).await;
            assert_eq!(left, None, "the lease was released without a mark though another process had come");
        }
    }

    /// Whether the holder with this fence has left a mark.
    async fn is_marked(&self, drainer: &str, fence: u64) -> bool {
        let mark = self.store.control().get::<serde_json::Value>(&keys::dirty_mark(TENANT, drainer)).await;
        mark.unwrap().is_some_and(|mark| mark["fence"].as_u64() >= Some(fence))
    }
}

/// Everything has come to rest: nothing lost, nothing twice, nothing pending.
pub(super) async fn check_rest(ledger: &Ledger<'_>, messages: &BTreeSet<String>) {
    let store = ledger.store;
    assert_eq!(ledger.acknowledged.len(), ledger.events.len());
    let controls: Vec<Item> = scan(&store.clients, &store.names.control_table).await;
    let mut claims: BTreeMap<(String, String), u64> = BTreeMap::new();
    for row in &controls {
        let (pk, sk) = (row["PK"].as_s().unwrap(), row["SK"].as_s().unwrap());
        if pk.starts_with("CLAIM#") {
            let claim: serde_json::Value = read(row.clone()).unwrap();
            let ended = claim["state"] == "done" || claim["state"] == "dropped";
            assert!(ended, "{pk} {sk}");
            if claim["state"] == "dropped" {
                continue;
            }
        }
        // An operator that dies may leave a mark: it expires.
        let of_block = pk.starts_with("BLOCK") && !sk.starts_with("ASKED#");
        assert!(!of_block, "something is left of a block: {pk} {sk}");
        if pk.starts_with("PARKED#") {
            let start: ParkedStart = read(row.clone()).unwrap();
            // A drainer of a version before 0.1.0 that met trouble forgot what it stood before: the row of a start that is
            // not wanted any more, or is made, stays until an operator drops it.
            let forgotten = ledger.old_drainers && start.block.is_none();
            assert!(start.state == ParkedState::Parked || forgotten, "nothing tries it any more: {start:?}");
        }
        if let Some(rest) = sk.strip_prefix("START#") {
            let subscription = rest.rsplit('#').next().unwrap().to_owned();
            let event = pk.rsplit('#').next().unwrap().to_owned();
            *claims.entry((event, subscription)).or_default() += 1;
        }
        assert!(!keys::is_dirty_partition(pk), "a mark is left: {sk}");
    }
    // Each claim has one task, and each task one claim.
    let mut tasks: BTreeMap<(String, String), u64> = BTreeMap::new();
    for row in rows_of(&store.clients, &store.names.events_table, TENANT).await {
        let event: Event = serde_dynamo::aws_sdk_dynamodb_1::from_item(row).unwrap();
        if &*event.event_type == "Task Pending" {
            let cause = event.caused_by.unwrap().rsplit(':').next().unwrap().to_owned();
            let subscription = event.context.via.last().unwrap().clone();
            *tasks.entry((cause, subscription)).or_default() += 1;
            assert!(messages.contains(event.entity_id.as_str()), "a task without its message");
        }
    }
    assert_eq!(claims, tasks, "claims and tasks");
    // Everything that is wanted was started, or parked, in the epoch that it ended up in.
    for subscribed in &ledger.subscribed {
        let record = ledger.record(subscribed.drainer).await;
        for (sk, event) in &ledger.events {
            let wanted = subscribed.had.iter().any(|filter| subscribed.wants.takes(*filter, event));
            if subscribed.must_start_or_park(sk, event) || !wanted {
                let settled = ledger.settled(subscribed.drainer, sk, record.epochs.of(sk)).await;
                let state = settled.get(subscribed.id.as_str()).map(String::as_str);
                let dropped = ledger.dropped.contains(&(subscribed.id.to_string(), sk.clone()));
                let fits = match state {
                    state if !wanted => state.is_none(),
                    Some("done") => {
                        !subscribed.fails(event) && (subscribed.wants != Wants::Later || ledger.registered)
                    }
                    // A type that came after the attempts were over is not what parks any more.
                    Some("parked") => {
                        subscribed.fails(event) || (subscribed.wants == Wants::Later && !subscribed.halts)
                    }
                    Some("dropped") => dropped,
                    _ => false,
                };
                assert!(fits, "{state:?}: {sk} for {subscribed:?}");
            }
        }
    }
}
