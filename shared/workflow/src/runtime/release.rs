//! Releasing a run: it waits, it has ended, this runner cannot execute it, or its visit failed.

use ledgerline_dispatch::{Appended, DispatchError, LetGo, Released, RunLog};
use ledgerline_event::{LogDraft, Millis, RunEventType};
use serde_json::{Map, Value};

use super::{
    Visited,
    trouble::Trouble,
    visit::{Visit, has_ended},
};

/// The longest delay of a message.
const DELAY_MAX_MS: u64 = 15 * 60_000;
/// Clocks differ by less than this.
const SOON_MS: u64 = 1_000;

impl Visit<'_> {
    /// Lets the run go until something comes; `None` if something has come already.
    pub(super) async fn suspend(
        &mut self,
        log: &RunLog,
        due: Option<Millis>,
        at_once: bool,
    ) -> Result<Option<Visited>, DispatchError> {
        self.telling.finish().await?;
        let now = self.dispatch.now();
        let (tenant, run) = (&self.lease.tenant, &self.lease.record);
        // One that is about to come may have been the one that brought us here, by a clock that is ahead.
        let mut alarm = run.alarm_at().filter(|at| *at > now.plus(SOON_MS));
        if !at_once
            && let Some(due) = due
            && due <= now.plus(DELAY_MAX_MS)
            && alarm.is_none_or(|alarm| alarm > due)
        {
            let delay = due.get().saturating_sub(now.get()).div_ceil(1_000);
            self.dispatch.send_run(tenant, &run.run_id, delay).await?;
            alarm = Some(due);
        }
        let how = if at_once { LetGo::Until(now) } else { LetGo::UntilWoken { alarm_at: alarm } };
        Ok(match self.dispatch.release_run(&mut self.lease, log.sequence, how).await? {
            Released::Done => {
                if at_once {
                    // Not before: the runner that gets the message must not find it held.
                    self.dispatch.send_run(&self.lease.tenant, &log.run_id, 0).await?;
                }
                Some(Visited::Suspended)
            }
            Released::Woken => {
                self.looking.add(self.lease.record.called().iter().cloned());
                None
            }
            Released::Lost => Some(Visited::Lost),
        })
    }

    /// Tells the ledger the rest of a run that has ended, or that another system executes.
    pub(super) async fn end(&mut self, log: &mut RunLog) -> Result<Visited, DispatchError> {
        loop {
            if self.is_elsewhere {
                self.dispatch.settle_run(&self.lease.tenant, &log.run_id).await?;
            }
            self.telling.finish().await?;
            match self
                .dispatch
                .release_run(&mut self.lease, log.sequence, LetGo::UntilWoken { alarm_at: None })
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

    /// Ends the run without its workflow.
    pub(super) async fn fail(
        &mut self,
        log: &mut RunLog,
        code: &str,
        error: &str,
    ) -> Result<Visited, DispatchError> {
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
    ) -> Result<Visited, DispatchError> {
        while !has_ended(log) {
            let drafts: Vec<LogDraft> = log.history.closings().into_iter().chain([last.clone()]).collect();
            match self.dispatch.append(log, &drafts, Some(&self.lease)).await? {
                Appended::Done(entry) => self.note(&[entry]),
                Appended::Lost => return Ok(Visited::Lost),
                Appended::Behind | Appended::GuardRefused | Appended::TokenTaken(_) => {
                    self.catch_up(log).await?;
                }
            }
        }
        self.end(log).await
    }

    pub(super) async fn refuse(&mut self, log: &mut RunLog, error: String) -> Result<Visited, DispatchError> {
        tracing::error!(run_id = %log.run_id, error, "a run cannot go on here");
        self.dispatch.note_refused(&self.lease.tenant, &self.lease.record).await?;
        loop {
            self.telling.finish().await?;
            let refused = Trouble::refused(&self.lease.record);
            let how = LetGo::InTrouble {
                error: &error,
                again_at: self.dispatch.now().plus(refused.pause_ms()),
                alarm_at: None,
                failed: refused.failed,
                rejected: refused.rejected,
            };
            match self.dispatch.release_run(&mut self.lease, log.sequence, how).await? {
                Released::Done => return Ok(Visited::Refused(error)),
                Released::Lost => return Ok(Visited::Lost),
                Released::Woken => {
                    self.catch_up(log).await?;
                }
            }
        }
    }

    /// Lets a run go whose visit failed: others need not wait for the lease to end. A message of its own brings the next
    /// visit, so the one that brought this visit can go; if letting go fails too, that one comes again.
    pub(super) async fn postpone(&mut self, error: DispatchError) -> Result<Visited, DispatchError> {
        let (now, run_id) = (self.dispatch.now(), self.lease.record.run_id.clone());
        let trouble = Trouble::of(&error, &self.lease.record, self.progressed);
        let again_at = now.plus(trouble.pause_ms());
        // One that is on its way and comes before then serves as well: messages for a run must not multiply.
        let on_its_way = self.lease.record.alarm_at().filter(|at| *at > now.plus(SOON_MS) && *at <= again_at);
        let alarm_at = match on_its_way {
            Some(at) => Some(at),
            None => {
                let delay = trouble.pause_ms().div_ceil(1_000);
                let sent = self.dispatch.send_run(&self.lease.tenant, &run_id, delay).await;
                // Without a message the sweep brings the next visit.
                sent.is_ok().then_some(again_at)
            }
        };
        let reason = error.to_string();
        let (failed, rejected) = (trouble.failed, trouble.rejected);
        let how = LetGo::InTrouble { error: &reason, again_at, alarm_at, failed, rejected };
        loop {
            match self.dispatch.release_run(&mut self.lease, self.telling.told(), how).await {
                Ok(Released::Done) => {
                    tracing::error!(%run_id, %error, failed, rejected, "a visit failed; it is tried again later");
                    return Ok(Visited::Failed(reason));
                }
                Ok(Released::Lost) => return Ok(Visited::Lost),
                // What is new is in the log, and the next visit reads that.
                Ok(Released::Woken) => {}
                Err(_) => return Err(error),
            }
        }
    }
}
