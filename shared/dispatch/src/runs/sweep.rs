//! What the clock brings: runs that nobody finished looking after, and timers whose time has come.

use ledgerline_event::{LogDraft, Name, RunEntity, RunEventType};
use ledgerline_ledger::control::keys::{self, ControlKey, DUE_SHARDS};
use serde_json::{Map, Value};

use super::{
    RUN_LEASE_MS, RunRecord,
    side_writes::Owner,
    wake::{FromOutside, Woken, run_message},
};
use crate::{
    Dispatch, DispatchError,
    claim::Message,
    conditional::{Answer, conditionally, number},
};

/// How far a sweep looks ahead: until the next one, and a little more. What is due by then gets a message with a delay.
const AHEAD_MS: u64 = 150_000;
/// The longest pause between two messages for a run that nobody looks after.
const PAUSE_MAX_MS: u64 = 60 * 60_000;
/// A message that should have come by now and did not within this is given up.
const LATE_MS: u64 = 10_000;

/// What a sweep of runs did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RunsSwept {
    /// Runs that were sent to the runners again.
    pub sent_again: usize,
    /// Timers that were seen to.
    pub timers: usize,
}

impl Dispatch {
    /// Looks after runs whose time has come.
    pub async fn sweep_runs(&self) -> Result<RunsSwept, DispatchError> {
        let mut swept = RunsSwept::default();
        for shard in 0..DUE_SHARDS {
            let until = self.now().plus(AHEAD_MS);
            let mut messages = Vec::new();
            for key in self.control.all_due(&keys::run_due_shard(shard), until).await? {
                // One that cannot be seen to now must not keep the others from it.
                let seen = match key.sk == keys::RUN {
                    true => self.sweep_run(&key).await.map(|again| swept.sent_again += usize::from(again)),
                    false => self
                        .sweep_timer(&key, &mut messages)
                        .await
                        .map(|seen| swept.timers += usize::from(seen)),
                };
                if let Err(error) = seen {
                    tracing::error!(pk = key.pk, sk = key.sk, %error, "a run could not be looked after; the next sweep tries again");
                }
            }
            self.send_messages(messages).await?;
        }
        Ok(swept)
    }

    /// A run that was created, woken or taken, and not looked after in time.
    async fn sweep_run(&self, key: &ControlKey) -> Result<bool, DispatchError> {
        let Some((tenant, _)) = keys::parse_run_partition(&key.pk) else { return Ok(false) };
        let tenant = Name::new("tenantId", tenant)?;
        let now = self.now();
        let Some(run) = self.control.get::<RunRecord>(key).await? else { return Ok(false) };
        let Some(due_at) = run.due_at.filter(|due| *due <= now) else { return Ok(false) };
        if !run.external && run.emitted == 0 {
            // No runner has come so far: the ledger should know of the run all the same.
            self.tell_pending(&tenant, &run.run_id).await?;
        }
        self.go_on(&tenant, &run.run_id, run.external).await?;
        if run.external {
            return Ok(true);
        }
        // As long as nobody is there to execute it, messages for it would only pile up.
        let pause = now.get().saturating_sub(run.created_at.get()).clamp(RUN_LEASE_MS, PAUSE_MAX_MS);
        // Whoever has it may be dead, and the message that was just sent is done when it finds the run held.
        let later = run.lease_until.filter(|until| *until > now).unwrap_or_else(|| now.plus(pause));
        let update = self
            .control
            .update(key)
            .update_expression("SET dueAt = :later")
            .condition_expression("dueAt = :due")
            .expression_attribute_values(":due", number(due_at.get()))
            .expression_attribute_values(":later", number(later.get()));
        match conditionally::<RunRecord>(update).await? {
            Answer::Done(_) | Answer::Refused(_) => Ok(true),
        }
    }

    /// A sleep, a retry or a timeout. Its runner decides; where there is none, it is decided here.
    async fn sweep_timer(
        &self,
        key: &ControlKey,
        messages: &mut Vec<Message>,
    ) -> Result<bool, DispatchError> {
        let Some(owner) = self.control.get::<Owner>(key).await? else { return Ok(false) };
        let Some(due_at) = owner.due_at else { return Ok(false) };
        let tenant = keys::parse_run_partition(&key.pk).or_else(|| keys::parse_waiters(&key.pk));
        let Some((tenant, _)) = tenant else { return Ok(false) };
        let tenant = Name::new("tenantId", tenant)?;
        let now = self.now();
        if !owner.external {
            let run: Option<RunRecord> = self.control.get(&keys::run(&tenant, &owner.run_id)).await?;
            let alarm = run.and_then(|run| run.alarm_at).filter(|alarm| *alarm <= due_at);
            if alarm.is_some_and(|alarm| alarm.plus(LATE_MS) > now) {
                // A message for it is on its way.
                return Ok(false);
            }
            let delay = due_at.get().saturating_sub(now.get()).div_ceil(1_000);
            messages.push(run_message(&tenant, &owner.run_id, delay)?);
            return Ok(true);
        }
        if due_at > now || ledgerline_event::Kind::of(&owner.entity_id) != Some(RunEntity::Wait.id_kind()) {
            return Ok(false);
        }
        let is_sleep = key.sk == keys::run_timer(&tenant, &owner.run_id, &owner.entity_id).sk;
        let outcome = if is_sleep { "elapsed" } else { "timeout" };
        let mut expected_wakes = None;
        if keys::parse_waiters(&key.pk).is_some() {
            // What was accepted before the timeout is recorded is not too late.
            let run: Option<RunRecord> = self.control.get(&keys::run(&tenant, &owner.run_id)).await?;
            let Some(run) = run else { return Ok(false) };
            let (log, _) = self.read_log(&run, &tenant).await?;
            let mut positions = run.positions();
            let past = self.find_past_event(&tenant, &log.history, &owner.entity_id, &mut positions).await?;
            if let Some(past) = past {
                self.take_event_externally(&log, &past).await?;
                self.go_on(&tenant, &owner.run_id, true).await?;
                return Ok(true);
            }
            expected_wakes = Some(run.wakes);
        }
        let woken = self
            .wake_run(FromOutside {
                tenant: &tenant,
                run_id: &owner.run_id,
                draft: LogDraft {
                    event_type: RunEventType::WaitCompleted,
                    correlation_id: owner.entity_id.clone(),
                    event_data: Map::from_iter([("outcome".to_owned(), Value::from(outcome))]),
                },
                guards: vec![self.delete_owner(key, true)?],
                expected_wakes,
            })
            .await?;
        if let Woken::Done(_) = woken {
            self.go_on(&tenant, &owner.run_id, true).await?;
        }
        Ok(true)
    }
}
