//! The sweep of runs: it finds runs that no runner has visited in time, and timers that are due.

use std::{collections::HashSet, time::Duration};

use futures::{FutureExt, StreamExt, stream};
use ledgerline_event::{LogDraft, Millis, Name, RunEntity, RunEventType};
use ledgerline_store::{
    Conditional, LogGuard,
    keys::{self, ControlKey},
};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::{
    LookPositions, RUN_LEASE_MS, RunRecord,
    wake::{ExternalAppend, Woken, run_message},
};
use crate::{RunDriver, RunSweep};
use ledgerline_outbox::{ComponentError, Message, Sweeper};
use ledgerline_store::sweep_cursor::{Part, SweepCursor, parts};

/// How far a sweep looks ahead: until the next one, and a little more. What is due by then gets a message with a delay.
const AHEAD_MS: u64 = 150_000;
/// The longest pause between two messages for a run that no runner visits.
const PAUSE_MAX_MS: u64 = 60 * 60_000;
/// A message that is later than this counts as lost.
const LATE_MS: u64 = 10_000;

/// How long a sweep lasts at most, unless its caller says so.
const BUDGET: Duration = Duration::from_secs(45);
/// How often a sweep stores its position.
const STORE_INTERVAL: Duration = Duration::from_secs(5);
/// How many records are read at once.
const PAGE: i32 = 50;
/// How many records are handled at the same time.
const AT_ONCE: usize = 16;

/// What a sweep did for one record.
#[derive(Default)]
struct RecordSwept {
    sent_again: bool,
    timer: bool,
    /// A message for the runners: the sweep sends the messages of a page together.
    message: Option<Message>,
}

/// What a sweep of runs did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RunsSwept {
    /// Runs that were sent to the runners again.
    pub sent_again: usize,
    /// Timers that were handled.
    pub timers: usize,
}

impl RunSweep {
    /// Handles runs and timers whose time has come, for at most `BUDGET`.
    pub async fn sweep_runs(&self) -> Result<RunsSwept, ComponentError> {
        self.sweep_runs_until(Instant::now() + BUDGET).await
    }

    /// The same until `deadline`. Some are handled even if the deadline has passed.
    pub async fn sweep_runs_until(&self, deadline: Instant) -> Result<RunsSwept, ComponentError> {
        let mut stored: Option<SweepCursor> = self.due.cursor().await?;
        let mut swept = RunsSwept::default();
        let mut failure = None;
        let mut stopped = None;
        let mut stored_at = Instant::now();
        for (number, part) in parts(stored, self.emitter.now().plus(AHEAD_MS)).into_iter().enumerate() {
            let here = SweepCursor { shard: part.shard, due_at: part.from };
            if number > 0 && Instant::now() >= deadline {
                stopped = Some(here);
                break;
            }
            // If this sweep is killed in this part, the next one begins with it.
            if stored_at.elapsed() >= STORE_INTERVAL {
                self.store_cursor(&mut stored, Some(here)).await?;
                stored_at = Instant::now();
            }
            match self.sweep_part(part, deadline, &mut swept).await {
                Ok(None) => {}
                Ok(Some(at)) => {
                    stopped = Some(SweepCursor { shard: part.shard, due_at: at });
                    break;
                }
                // One shard that cannot be read must not keep the others from their turn.
                Err(error) => {
                    tracing::error!(shard = part.shard, %error, "could not sweep a shard of runs");
                    failure = Some(error);
                }
            }
        }
        self.store_cursor(&mut stored, stopped).await?;
        match failure {
            Some(error) => Err(error),
            None => {
                Sweeper::Runs.note_end(&self.outbox).await;
                Ok(swept)
            }
        }
    }

    /// Stores where the next sweep continues, unless that is stored already.
    async fn store_cursor(
        &self,
        stored: &mut Option<SweepCursor>,
        cursor: Option<SweepCursor>,
    ) -> Result<(), ComponentError> {
        if *stored != cursor {
            self.due.set_cursor(cursor).await?;
        }
        *stored = cursor;
        Ok(())
    }

    /// Sweeps a part, page by page. Returns where it stopped, if there was no time for all of it.
    async fn sweep_part(
        &self,
        part: Part,
        deadline: Instant,
        swept: &mut RunsSwept,
    ) -> Result<Option<Millis>, ComponentError> {
        let (now, mut from) = (self.emitter.now(), part.from);
        // Many records may be due at the same millisecond, and a page ends anywhere.
        let mut seen: HashSet<ControlKey> = HashSet::new();
        let mut limit = PAGE;
        loop {
            let page = self.due.due(Part { from, ..part }, limit).await?;
            let is_last = page.len() < usize::try_from(limit).unwrap_or(usize::MAX);
            let end = page.last().map_or(part.until, |(_, at)| *at);
            let new: Vec<&(ControlKey, Millis)> =
                page.iter().filter(|(key, _)| !seen.contains(key)).collect();
            let progressed = !new.is_empty();
            // Only timers are handled ahead of their time.
            let new = new.into_iter().filter(|(key, at)| key.sk != keys::RUN || *at <= now);
            let new: Vec<ControlKey> = new.map(|(key, _)| key.clone()).collect();
            let looks: Vec<_> =
                new.into_iter().map(|key| async move { self.sweep_one(&key).await }.boxed()).collect();
            let looked: Vec<RecordSwept> = stream::iter(looks).buffer_unordered(AT_ONCE).collect().await;
            let mut messages = Vec::new();
            for one in looked {
                swept.sent_again += usize::from(one.sent_again);
                swept.timers += usize::from(one.timer);
                messages.extend(one.message);
            }
            self.runs.queues.send_messages(messages).await?;
            if is_last {
                return Ok(None);
            }
            // A cursor is a time: all records that are due at one time are swept together, or the next sweep would
            // begin with the same ones again.
            if Instant::now() >= deadline && end > from {
                return Ok(Some(end));
            }
            if from != end {
                seen.clear();
            }
            seen.extend(page.into_iter().filter(|(_, at)| *at == end).map(|(key, _)| key));
            // More than a page may be due at one time: the next page has to be longer.
            limit = if progressed {
                PAGE.max(i32::try_from(seen.len()).unwrap_or(PAGE) + PAGE)
            } else {
                limit.saturating_mul(2)
            };
            from = end;
        }
    }

    /// Handles one record. Trouble with it is logged, and keeps no other record from its turn.
    async fn sweep_one(&self, key: &ControlKey) -> RecordSwept {
        let seen = match key.sk == keys::RUN {
            true => self.sweep_run(key).await.map(|sent_again| RecordSwept {
                sent_again,
                timer: false,
                message: None,
            }),
            false => Box::pin(self.sweep_timer(key)).await,
        };
        seen.unwrap_or_else(|error| {
            let kind = if key.sk == keys::RUN { "run" } else { "timer" };
            tracing::error!(kind, pk = key.pk, sk = key.sk, %error, "a due run or timer was not handled; the next sweep retries");
            RecordSwept::default()
        })
    }

    /// Handles a run that was created, woken or acquired, and not visited in time. Returns whether it was sent to its
    /// driver again.
    async fn sweep_run(&self, key: &ControlKey) -> Result<bool, ComponentError> {
        let Some((tenant, run_id)) = keys::parse_run_partition(&key.pk) else { return Ok(false) };
        let tenant = Name::stored("tenantId", tenant)?;
        let now = self.emitter.now();
        let Some(run) = self.runs.records.get(&tenant, run_id).await? else { return Ok(false) };
        let Some(due_at) = run.due_at.filter(|due| *due <= now) else { return Ok(false) };
        if !run.external && run.emitted == 0 {
            // No runner has acquired it yet: its first events are emitted here, so that people can see the run.
            self.runs.emit_pending(&tenant, &run.run_id).await?;
        }
        self.runs.continue_run(&tenant, &run.run_id, RunDriver::of(run.external)).await?;
        if run.external {
            return Ok(true);
        }
        // The pause grows with the age of the run: while no runner executes it, messages for it would only pile up.
        let pause = now.get().saturating_sub(run.created_at.get()).clamp(RUN_LEASE_MS, PAUSE_MAX_MS);
        // The holder may be dead, and a runner that gets the message now finds the run held and drops the
        // message: the sweep comes back when the lease expires.
        let later = run.lease_until.filter(|until| *until > now).unwrap_or_else(|| now.plus(pause));
        match self.runs.records.postpone(&tenant, &run.run_id, due_at, later).await? {
            Conditional::Done(_) | Conditional::Refused(_) => Ok(true),
        }
    }

    /// Handles a timer of a sleep, a retry or a timeout. A runner decides what follows; for an external run the sweep
    /// does.
    async fn sweep_timer(&self, key: &ControlKey) -> Result<RecordSwept, ComponentError> {
        let nothing = RecordSwept::default();
        let Some(wait) = self.runs.waits.get(key).await? else { return Ok(nothing) };
        let Some(due_at) = wait.due_at else { return Ok(nothing) };
        let tenant = keys::parse_run_partition(&key.pk).or_else(|| keys::parse_waiters(&key.pk));
        let Some((tenant, _)) = tenant else { return Ok(nothing) };
        let tenant = Name::stored("tenantId", tenant)?;
        let now = self.emitter.now();
        if !wait.external {
            let run: Option<RunRecord> = self.runs.records.get(&tenant, &wait.run_id).await?;
            if run.as_ref().is_some_and(|run| run.last_error.is_some() && run.due_at > Some(now)) {
                // Its last visit failed: the run is left alone until it is due.
                return Ok(nothing);
            }
            let alarm = run.and_then(|run| run.alarm_at).filter(|alarm| *alarm <= due_at);
            if alarm.is_some_and(|alarm| alarm.plus(LATE_MS) > now) {
                // A message for it is on its way.
                return Ok(nothing);
            }
            let delay = due_at.get().saturating_sub(now.get()).div_ceil(1_000);
            let message = Some(run_message(&tenant, &wait.run_id, delay)?);
            return Ok(RecordSwept { sent_again: false, timer: true, message });
        }
        if due_at > now || ledgerline_event::Kind::of(&wait.entity_id) != Some(RunEntity::Wait.id_kind()) {
            return Ok(nothing);
        }
        let is_sleep = key.sk == keys::run_timer(&tenant, &wait.run_id, &wait.entity_id).sk;
        let outcome = if is_sleep { "elapsed" } else { "timeout" };
        let mut expected_wake_count = None;
        if keys::parse_waiters(&key.pk).is_some() {
            // An event is in time if it was accepted before the timeout is recorded.
            let run: Option<RunRecord> = self.runs.records.get(&tenant, &wait.run_id).await?;
            let Some(run) = run else { return Ok(nothing) };
            let (log, _) = self.runs.logs.read_log(&run, &tenant).await?;
            let mut positions = LookPositions::of(&run);
            let past = self
                .runs
                .sent
                .find_past_event(&tenant, &log.history, &wait.entity_id, &mut positions)
                .await?;
            if let Some(past) = past {
                self.runs.take_event_externally(&log, &past).await?;
                self.runs.settle_run(&tenant, &wait.run_id).await?;
                return Ok(RecordSwept { timer: true, ..nothing });
            }
            expected_wake_count = Some(run.wake_count);
        }
        let woken = self
            .runs
            .logs
            .wake_run(ExternalAppend {
                tenant: &tenant,
                run_id: &wait.run_id,
                draft: LogDraft {
                    event_type: RunEventType::WaitCompleted,
                    correlation_id: wait.entity_id.clone(),
                    event_data: Map::from_iter([("outcome".to_owned(), Value::from(outcome))]),
                },
                guards: vec![LogGuard::WaitIsOpen(key.clone())],
                expected_wake_count,
            })
            .await?;
        if let Woken::Appended(_) = woken {
            self.runs.settle_run(&tenant, &wait.run_id).await?;
        }
        Ok(RecordSwept { sent_again: false, timer: true, message: None })
    }
}
