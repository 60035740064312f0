//! Why a subscription does or does not start something for an event, in words.

use ledgerline_event::{Event, Name};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    glob::{Reach, reach},
    matcher::{FAN_OUT, MAX_VIA, Verdict},
    subscription::Subscription,
};

/// The decision of one subscription about an event, in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The subscription.
    pub subscription_id: Name,
    /// Its glob.
    pub event_type_glob: String,
    /// The workflow type that it starts.
    pub workflow_type: Name,
    /// Whether it starts the workflow type, now or when the parked start is retried.
    pub matches: bool,
    /// The reason.
    pub reason: String,
    /// The input of the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Map<String, Value>>,
}

/// Puts `verdict` into words; `None` if the subscription is disabled or its glob does not match.
pub(crate) fn explain(subscription: &Subscription, event: &Event, verdict: Option<Verdict>) -> Explanation {
    let (reason, input) = match verdict {
        None => (not_decided(subscription, &event.event_type), None),
        Some(Verdict::Start { input }) => (format!("starts `{}`", subscription.workflow_type), Some(input)),
        Some(Verdict::Filtered) => ("the filter is false".into(), None),
        Some(Verdict::Lacking { field }) => {
            let reason = format!(
                "the event has no `{field}`, which the filter needs; `has(…)` tells whether a field is there"
            );
            (reason, None)
        }
        Some(Verdict::InVia) => ("it led to this event itself and does not fire again".into(), None),
        Some(Verdict::Loop { input }) => {
            (format!("would be parked: {MAX_VIA} or more subscriptions led to this event"), Some(input))
        }
        Some(Verdict::Capped { input }) => {
            (format!("would be parked: an event starts at most {FAN_OUT}"), Some(input))
        }
        Some(Verdict::Failed { reason }) => (format!("fails: {reason}"), None),
    };
    Explanation {
        subscription_id: subscription.subscription_id.clone(),
        event_type_glob: subscription.event_type_glob.clone(),
        workflow_type: subscription.workflow_type.clone(),
        matches: input.is_some(),
        reason,
        input,
    }
}

fn not_decided(subscription: &Subscription, event_type: &str) -> String {
    let glob = &subscription.event_type_glob;
    match reach(glob, event_type) {
        Reach::Missed => format!("the glob `{glob}` does not match `{event_type}`"),
        Reach::Reserved(beginning) => {
            format!("only globs that begin with `{beginning}` reach the system's own events")
        }
        // Every enabled subscription whose glob matches has a verdict.
        Reach::Reached => "is disabled".into(),
    }
}
