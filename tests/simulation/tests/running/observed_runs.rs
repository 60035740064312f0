//! What must hold after every step of a history, as far as the logs and records of its runs show it.

use std::collections::BTreeMap;

use ledgerline_event::{Millis, Name, RunEventType, RunHistory, RunState};
use ledgerline_runs::LogEntry;
use ledgerline_simulation::Store;
use ledgerline_stage::Stage;
use ledgerline_store::keys;
use ledgerline_test_support::{at, name};
use serde_json::Value;

use super::{LEASE_MS, SKEW_MS, TENANT, workflow_script::Begun};

/// What is known of one run.
pub(super) struct ObservedRun {
    pub(super) run_id: Name,
    pub(super) entries: Vec<LogEntry>,
    /// The steps of the history at which they came.
    pub(super) came_at: Vec<u64>,
    pub(super) history: RunHistory,
    pub(super) record: Value,
    /// The steps that have ended, by name.
    ended: BTreeMap<String, Ended>,
}

/// The end of a step.
struct Ended {
    /// When in the history.
    at: u64,
    /// By the visit that executed it, if the log says so.
    by: Option<u64>,
}

/// A lease that a visit has, or had.
struct Lease {
    visit: u64,
    until: Millis,
}

/// All runs of a history as they are after its last step.
pub(super) struct ObservedRuns<'s> {
    store: &'s Store,
    stage: Stage,
    pub(super) runs: BTreeMap<String, ObservedRun>,
    leases: BTreeMap<String, Lease>,
    /// When visits began.
    visits: BTreeMap<u64, u64>,
}

impl ObservedRun {
    fn new(run_id: &str) -> Self {
        Self {
            run_id: name(run_id),
            entries: Vec::new(),
            came_at: Vec::new(),
            history: RunHistory::new(),
            record: Value::Null,
            ended: BTreeMap::new(),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.history.state().is_some_and(RunState::is_terminal)
    }

    pub(super) fn is_external(&self) -> bool {
        self.record["external"] == true
    }

    fn add(&mut self, entry: LogEntry, step: u64) {
        let run_id = &self.run_id;
        assert_eq!(entry.sequence, self.entries.len() as u64 + 1, "a hole in the log of {run_id}");
        assert!(!entry.events.is_empty(), "an entry of {run_id} without events");
        for event in &entry.events {
            let last = self.history.last_at();
            assert!(last.is_none_or(|last| last <= event.timestamp), "{run_id} goes back in time");
            if let Err(illegal) = self.history.apply(event) {
                panic!("the log of {run_id} is not legal at {}: {illegal}", entry.sequence);
            }
            let by = match event.event_type {
                RunEventType::StepCompleted => event.event_data["result"]["by"].as_u64(),
                RunEventType::StepFailed => {
                    event.event_data.get("errorCode").and_then(Value::as_str).and_then(|by| by.parse().ok())
                }
                _ => continue,
            };
            let name = self.history.steps().get(&event.correlation_id).unwrap().name.clone();
            self.ended.insert(name, Ended { at: step, by });
        }
        self.entries.push(entry);
        self.came_at.push(step);
    }
}

impl<'s> ObservedRuns<'s> {
    pub(super) fn new(store: &'s Store, stage: Stage) -> Self {
        Self { store, stage, runs: BTreeMap::new(), leases: BTreeMap::new(), visits: BTreeMap::new() }
    }

    pub(super) fn visit_begins(&mut self, visit: u64, step: u64) {
        self.visits.insert(visit, step);
    }

    /// Looks at every run after a step in which a request of `actor` was applied.
    pub(super) async fn observe(&mut self, step: u64, actor: &str) {
        // Each begins there.
        let list = keys::runs_in(TENANT, RunState::Pending.as_str());
        let (pending, _) = self.store.control().listed(&list, None, 100).await.unwrap();
        for row in pending {
            let (_, run_id) = keys::parse_run_partition(row["PK"].as_s().unwrap()).unwrap();
            self.runs.entry(run_id.to_owned()).or_insert_with(|| ObservedRun::new(run_id));
        }
        let visit = actor.strip_prefix("visit-").and_then(|visit| visit.parse::<u64>().ok());
        for known in self.runs.values_mut() {
            let key = keys::run(TENANT, &known.run_id);
            let record: Value = self.store.control().get(&key).await.unwrap().unwrap_or_default();
            let news =
                self.stage.runs.logs.log_entries(TENANT, &known.run_id, known.entries.len() as u64).await;
            for entry in news.unwrap() {
                known.add(entry, step);
            }
            check_lease(&mut self.leases, known, &record, visit);
            known.record = record;
            known.check_record();
        }
    }

    /// Attempts that began in this step: none of a step whose end its visitor knew, none without a lease.
    pub(super) fn check_begun(&self, step: u64, begun: &[Begun], now: Millis) {
        for begun in begun {
            let Begun { run_id, step: name, visit } = begun;
            let Some(known) = self.runs.get(run_id) else { panic!("{run_id} runs and is not there") };
            // What began in this step may also have ended in it.
            if let Some(ended) = known.ended.get(name).filter(|ended| ended.at < step) {
                assert_ne!(ended.by, Some(*visit), "{name} of {run_id} was recorded and began again");
                let began = self.visits[visit];
                assert!(
                    ended.at >= began,
                    "{name} of {run_id} was recorded before visit {visit}, which began it again at {step}"
                );
            }
            // Some hear late that they have the run.
            let Some((owner, lease)) = self.leases.iter().find(|(_, lease)| lease.visit == *visit) else {
                panic!("visit {visit} executes {name} of {run_id} and never had it");
            };
            let ran_out = lease.until <= now.plus(SKEW_MS);
            assert!(
                ran_out || known.record["leaseOwner"].as_str() == Some(owner),
                "visit {visit} executes {name} of {run_id}, which it has as {owner} until {} and {} has now, {now}",
                lease.until,
                known.record["leaseOwner"]
            );
        }
    }
}

impl ObservedRun {
    /// The record says what the log says, and a run whose log is not emitted to its end is due.
    fn check_record(&self) {
        let (run_id, record) = (&self.run_id, &self.record);
        let Some(state) = self.history.state() else { panic!("{run_id} has no log") };
        assert_eq!(record["state"], state.as_str(), "the record of {run_id}");
        assert_eq!(record["listIn"], keys::runs_in(TENANT, state.as_str()), "the list of {run_id}");
        assert!(record["emitted"].as_u64() <= Some(self.entries.len() as u64), "{run_id} tells what is not");
        assert_eq!(record["leaseOwner"].is_null(), record["leaseUntil"].is_null(), "the lease of {run_id}");
        assert_eq!(record["dueAt"].is_null(), record["dueShard"].is_null(), "the due time of {run_id}");
        if record["dueAt"].is_null() {
            // An external run has no due time while its driver holds it.
            let is_free = record["leaseOwner"].is_null() || self.is_external();
            assert!(is_free, "{run_id} is held, and is not due when the lease ends");
            let told = record["emitted"].as_u64() == Some(self.entries.len() as u64);
            assert!(told, "{run_id} is emitted up to {}, and is not due", record["emitted"]);
        }
    }
}

/// A lease is acquired only after the one before has ended, and released only by its holder.
fn check_lease(
    leases: &mut BTreeMap<String, Lease>,
    known: &ObservedRun,
    record: &Value,
    visit: Option<u64>,
) {
    let run_id = &known.run_id;
    let (before, after) = (known.record["leaseOwner"].as_str(), record["leaseOwner"].as_str());
    let until = record["leaseUntil"].as_u64().map(at);
    if let (Some(owner), Some(until)) = (after, until) {
        if before != after {
            let Some(visit) = visit else { panic!("{run_id} was acquired, and not by a runner") };
            let taken_at = until.minus(LEASE_MS);
            if let Some(held) = before.and_then(|before| leases.get(before)) {
                assert!(held.until <= taken_at, "{run_id} was taken by visit {visit} from {}", held.visit);
            }
            leases.insert(owner.to_owned(), Lease { visit, until });
        } else if let Some(lease) = leases.get_mut(owner) {
            lease.until = until;
        }
    }
    if let (Some(owner), None) = (before, after) {
        let holder = leases.get(owner).map(|lease| lease.visit);
        assert_eq!(visit, holder, "{run_id} was released by another than its holder");
    }
}
