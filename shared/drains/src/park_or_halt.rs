//! Starts of an event that are not made: the drainer parks them, or halts at the event.

use ledgerline_event::{Event, Name, keys::time_of};
use ledgerline_store::{Halted, ParkedBecause, ParkedState, keys::ControlKey};
use ledgerline_subscription::{FAN_OUT, MAX_VIA, Subscription, Verdict};
use serde_json::json;

use crate::{
    event_handler::{EventHandler, Work},
    open_blocks::BlockError,
    park_start::start_id,
    start_decision::MAX_REASON,
};
use ledgerline_outbox::{ComponentError, Notice};

/// The starts of an event that are not made, by what is wrong with them.
#[derive(Default)]
pub(crate) struct NotStarted {
    /// They fail in the same way each time.
    pub(crate) permanent: Vec<(Subscription, String)>,
    /// They fail, and their subscriptions say `onFailure: halt`.
    pub(crate) halts: Vec<(Subscription, String)>,
    pub(crate) loops: Vec<Subscription>,
    pub(crate) capped: Vec<Subscription>,
}

impl NotStarted {
    fn is_empty(&self) -> bool {
        self.permanent.is_empty() && self.halts.is_empty() && self.loops.is_empty() && self.capped.is_empty()
    }
}

impl EventHandler<'_> {
    /// Parks starts and claims alerts about them, or halts. Returns the halt if the drain stops at this event.
    pub(crate) async fn park_or_halt(&self, work: &Work) -> Result<Option<Halted>, BlockError> {
        let Work { event, sk, troubles, .. } = work;
        if troubles.is_empty() {
            return Ok(None);
        }
        let mut alerts = Vec::new();
        for subscription in &troubles.loops {
            let about = self.about(event, sk, &subscription.subscription_id);
            let reason =
                format!("{MAX_VIA} subscriptions have led here already: {}", event.context.via.join(", "));
            let reason: String = reason.chars().take(MAX_REASON).collect();
            let because = ParkedBecause::Loop;
            self.drains.parked.notify_parked(about, subscription, because, &reason, 0).await?;
            alerts.extend(self.drains.parked.alert_parked(about, subscription, &reason).await?);
            self.drains.parked.park(about, subscription, because, reason).await?;
        }
        if !troubles.capped.is_empty() {
            alerts.extend(self.cap(event, sk, &troubles.capped).await?);
        }
        for (subscription, reason) in &troubles.permanent {
            let about = self.about(event, sk, &subscription.subscription_id);
            self.drains.parked.park_failed(about, subscription, reason, &mut alerts).await?;
        }
        let mut halted = None;
        for (subscription, reason) in &troubles.halts {
            let about = self.about(event, sk, &subscription.subscription_id);
            self.blocks.record_halt(sk).await?;
            let stop = self.drains.parked.halt(about, subscription, reason.clone(), self.blocks).await?;
            halted = halted.or(stop);
        }
        self.made().alerts.extend(alerts);
        Ok(halted)
    }

    /// Parks the starts of an event beyond [`FAN_OUT`], with one alert for all of them.
    async fn cap(
        &self,
        event: &Event,
        sk: &str,
        capped: &[Subscription],
    ) -> Result<Option<ControlKey>, ComponentError> {
        let about = self.about(event, sk, "");
        let ids: Vec<&Name> = capped.iter().map(|subscription| &subscription.subscription_id).collect();
        let matched = FAN_OUT + capped.len();
        let reason = format!("{matched} subscriptions match this event and at most {FAN_OUT} start");
        let details = json!({ "subscriptionIds": ids, "matched": matched, "started": FAN_OUT });
        self.drains.outbox.notify(Notice::Capped, about, details).await?;
        let text = format!(
            ":warning: *Too many subscriptions for one event*\n*Event* {} {} ({}/{})\n*Tenant* {}\n{reason}; the other \
             {} are parked.\n`ledgerline {} --tenant '{}' parked list`",
            event.event_type,
            event.event_id,
            event.entity_type,
            event.entity_id,
            event.tenant_id,
            capped.len(),
            self.drains.ledger_flag,
            event.tenant_id,
        );
        let alert = self.drains.outbox.alert(Notice::Capped, about, text).await?;
        for subscription in capped {
            let about = self.about(event, sk, &subscription.subscription_id);
            self.drains.parked.park(about, subscription, ParkedBecause::FanoutCap, reason.clone()).await?;
        }
        Ok(alert)
    }

    /// Deletes the rows of starts at which the drain was halted and that are made now.
    pub(crate) async fn delete_halted_starts(&self, work: &Work) -> Result<(), ComponentError> {
        for start in &work.starts {
            let about = self.about(&work.event, &work.sk, &start.triggered.subscription_id);
            self.drains.parked.delete_halted_start(&self.tenant, &start_id(&about)).await?;
        }
        Ok(())
    }

    /// Deletes the rows that nothing needs any more, of starts at which the drain was halted. `passed` is the cursor of a drain
    /// that is halted nowhere. Returns the places of the events without any rows.
    pub(crate) async fn close_halts(&self, passed: Option<&String>) -> Result<Vec<String>, ComponentError> {
        let places = self.blocks.halted_at().clone();
        let mut done = Vec::new();
        for place in places {
            if self.close_unwanted(&place, passed.is_some_and(|cursor| place <= *cursor)).await? {
                done.push(place);
            }
        }
        Ok(done)
    }

    /// Deletes the rows of one event at which the drain was halted: those of starts that a rewind has given another epoch, and
    /// those of subscriptions that are removed, disabled, or do not want the event any more. Once the drain `has_passed` the
    /// event, nothing retries its starts, also if their subscription was disabled for a moment only. Returns whether no row is
    /// left.
    async fn close_unwanted(&self, sk: &str, has_passed: bool) -> Result<bool, ComponentError> {
        let Some(time) = time_of(sk) else { return Ok(true) };
        let mut retrying = self.drains.parked.records.of_time(&self.tenant, time).await?;
        retrying.retain(|start| {
            let of_halt = start.state == ParkedState::Retrying && start.block.is_none();
            of_halt && start.event_place == sk && start.drainer_id == self.drainer
        });
        if retrying.is_empty() {
            return Ok(true);
        }
        // One that has expired is wanted by no subscription.
        let mut event = self.drains.timeline.stored_at(&self.tenant, sk).await?;
        let unreadable = match &mut event {
            Some(event) => self.restore(event).await.is_some(),
            None => false,
        };
        let decisions = event.as_ref().map(|event| self.matcher.decide(event)).unwrap_or_default();
        let mut left = 0;
        for start in retrying {
            let wanted = decisions.iter().any(|decision| {
                let unwanted =
                    matches!(decision.verdict, Verdict::Filtered | Verdict::Lacking { .. } | Verdict::InVia);
                decision.subscription.subscription_id == start.subscription_id && (unreadable || !unwanted)
            });
            if wanted && !has_passed && start.epoch == self.epochs.of(sk) {
                left += 1;
            } else {
                self.drains.parked.delete_halted_start(&self.tenant, &start.id).await?;
            }
        }
        Ok(left == 0)
    }
}
