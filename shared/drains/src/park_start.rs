//! Records a start that did not work: the drain halts at it and retries it, or parks it, so that an operator can see
//! why, mend the cause, and start it after all.
//!
//! One record per start and epoch, while there is something to do about it. What was started
//! or dropped after all has a claim, as every start has.

use ledgerline_event::{Event, Millis, Name};
use ledgerline_store::{
    Halted, ParkedBecause, ParkedStart, ParkedState, ParkedWrite, RequestRetry, RetryCause, back_off, keys,
};
use ledgerline_subscription::Subscription;
use serde_json::json;

use crate::{
    ParkedStarts,
    block_retry::pause,
    open_blocks::{BlockError, OpenBlocks},
};
use ledgerline_outbox::{About, ComponentError, Notice};

/// A start is parked after so many failed attempts.
pub const MAX_ATTEMPTS: u32 = 5;

/// The id of a start among the parked starts; it follows from the start alone.
pub(crate) fn start_id(about: &About<'_>) -> String {
    let epoch = about.epoch.to_string();
    let digest = ledgerline_outbox::short_hash(&[about.drainer, &epoch, about.subscription, about.sk]);
    format!("{}-{}", about.event.timestamp, &digest[..16])
}

impl ParkedStarts {
    /// Records one more failure of a start at which the drain is halted. Returns `None` if the start was settled otherwise: then
    /// the drain goes on.
    pub(crate) async fn halt(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        reason: String,
        blocks: &OpenBlocks<'_>,
    ) -> Result<Option<Halted>, BlockError> {
        let now = self.emitter.now();
        let before = self.records.get(&about.event.tenant_id, &start_id(&about)).await?;
        let halted =
            |until, reason| Ok(Some(Halted { event_id: about.event.event_id.clone(), until, reason }));
        match &before {
            // A block that was opened before its subscription said halt goes on.
            Some(before) if before.state == ParkedState::Parked || before.block.is_some() => return Ok(None),
            Some(before) if before.next_attempt_at.is_some_and(|next| next > now) => {
                return halted(before.next_attempt_at.unwrap_or(now), reason);
            }
            Some(_) => {}
            // Started or dropped by hand in the meantime.
            None if self.outbox.claim_exists(&about.start_claim()).await? => return Ok(None),
            None => {}
        }
        let attempts = before.as_ref().map_or(0, |before| before.attempts) + 1;
        let first_failed_at = before.as_ref().map_or(now, |before| before.first_failed_at);
        // The notice comes before the record: if the process dies in between, the next one emits the notice, which happens
        // once, and then writes the record.
        self.notify_failed(about, subscription, &reason).await?;
        let next = now.plus(pause(attempts));
        let start = ParkedStart {
            attempts,
            first_failed_at,
            state: ParkedState::Retrying,
            next_attempt_at: Some(next),
            ..parked_start(&about, subscription, ParkedBecause::Failed, reason.clone(), now)
        };
        // On condition of the fence: nothing would delete a row that a holder wrote after its lease had expired.
        let mut transaction = blocks.begin_transaction();
        transaction.put_parked_if_uncounted(&start, attempts - 1)?;
        blocks.commit(transaction).await?;
        halted(next, reason)
    }

    /// Parks a start whose event fails in the same way each time.
    pub(crate) async fn park_failed(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        reason: &str,
        alerts: &mut Vec<keys::ControlKey>,
    ) -> Result<(), ComponentError> {
        let mut retries = RequestRetry::default();
        loop {
            let before = self.records.get(&about.event.tenant_id, &start_id(&about)).await?;
            match &before {
                // One that waits in a block is decided anew when its turn comes.
                Some(before) if before.state == ParkedState::Parked || before.block.is_some() => {
                    return Ok(());
                }
                Some(_) => {}
                None if self.outbox.claim_exists(&about.start_claim()).await? => return Ok(()),
                None => {}
            }
            let counted = before.as_ref().map_or(0, |before| before.attempts);
            let parked = self.parked_for_good(about, subscription, reason, counted + 1, Some(alerts)).await?;
            match self.records.put_if_uncounted(&about.event.tenant_id, &parked, counted).await? {
                ParkedWrite::Done => return Ok(()),
                // The cursor passes the event after this: a process that has lost the lease may have written that the start
                // is retried, and nothing would retry it.
                ParkedWrite::Changed => back_off(&mut retries, RetryCause::LostRace).await?,
            }
        }
    }

    /// Emits once that a start failed.
    pub(crate) async fn notify_failed(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        reason: &str,
    ) -> Result<(), ComponentError> {
        let details = json!({
            "subscriptionId": subscription.subscription_id,
            "workflowType": subscription.workflow_type,
            "reason": reason,
        });
        self.outbox.notify(Notice::Failed, about, details).await
    }

    /// Emits that a start is parked, and returns the row to write for it. Without `alerts` no alert is stored: there was
    /// one about the start that it waited for.
    pub(crate) async fn parked_for_good(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        reason: &str,
        attempts: u32,
        alerts: Option<&mut Vec<keys::ControlKey>>,
    ) -> Result<ParkedStart, ComponentError> {
        let now = self.emitter.now();
        self.notify_failed(about, subscription, reason).await?;
        let because = ParkedBecause::Failed;
        self.notify_parked(about, subscription, because, reason, attempts).await?;
        if let Some(alerts) = alerts {
            alerts.extend(self.alert_parked(about, subscription, reason).await?);
        }
        let start = parked_start(&about, subscription, because, reason.to_owned(), now);
        Ok(ParkedStart { attempts, parked_at: Some(now), ..start })
    }

    /// Deletes the row of a start at which the drain was halted.
    pub(crate) async fn delete_halted_start(&self, tenant: &Name, id: &str) -> Result<(), ComponentError> {
        match self.records.delete_if_halted(tenant, id).await? {
            ParkedWrite::Done | ParkedWrite::Changed => Ok(()),
        }
    }

    /// Parks a start at once, since it would fail each time.
    pub(crate) async fn park(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        because: ParkedBecause,
        reason: String,
    ) -> Result<(), ComponentError> {
        let now = self.emitter.now();
        let start =
            ParkedStart { parked_at: Some(now), ..parked_start(&about, subscription, because, reason, now) };
        // An operator may have started or dropped it since.
        if !self.outbox.claim_exists(&about.start_claim()).await? {
            self.records.put_parked(&about.event.tenant_id, &start).await?;
        }
        Ok(())
    }

    /// Emits once that a start is parked.
    pub(crate) async fn notify_parked(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        because: ParkedBecause,
        reason: &str,
        attempts: u32,
    ) -> Result<(), ComponentError> {
        let details = json!({
            "subscriptionId": subscription.subscription_id,
            "workflowType": subscription.workflow_type,
            "because": because,
            "reason": reason,
            "attempts": attempts,
            "parkedId": start_id(&about),
        });
        self.outbox.notify(Notice::Parked, about, details).await
    }

    /// Stores the alert about a parked start.
    pub(crate) async fn alert_parked(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        reason: &str,
    ) -> Result<Option<keys::ControlKey>, ComponentError> {
        let id = start_id(&about);
        let event = about.event;
        let text = format!(
            ":warning: *A start is parked*\n*Workflow* {}\n*Event* {} {} ({}/{})\n*Tenant* {}\n*Reason* {reason}\n\
             `ledgerline {} --tenant '{}' parked show {id}`",
            subscription.workflow_type,
            event.event_type,
            event.event_id,
            event.entity_type,
            event.entity_id,
            event.tenant_id,
            self.ledger_flag,
            event.tenant_id,
        );
        self.outbox.alert(Notice::Parked, about, text).await
    }
}

pub(crate) fn parked_start(
    about: &About<'_>,
    subscription: &Subscription,
    because: ParkedBecause,
    reason: String,
    now: Millis,
) -> ParkedStart {
    let event: &Event = about.event;
    ParkedStart {
        id: start_id(about),
        state: ParkedState::Parked,
        because,
        reason,
        attempts: 0,
        drainer_id: subscription.drainer_id.clone(),
        epoch: about.epoch,
        subscription_id: subscription.subscription_id.clone(),
        workflow_type: subscription.workflow_type.clone(),
        event_id: event.event_id.clone(),
        event_type: event.event_type.clone(),
        entity_type: event.entity_type.clone(),
        entity_id: event.entity_id.clone(),
        event_place: about.sk.to_owned(),
        first_failed_at: now,
        next_attempt_at: None,
        parked_at: None,
        waits_for: None,
        block: None,
        place_in_block: None,
        ttl: event.ttl,
    }
}
