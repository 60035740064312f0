//! The record of a subscription, as it is stored and shown, and the check before it is stored.

use std::collections::BTreeMap;

use ledgerline_event::{Invalid, Millis, Name};
use serde::{Deserialize, Serialize};

use crate::{filter::Filter, glob, mapper::Recipes};

/// A rule: events that match it start a workflow type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subscription {
    /// `sub_` and a ULID, so that sorting by it is sorting by creation.
    pub subscription_id: Name,
    /// The tenant whose events it matches.
    pub tenant_id: Name,
    /// The drainer that evaluates it.
    pub drainer_id: Name,
    /// The event types that it matches: `*` is any characters, `?` is one character.
    pub event_type_glob: String,
    /// The workflow type that it starts.
    pub workflow_type: Name,
    /// A recipe for each name of the input; without a mapper the input is the event's properties.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_mapper: Option<BTreeMap<String, String>>,
    /// A CEL expression over `event`; without a filter every event of these types passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter_expr: Option<String>,
    /// Whether it starts anything.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// What the drainer does with a start that fails.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// When it was created.
    pub created_at: Millis,
}

/// What the drainer does with a start that fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// The drainer gives the start up after the retries, parks it, and continues.
    #[default]
    Park,
    /// The drainer stops before the event and retries the start without end.
    Halt,
}

fn yes() -> bool {
    true
}

impl Subscription {
    /// Checks that the glob, the filter and every recipe can be read and can match some event; the error has the position.
    pub fn check(&self) -> Result<(), Invalid> {
        Compiled::new(self)?;
        self.check_filter()?;
        self.check_mapper()
    }

    /// Checks a change: a filter or a mapper that is the same as `before` needs only to be readable. So a subscription that an
    /// earlier version stored with fewer checks can still be disabled.
    pub fn check_change(&self, before: &Self) -> Result<(), Invalid> {
        Compiled::new(self)?;
        if self.filter_expr != before.filter_expr {
            self.check_filter()?;
        }
        match self.input_mapper == before.input_mapper {
            true => Ok(()),
            false => self.check_mapper(),
        }
    }

    fn check_filter(&self) -> Result<(), Invalid> {
        let checked = self.filter_expr.as_deref().map_or(Ok(()), Filter::check);
        checked.map_err(|reason| Invalid::new("filterExpr", reason))
    }

    fn check_mapper(&self) -> Result<(), Invalid> {
        let checked = self.input_mapper.as_ref().map_or(Ok(()), Recipes::check_over_events);
        checked.map_err(|reason| Invalid::new("inputMapper", reason))
    }
}

/// The compiled filter and mapper of a subscription.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) filter: Option<Filter>,
    pub(crate) mapper: Option<Recipes>,
}

impl Compiled {
    pub(crate) fn new(subscription: &Subscription) -> Result<Self, Invalid> {
        if let Some(fault) = glob::fault(&subscription.event_type_glob) {
            return Err(Invalid::new("eventTypeGlob", fault));
        }
        let filter = subscription.filter_expr.as_deref().map(Filter::compile).transpose();
        let mapper = subscription.input_mapper.as_ref().map(Recipes::over_events).transpose();
        Ok(Self {
            filter: filter.map_err(|reason| Invalid::new("filterExpr", reason))?,
            mapper: mapper.map_err(|reason| Invalid::new("inputMapper", reason))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn stored() -> Value {
        json!({
            "subscriptionId": "sub_1", "tenantId": "acme", "drainerId": "workflow_runner",
            "eventTypeGlob": "vendor.cost_changed", "workflowType": "vendor_cost_review",
            "createdAt": 1_767_453_739_640_u64,
        })
    }

    fn check(field: &str, value: Value) -> String {
        let mut stored = stored();
        stored[field] = value;
        let subscription: Subscription = serde_json::from_value(stored).unwrap();
        subscription.check().unwrap_err().to_string()
    }

    #[test]
    fn a_record_is_enabled_and_parks_unless_it_says_otherwise() {
        let subscription: Subscription = serde_json::from_value(stored()).unwrap();
        assert!(subscription.enabled);
        assert_eq!(subscription.on_failure, OnFailure::Park);
        assert_eq!(subscription.check(), Ok(()));
        let mut written = stored();
        written["enabled"] = json!(true);
        written["onFailure"] = json!("park");
        assert_eq!(serde_json::to_value(&subscription).unwrap(), written, "what is not there is not written");
    }

    #[test]
    fn a_record_survives_being_stored() {
        let mut full = stored();
        full["inputMapper"] = json!({"vendor_id": "$.entity_id", "mode": "literal:full"});
        full["filterExpr"] = json!("event.properties.amount > 100");
        full["enabled"] = json!(false);
        full["onFailure"] = json!("halt");
        let subscription: Subscription = serde_json::from_value(full.clone()).unwrap();
        assert_eq!(subscription.check(), Ok(()));
        assert_eq!(serde_json::to_value(&subscription).unwrap(), full);
    }

    #[test]
    fn what_was_stored_when_less_was_checked_can_still_be_changed() {
        let mut before = stored();
        before["filterExpr"] = json!("event.type == 'x'");
        before["inputMapper"] = json!({"a": "$.foo"});
        let before: Subscription = serde_json::from_value(before).unwrap();
        let disabled = Subscription { enabled: false, ..before.clone() };
        assert_eq!(disabled.check_change(&before), Ok(()));
        let other = Subscription { filter_expr: Some("event.foo".into()), ..before.clone() };
        assert_eq!(other.check_change(&before).unwrap_err().field, "filterExpr");
        let mended = Subscription { filter_expr: None, input_mapper: None, ..before.clone() };
        assert_eq!(mended.check_change(&before), Ok(()));
        assert!(Compiled::new(&before).is_ok(), "it is compiled as before");
    }

    #[test]
    fn a_check_points_at_the_place() {
        assert_eq!(
            check("eventTypeGlob", json!("pri\u{200b}ce.*")),
            r#"eventTypeGlob: "pri\u{200b}ce.*" has an invisible character at position 4"#
        );
        assert_eq!(
            check("filterExpr", json!("event. > 3")),
            "filterExpr: at line 1, column 8: expected identifier after '.'\n  event. > 3\n         ^"
        );
        assert_eq!(
            check("filterExpr", json!("event.type == 'x'")),
            "filterExpr: at line 1, column 7: no event has a field `type`; did you mean `eventType`?\n  event.type == 'x'\n        ^"
        );
        assert!(
            check("inputMapper", json!({"a": "$.foo"}))
                .starts_with("inputMapper: a: \"$.foo\" at position 3: ")
        );
        assert_eq!(
            check("inputMapper", json!({"a": "$.entity_id", "vendor_id": "$.payload["})),
            "inputMapper: vendor_id: \"$.payload[\" is no JSONPath: it ends where a `]` is missing at position 11"
        );
    }
}
