//! What stands in the table beside the logs of runs is what the logs say, at every moment: it is written with them.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{HookState, Millis, WaitFor, WaitOutcome, match_index::index_leaf};
use ledgerline_simulation::Store;
use ledgerline_store::{
    keys::{self, ControlKey},
    read,
};
use ledgerline_test_support::scan;
use serde_json::Value;

use super::{TENANT, observed_runs::ObservedRun};

/// The table, by key.
pub(super) struct DerivedRows(BTreeMap<(String, String), Value>);

impl DerivedRows {
    pub(super) async fn read(store: &Store) -> Self {
        let rows = scan(&store.clients, &store.names.control_table).await.into_iter().map(|row| {
            let key = (row["PK"].as_s().unwrap().clone(), row["SK"].as_s().unwrap().clone());
            (key, read(row).unwrap())
        });
        Self(rows.collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str, &Value)> {
        self.0.iter().map(|((pk, sk), row)| (pk.as_str(), sk.as_str(), row))
    }

    /// Waits, timers, hooks and what was consumed.
    pub(super) fn check(&self, runs: &BTreeMap<String, ObservedRun>) {
        self.check_due(runs);
        self.check_consumed(runs);
        self.check_hooks(runs);
    }

    fn check_due(&self, runs: &BTreeMap<String, ObservedRun>) {
        let mut expected: BTreeMap<(String, String), Option<Millis>> = BTreeMap::new();
        for (run_id, known) in runs {
            for wait in known.history.open_waits() {
                let ControlKey { pk, sk } = match &wait.target {
                    WaitFor::Event { event_name, match_criteria, .. } => {
                        keys::waiter(TENANT, event_name, index_leaf(match_criteria), run_id, &wait.wait_id)
                    }
                    WaitFor::Task { task, .. } => keys::run_awaits(TENANT, run_id, "TASK", task),
                    WaitFor::Job { job, .. } => keys::run_awaits(TENANT, run_id, "JOB", job),
                    WaitFor::Sleep { .. } | WaitFor::Unknown => {
                        keys::run_timer(TENANT, run_id, &wait.wait_id)
                    }
                };
                expected.insert((pk, sk), wait.target.due());
            }
            for step in known.history.open_steps().filter(|_| !known.is_external()) {
                if let Some(due) = step.retry_after {
                    let ControlKey { pk, sk } = keys::run_timer(TENANT, run_id, &step.step_id);
                    expected.insert((pk, sk), Some(due));
                }
            }
        }
        let there = self.0.iter().filter(|((pk, sk), _)| {
            pk.starts_with("WAITERS#")
                || keys::parse_run_partition(pk).is_some()
                    && (sk.starts_with("TIMER#") || sk.starts_with("AWAITS#"))
        });
        let there: BTreeMap<(String, String), Option<Millis>> = there
            .map(|(key, row)| {
                let due = row["dueAt"].as_u64().map(ledgerline_test_support::at);
                assert_eq!(due.is_some(), !row["dueShard"].is_null(), "{key:?}");
                (key.clone(), due)
            })
            .collect();
        assert_eq!(there, expected, "waits and timers in the table, and in the logs");
    }

    fn check_consumed(&self, runs: &BTreeMap<String, ObservedRun>) {
        let mut expected = BTreeSet::new();
        for (run_id, known) in runs {
            let taken = known.history.waits().iter().filter(|wait| wait.outcome == Some(WaitOutcome::Event));
            for wait in taken.filter(|wait| wait.handed_over_from.is_none()) {
                let event_id = wait.event_id.clone().unwrap();
                let ControlKey { pk, sk } = keys::consumed(TENANT, &event_id, run_id);
                assert!(expected.insert((pk, sk)), "{run_id} has had {event_id} twice");
            }
        }
        let there: BTreeSet<(String, String)> =
            self.0.keys().filter(|(pk, _)| pk.starts_with("CONSUMED#")).cloned().collect();
        assert_eq!(there, expected, "consumed by the table, and by the logs");
    }

    fn check_hooks(&self, runs: &BTreeMap<String, ObservedRun>) {
        let rows = self.iter().filter(|(pk, sk, _)| pk.starts_with("HOOK#") && *sk == "HOOK");
        let rows: BTreeMap<&str, (&str, &Value)> =
            rows.map(|(pk, _, row)| (row["hookId"].as_str().unwrap(), (pk, row))).collect();
        for (run_id, known) in runs {
            for hook in known.history.hooks() {
                let there = rows.get(hook.hook_id.as_str());
                let is_disposed = there.map(|(_, row)| row["disposed"] == true);
                match hook.state {
                    HookState::Active => assert_eq!(is_disposed, Some(false), "an active hook of {run_id}"),
                    HookState::Conflicted => {
                        assert_eq!(is_disposed, None, "a hook of {run_id} without a token")
                    }
                    // Another hook may have its token since.
                    HookState::Disposed => {
                        let named = keys::named_hook(TENANT, &hook.token).pk;
                        let is_taken = || rows.values().any(|(pk, _)| *pk == named);
                        assert!(
                            is_disposed == Some(true) || is_disposed.is_none() && is_taken(),
                            "a disposed hook of {run_id}: {is_disposed:?}"
                        );
                    }
                }
            }
        }
    }
}
