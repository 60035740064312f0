//! What the ledger says about its own dispatch: `workflow.dispatch_failed`, `_parked` and
//! `_capped`, each once per start (or per event, where it is about all of them), and the
//! alerts that go with them.

use ledgerline_event::{Event, Name};
use ledgerline_ledger::EmitError;
use ledgerline_store::keys::{self, ControlKey};
use ledgerline_subscription::MAX_VIA;
use serde_json::{Value, json};

use crate::{
    ClaimOrder, Claimed, ComponentError, Effects, Executed, Outbox, PendingEffects, Sent, alert_text,
};

/// The kinds of `workflow.dispatch_…` events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Notice {
    Failed,
    Parked,
    Capped,
}

impl Notice {
    const fn event_type(self) -> &'static str {
        match self {
            Self::Failed => "workflow.dispatch_failed",
            Self::Parked => "workflow.dispatch_parked",
            Self::Capped => "workflow.dispatch_capped",
        }
    }

    /// The name of its claim.
    pub const fn claim(self) -> &'static str {
        match self {
            Self::Failed => "FAILED",
            Self::Parked => "PARKED",
            Self::Capped => "CAPPED",
        }
    }

    const fn alert_claim(self) -> &'static str {
        match self {
            Self::Failed => "FAILED-ALERT",
            Self::Parked => "PARKED-ALERT",
            Self::Capped => "CAPPED-ALERT",
        }
    }
}

/// Whether an event is a notice itself. There are no notices about notices: that would go on for ever.
fn is_notice(event: &Event) -> bool {
    event.event_type.starts_with("workflow.dispatch_")
}

/// The start that a notice is about.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct About<'a> {
    pub drainer: &'a str,
    pub epoch: u64,
    /// Empty where it is about all subscriptions of the event.
    pub subscription: &'a str,
    pub event: &'a Event,
    pub sk: &'a str,
}

impl About<'_> {
    /// The claim of the start that it is about.
    pub fn start_claim(&self) -> ControlKey {
        keys::start_claim(&self.event.tenant_id, self.sk, self.drainer, self.epoch, self.subscription)
    }

    fn claim(&self, name: &str) -> ControlKey {
        let Self { drainer, epoch, subscription, event, sk } = self;
        keys::notice_claim(&event.tenant_id, sk, drainer, *epoch, subscription, name)
    }
}

impl Outbox {
    /// Records the notice in the ledger, once.
    pub async fn notify(
        &self,
        notice: Notice,
        about: About<'_>,
        details: Value,
    ) -> Result<(), ComponentError> {
        let event = about.event;
        if is_notice(event) {
            return Ok(());
        }
        let mut properties = json!({
            "drainerId": about.drainer,
            "epoch": about.epoch,
            "eventId": event.event_id,
            "eventType": event.event_type,
            "entityType": event.entity_type,
            "entityId": event.entity_id,
        });
        if let (Value::Object(properties), Value::Object(details)) = (&mut properties, details) {
            properties.extend(details);
        }
        let emitter = self.emitter.handling(event).with_scope(|scope| {
            // A start that the notice causes came by this subscription too. A sender may have put anything there.
            scope.context.via.retain(|id| id.len() <= Name::MAX_BYTES);
            scope.context.via.truncate(MAX_VIA);
            if !about.subscription.is_empty() {
                scope.context.via.push(about.subscription.to_owned());
            }
        });
        let draft =
            emitter.event(notice.event_type()).entity("DRAINER", about.drainer).properties(properties);
        let sealed = match draft.build_plain() {
            Ok(notice) => self.emitter.seal(notice).await,
            Err(invalid) => Err(invalid.into()),
        };
        let sealed = match sealed {
            Err(EmitError::Invalid(invalid)) => {
                tracing::error!(event_id = %event.event_id, %invalid, "could not build the workflow.dispatch_* event");
                return Ok(());
            }
            other => other?,
        };
        let effects = Effects { events: vec![sealed], ..Effects::default() };
        let pending =
            PendingEffects { key: about.claim(notice.claim()), effects, started: None, ttl: event.ttl };
        let executed = self.execute_each(&[pending], |_| String::new(), ClaimOrder::AllAtOnce).await?;
        if let [Executed { sent: Sent::Failed(error), .. }] = &executed[..] {
            tracing::warn!(event_id = %event.event_id, %error, "could not send the workflow.dispatch_* event; a sweep sends it");
        }
        if let [Executed { claimed: Claimed::New, .. }] = executed[..] {
            let metric = match notice {
                Notice::Failed => "DispatchFailed",
                Notice::Parked => "Parked",
                Notice::Capped => "Capped",
            };
            self.metrics.count(self.emitter.now(), &[(metric, 1)]);
        }
        Ok(())
    }

    /// Claims an alert and returns its key, unless it was claimed before. The caller sends it when nothing else waits.
    pub async fn alert(
        &self,
        notice: Notice,
        about: About<'_>,
        text: String,
    ) -> Result<Option<ControlKey>, ComponentError> {
        if is_notice(about.event) {
            return Ok(None);
        }
        let key = about.claim(notice.alert_claim());
        let effects = Effects { alert: Some(alert_text(text)), ..Effects::default() };
        let pending = PendingEffects { key: key.clone(), effects, started: None, ttl: about.event.ttl };
        Ok(matches!(self.claim(&pending).await?, Claimed::New).then_some(key))
    }
}
