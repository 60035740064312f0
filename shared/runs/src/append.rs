//! Appending to a log: entry n + 1 if it is absent, with everything that its events bring about.

use ledgerline_event::{LogDraft, Name, RunState};
use ledgerline_outbox::ComponentError;
use ledgerline_store::{Appender, LogGuard, PutLogEntry, RefusedParts, RunWrite, StoreError};

use super::{
    LogEntry, RunLease, RunLog, derived_records::ending_change, end_run::is_last, entry_plan::EntryPlan,
};
use crate::RunLogs;

/// What became of an append.
#[derive(Debug)]
pub enum Appended {
    /// The events are in the log. They may be fewer than were asked for: one entry holds only so much.
    Done(LogEntry),
    /// Another process has appended meanwhile: catch up first.
    StaleLog,
    /// The token of this hook is taken by another.
    TokenTaken(Name),
    /// Another runner holds the run.
    Lost,
    /// A guard of the caller does not hold: an event is consumed already, a sender has notified the run, or the
    /// lease is lost.
    GuardRefused,
}

impl RunLogs {
    /// Appends events to a log that is read up to its end. A runner passes the `lease` that it holds on the
    /// run. Without a lease the append wakes the run, so that a runner that holds it looks again before it
    /// releases it.
    ///
    /// With a lease, an entry that changes the log alone is put without a check of the lease: while a step is
    /// not over, another runner that holds the run by now cannot release it without an entry in the same
    /// place. An entry with other writes checks the lease: one runner may find a timer over that the holder
    /// does not, and if the holder releases the run until that time, no other runner may delete the timer.
    pub async fn append(
        &self,
        log: &mut RunLog,
        drafts: &[LogDraft],
        lease: Option<&RunLease>,
    ) -> Result<Appended, ComponentError> {
        self.append_with(log, drafts, lease, &[]).await
    }

    /// The same on condition of `guards`, which are part of the transaction.
    pub async fn append_with(
        &self,
        log: &mut RunLog,
        drafts: &[LogDraft],
        lease: Option<&RunLease>,
        guards: &[LogGuard],
    ) -> Result<Appended, ComponentError> {
        let stamp = || (self.emitter.now(), self.emitter.new_event_id());
        let mut plan = EntryPlan::new(log, drafts, stamp)?;
        log.diverged = true;
        let nonce = self.emitter.new_event_id();
        let last = drafts.last().filter(|last| plan.events.len() < drafts.len() && is_last(last.event_type));
        if let Some(last) = last {
            let state = log.history.state().unwrap_or(RunState::Running);
            plan.change = Some(ending_change(plan.change, state, self.ending(last, &nonce).await?));
        }
        let sequence = log.sequence + 1;
        // A sender that has notified the run meanwhile was told that its event is accepted: the wait times out only if
        // there was no such sender.
        let expected_wake_count =
            lease.filter(|_| plan.ends_wait_without_event(log)).map(|lease| lease.record.wake_count);
        let row = self.entry_row(&nonce, &plan.events).await?;
        let mut write = self.entries.entry(&log.tenant, &log.run_id, sequence, &row);
        for derived in &plan.derived {
            derived.add_to(&mut write)?;
        }
        let only_log =
            lease.is_some() && plan.derived.is_empty() && plan.change.is_none() && guards.is_empty();
        if !only_log {
            write.change_run(RunWrite {
                appender: match lease {
                    Some(lease) => Appender::LeaseOwner(lease.owner()),
                    None => Appender::Waker(self.emitter.now()),
                },
                change: plan.change.as_ref(),
                external: log.driver.is_external(),
                expected_wake_count,
            })?;
        }
        for guard in guards {
            write.guard(guard)?;
        }
        match write.send().await? {
            PutLogEntry::Done => {
                log.diverged = false;
                log.sequence = sequence;
                if plan.change.is_some_and(|change| change.ends()) {
                    self.completions.notify(&log.tenant, &log.run_id);
                }
                Ok(Appended::Done(LogEntry { sequence, events: plan.events }))
            }
            PutLogEntry::PlaceTaken => Ok(Appended::StaleLog),
            PutLogEntry::Refused(refused) => {
                let asked = Conditions {
                    lease: lease.is_some(),
                    others: !guards.is_empty() || expected_wake_count.is_some(),
                };
                Ok(why_refused(refused, asked)?)
            }
        }
    }
}

/// On what conditions an entry was appended.
#[derive(Clone, Copy)]
struct Conditions {
    /// The runner holds the lease.
    lease: bool,
    /// Conditions of the caller beside the lease.
    others: bool,
}

/// Why an entry was refused that was appended on these conditions.
fn why_refused(refused: RefusedParts, conditions: Conditions) -> Result<Appended, StoreError> {
    match refused {
        RefusedParts { guard: true, .. } => Ok(Appended::GuardRefused),
        // The lease is lost, or a sender has notified the run: the record tells which.
        RefusedParts { run: true, .. } if conditions.lease && conditions.others => Ok(Appended::GuardRefused),
        RefusedParts { run: true, .. } if conditions.lease => Ok(Appended::Lost),
        RefusedParts { hook: Some(hook), .. } => Ok(Appended::TokenTaken(hook)),
        RefusedParts { .. } => Err(StoreError::unreadable("appending to a log", "the run has no record")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_run_record_means_a_lost_lease_only_to_its_holder() {
        let hook = || Some(Name::new("id", "hook-1").unwrap());
        let refused = |guard, run, hook| RefusedParts { guard, run, hook };
        let why = |refused, conditions| why_refused(refused, conditions).ok();
        let none = Conditions { lease: false, others: false };
        let lease = Conditions { lease: true, ..none };
        let lease_and_guard = Conditions { lease: true, others: true };
        assert!(matches!(why(refused(true, true, hook()), lease_and_guard), Some(Appended::GuardRefused)));
        assert!(matches!(why(refused(false, true, hook()), lease), Some(Appended::Lost)));
        assert!(matches!(why(refused(false, true, None), lease_and_guard), Some(Appended::GuardRefused)));
        assert!(matches!(why(refused(false, true, hook()), none), Some(Appended::TokenTaken(_))));
        assert!(matches!(why(refused(false, false, hook()), lease), Some(Appended::TokenTaken(_))));
        assert!(why(refused(false, true, None), none).is_none());
    }
}
