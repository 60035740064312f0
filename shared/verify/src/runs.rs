//! Runs: whether the ledger has every event that their logs hold and have emitted, and whether their records
//! agree.
//!
//! The log decides, and its events have their ids and times from the beginning. So each can be looked for in
//! its place, and sent once more if it is not there. The ledger is read before the logs: an event that it has
//! and that no log has belongs to no run.

use std::collections::BTreeSet;

use futures::{FutureExt, StreamExt, stream};
use ledgerline_event::{Event, LogEvent, Millis, Name, RunState, keys as places, match_index::fnv1a};
use ledgerline_store::{
    ListedKeys, Repair, RunRepair, StoreError,
    keys::{self, ControlKey},
};

use crate::Verify;
use crate::{
    VerifyProgress,
    compare::{MAX_CONCURRENT, Progress, RECENT_MS},
    difference::{Difference, DifferenceKind, Mode, Standing},
    fold::Folded,
};
use ledgerline_outbox::ComponentError;
use ledgerline_runs::{RunLog, RunRecord};

/// Runs of one read of a list.
const PAGE: i32 = 1_000;
/// The runner's sweep enqueues due runs every minute. A run that is due for longer than this was missed.
const SWEPT_MS: u64 = 10 * 60_000;

/// What the ledger tells of a run, in brief: the number of its events and the sum of what their ids hash to. What is
/// kept is in proportion to runs, not to events.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RunFold {
    events: u64,
    sum: u64,
}

impl RunFold {
    fn add(&mut self, event_id: &str) {
        self.events += 1;
        self.sum = self.sum.wrapping_add(fnv1a(event_id.as_bytes()));
    }

    fn of<'a>(events: impl IntoIterator<Item = &'a LogEvent>) -> Self {
        let mut fold = Self::default();
        events.into_iter().for_each(|event| fold.add(&event.event_id));
        fold
    }
}

/// The run whose log an event is from, if it is from one.
pub(crate) fn run_of(event: &Event) -> Option<&str> {
    let of_run = matches!(event.entity_type.as_str(), "RUN" | "STEP" | "HOOK" | "WAIT");
    event.workflow_run_id.as_deref().filter(|_| of_run)
}

impl Folded {
    pub(crate) fn add_run_event(&mut self, run_id: &str, event_id: &str) {
        self.runs.entry(run_id.to_owned()).or_default().add(event_id);
    }
}

impl Verify {
    /// Compares every run of a tenant. Returns how many there are, and what differs.
    pub(crate) async fn compare_runs(
        &self,
        tenant: &Name,
        folded: &Folded,
        now: Millis,
        mode: Mode,
        progress: Progress<'_>,
    ) -> Result<(u64, Vec<Difference>), ComponentError> {
        let ids = self.listed_runs(tenant).await?;
        let (mut differences, mut compared) = (Vec::new(), 0);
        let reads = ids.iter().map(|id| self.compare_run(tenant, id, folded, now, mode).boxed());
        let mut reads = stream::iter(reads).buffer_unordered(MAX_CONCURRENT);
        while let Some(read) = reads.next().await {
            differences.extend(read?);
            compared += 1;
            progress(VerifyProgress::Runs { compared, of: ids.len() as u64 });
        }
        let known: BTreeSet<&str> = ids.iter().map(Name::as_str).collect();
        for (run_id, fold) in folded.runs.iter().filter(|(id, _)| !known.contains(id.as_str())) {
            if self.rows.get::<RunRecord>(&keys::run(tenant, run_id)).await?.is_none() {
                let detail = format!("the ledger tells {} events of it, and there is no log", fold.events);
                differences.push(Difference::of_run(
                    run_id,
                    DifferenceKind::RunMissing,
                    Standing::Fault,
                    detail,
                ));
            }
        }
        Ok((ids.len() as u64, differences))
    }

    async fn listed_runs(&self, tenant: &Name) -> Result<Vec<Name>, ComponentError> {
        let mut ids = BTreeSet::new();
        for state in RunState::ALL {
            let (list, mut before) = (keys::runs_in(tenant, state.as_str()), None);
            loop {
                let ListedKeys { keys, next } = self.rows.listed(&list, before, PAGE).await?;
                let listed = keys.iter().filter_map(|key| keys::parse_run_partition(&key.pk));
                ids.extend(listed.filter_map(|(_, id)| Name::stored("runId", id).ok()));
                before = next;
                if before.is_none() {
                    break;
                }
            }
        }
        Ok(ids.into_iter().collect())
    }

    async fn compare_run(
        &self,
        tenant: &Name,
        run_id: &Name,
        folded: &Folded,
        now: Millis,
        mode: Mode,
    ) -> Result<Vec<Difference>, ComponentError> {
        let key = keys::run(tenant, run_id);
        let Some(run) = self.rows.get::<RunRecord>(&key).await? else { return Ok(Vec::new()) };
        let (log, entries) = self.runs.logs.read_log(&run, tenant).await?;
        let mut differences = Vec::new();
        if let Some(detail) = unlike(&run, &log) {
            // The run may have moved between the two reads: its state is read once more.
            let again = self.rows.get::<RunRecord>(&key).await?;
            let moved = again.is_none_or(|again| again.state != run.state);
            let mut difference = Difference::of_run(
                run_id,
                DifferenceKind::RunRecordDifferent,
                Standing::fault_unless(moved),
                detail,
            );
            if difference.is_rebuilt_in(mode) {
                difference.rebuilt(self.rebuild_record(tenant, &key, &run, &log).await?);
            }
            differences.push(difference);
        }
        let all = RunFold::of(entries.iter().flat_map(|entry| &entry.events));
        let in_ledger = folded.runs.get(run_id.as_str()).copied().unwrap_or_default();
        if in_ledger != all {
            let emitted = entries.iter().filter(|entry| entry.sequence <= run.emitted());
            let emitted: Vec<&LogEvent> = emitted.flat_map(|entry| &entry.events).collect();
            let missing = self.missing(tenant, &emitted, folded, now).await?;
            if !missing.is_empty() {
                let first = &missing[0];
                let detail = format!(
                    "{} of {} events are not in the ledger, the first of them {} {}",
                    missing.len(),
                    emitted.len(),
                    first.event_type.as_str(),
                    first.event_id
                );
                let mut difference =
                    Difference::of_run(run_id, DifferenceKind::RunEventsMissing, Standing::Fault, detail);
                if difference.is_rebuilt_in(mode) {
                    self.runs.emit_log(tenant, &run, &missing).await?;
                    difference.rebuilt(Repair::Done);
                }
                differences.push(difference);
            }
        }
        if in_ledger.events > all.events {
            let detail =
                format!("the ledger tells {} events of it, and its log has {}", in_ledger.events, all.events);
            differences.push(Difference::of_run(
                run_id,
                DifferenceKind::OrphanRunEvents,
                Standing::Fault,
                detail,
            ));
        }
        if let Some(due_at) = run.due_at.filter(|due_at| due_at.plus(SWEPT_MS) < now) {
            let detail = format!("should have been looked after at {}", due_at.to_rfc3339());
            differences.push(Difference::of_run(run_id, DifferenceKind::RunOverdue, Standing::Fault, detail));
        }
        Ok(differences)
    }

    /// Events that were emitted some time ago, and that the ledger does not have.
    async fn missing(
        &self,
        tenant: &Name,
        emitted: &[&LogEvent],
        folded: &Folded,
        now: Millis,
    ) -> Result<Vec<LogEvent>, ComponentError> {
        let expected = emitted.iter().filter(|event| {
            event.timestamp.plus(RECENT_MS) < now && !folded.may_have_lost(event.timestamp, None, now)
        });
        let reads = expected.map(|event| {
            async move {
                let place = places::place(event.timestamp, &event.event_id);
                let there = self.timeline.stored_at(tenant, &place).await?;
                Ok::<_, StoreError>(there.is_none().then(|| (*event).clone()))
            }
            .boxed()
        });
        let reads: Vec<_> = reads.collect();
        let mut reads = stream::iter(reads).buffered(MAX_CONCURRENT);
        let mut missing = Vec::new();
        while let Some(read) = reads.next().await {
            missing.extend(read?);
        }
        Ok(missing)
    }

    /// Makes the record say what the log says.
    async fn rebuild_record(
        &self,
        tenant: &Name,
        key: &ControlKey,
        run: &RunRecord,
        log: &RunLog,
    ) -> Result<Repair, ComponentError> {
        let Some(logged) = log.history.run() else { return Ok(Repair::ChangedMeanwhile) };
        let state = logged.state.as_str();
        let repair = RunRepair {
            run: key,
            state_before: run.state.as_str(),
            wakes: run.wake_count(),
            state,
            list: &keys::runs_in(tenant, state),
            started_at: logged.started_at,
            ended_at: logged.ended_at,
            workflow_version: logged.workflow_version.as_deref(),
        };
        Ok(self.repairs.correct_run(repair).await?)
    }
}

/// How a record differs from its log, in words.
fn unlike(run: &RunRecord, log: &RunLog) -> Option<String> {
    let Some(logged) = log.history.run() else { return Some("it has no log".to_owned()) };
    let list = keys::runs_in(&log.tenant, logged.state.as_str());
    if run.state != logged.state {
        return Some(format!("its record says {}, its log {}", run.state, logged.state));
    }
    if run.list_in.as_deref() != Some(&list) {
        let listed = run.list_in.as_deref().unwrap_or("no list");
        return Some(format!("it is in {listed}, and should be in {list}"));
    }
    let same = run.started_at == logged.started_at
        && run.ended_at == logged.ended_at
        && run.workflow_version == logged.workflow_version;
    (!same).then(|| "its record and its log have other times, or another version of its workflow".to_owned())
}
