//! Releasing a run: it waits, it has ended, this runner cannot execute it, or its visit failed.

use ledgerline_event::{LogDraft, Millis, RunEventType};
use ledgerline_outbox::ComponentError;
use ledgerline_runs::{Appended, ReleasePlan, Released, RunLog};
use serde_json::{Map, Value};

use super::{
    Visited,
    failed_visit_backoff::Backoff,
    visit::{Visit, has_ended},
};

/// The longest delay of an SQS message.
const DELAY_MAX_MS: u64 = 15 * 60_000;
/// The clocks of two runners differ by less than this.
const SOON_MS: u64 = 1_000;

impl Visit<'_> {
    /// Releases the run until something wakes it; `None` if something has woken it already.
    pub(super) async fn suspend(
        &mut self,
        log: &RunLog,
        due: Option<Millis>,
        at_once: bool,
    ) -> Result<Option<Visited>, ComponentError> {
        self.outbox.finish().await?;
        let now = self.stage.now();
        let (tenant, run) = (&self.lease.tenant, &self.lease.record);
        // An alarm that is due soon may be the message that began this visit, sent by a clock that is ahead.
        let mut alarm = run.alarm_at().filter(|at| *at > now.plus(SOON_MS));
        if !at_once
            && let Some(due) = due
            && due <= now.plus(DELAY_MAX_MS)
            && alarm.is_none_or(|alarm| alarm > due)
        {
            let delay = due.get().saturating_sub(now.get()).div_ceil(1_000);
            self.stage.runs.enqueue_run(tenant, &run.run_id, delay).await?;
            alarm = Some(due);
        }
        let how = if at_once { ReleasePlan::Until(now) } else { ReleasePlan::UntilWoken { alarm_at: alarm } };
        Ok(match self.stage.runs.leases.release_run(&mut self.lease, log.sequence, how).await? {
            Released::Done => {
                if at_once {
                    // Only after the release: the runner that gets the message must not find the run held.
                    self.stage.runs.enqueue_run(&self.lease.tenant, &log.run_id, 0).await?;
                }
                Some(Visited::Suspended)
            }
            Released::Woken => {
                self.matching.add(self.lease.record.notified_waits().iter().cloned());
                None
            }
            Released::Lost => Some(Visited::Lost),
        })
    }

    /// Emits the rest of a run that has ended, or that an external runner executes, and releases it.
    pub(super) async fn end(&mut self, log: &mut RunLog) -> Result<Visited, ComponentError> {
        loop {
            if self.is_external {
                self.stage.runs.settle_run(&self.lease.tenant, &log.run_id).await?;
            }
            self.outbox.finish().await?;
            match self
                .stage
                .runs
                .leases
                .release_run(&mut self.lease, log.sequence, ReleasePlan::UntilWoken { alarm_at: None })
                .await?
            {
                Released::Done => return Ok(Visited::Ended),
                Released::Lost => return Ok(Visited::Lost),
                Released::Woken => {
                    self.catch_up(log).await?;
                }
            }
        }
    }

    /// Ends the run as failed, without its workflow.
    pub(super) async fn fail(
        &mut self,
        log: &mut RunLog,
        code: &str,
        error: &str,
    ) -> Result<Visited, ComponentError> {
        let failed = LogDraft {
            event_type: RunEventType::RunFailed,
            correlation_id: log.run_id.clone(),
            event_data: Map::from_iter([
                ("error".to_owned(), Value::from(error)),
                ("errorCode".to_owned(), Value::from(code)),
            ]),
        };
        self.end_with(log, failed).await
    }

    /// Closes everything that is open and appends the run's last event.
    pub(super) async fn end_with(
        &mut self,
        log: &mut RunLog,
        last: LogDraft,
    ) -> Result<Visited, ComponentError> {
        while !has_ended(log) {
            let drafts: Vec<LogDraft> = log.history.closings().into_iter().chain([last.clone()]).collect();
            match self.stage.runs.logs.append(log, &drafts, Some(&self.lease)).await? {
                Appended::Done(entry) => self.add_entries(&[entry]),
                Appended::Lost => return Ok(Visited::Lost),
                Appended::StaleLog | Appended::GuardRefused | Appended::TokenTaken(_) => {
                    self.catch_up(log).await?;
                }
            }
        }
        self.end(log).await
    }

    pub(super) async fn refuse(
        &mut self,
        log: &mut RunLog,
        error: String,
    ) -> Result<Visited, ComponentError> {
        tracing::error!(run_id = %log.run_id, error, "this runner does not have the run's workflow or version");
        self.stage.runs.registry.note_refused(&self.lease.tenant, &self.lease.record).await?;
        loop {
            self.outbox.finish().await?;
            let refused = Backoff::refused(&self.lease.record);
            let how = ReleasePlan::AfterFailure {
                error: &error,
                again_at: self.stage.now().plus(refused.pause_ms()),
                alarm_at: None,
                failed: refused.failed,
                rejected: refused.rejected,
            };
            match self.stage.runs.leases.release_run(&mut self.lease, log.sequence, how).await? {
                Released::Done => return Ok(Visited::Refused(error)),
                Released::Lost => return Ok(Visited::Lost),
                Released::Woken => {
                    self.catch_up(log).await?;
                }
            }
        }
    }

    /// Releases a run whose visit failed, so that other runners need not wait for the lease to expire. It sends a message
    /// for the next visit, so the message of this visit can be deleted; if the release fails too, SQS delivers that message
    /// again.
    pub(super) async fn postpone(&mut self, error: ComponentError) -> Result<Visited, ComponentError> {
        let (now, run_id) = (self.stage.now(), self.lease.record.run_id.clone());
        let backoff = Backoff::of(&error, &self.lease.record, self.progress);
        let again_at = now.plus(backoff.pause_ms());
        // A message that comes before then serves as well: messages for a run must not multiply.
        let on_its_way = self.lease.record.alarm_at().filter(|at| *at > now.plus(SOON_MS) && *at <= again_at);
        let alarm_at = match on_its_way {
            Some(at) => Some(at),
            None => {
                let delay = backoff.pause_ms().div_ceil(1_000);
                let sent = self.stage.runs.enqueue_run(&self.lease.tenant, &run_id, delay).await;
                // Without a message the sweep brings the next visit.
                sent.is_ok().then_some(again_at)
            }
        };
        let reason = error.to_string();
        let (failed, rejected) = (backoff.failed, backoff.rejected);
        let how = ReleasePlan::AfterFailure { error: &reason, again_at, alarm_at, failed, rejected };
        loop {
            match self.stage.runs.leases.release_run(&mut self.lease, self.outbox.sent(), how).await {
                Ok(Released::Done) => {
                    tracing::error!(%run_id, %error, failed, rejected, "a visit failed; it is tried again later");
                    return Ok(Visited::RetryScheduled(reason));
                }
                Ok(Released::Lost) => return Ok(Visited::Lost),
                // The news is in the log, and the next visit reads the log.
                Ok(Released::Woken) => {}
                Err(_) => return Err(error),
            }
        }
    }
}
