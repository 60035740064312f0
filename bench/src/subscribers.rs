//! Subscriptions as a busy tenant has them: one or a few that an event is for, among many that it is not
//! for. And the event types that they are about, fifty of them.

use anyhow::Context;
use ledgerline_drains::NewSubscription;
use ledgerline_event::Name;
use ledgerline_ledger::system_clock;
use ledgerline_stage::Stage;
use ledgerline_subscription::WorkflowType;
use serde_json::{Value, json};

/// How many subscriptions there are.
pub(crate) const SIZES: [usize; 3] = [10, 100, 1_000];
/// Matches one event type in ten.
pub(crate) const ONE_IN_TEN: &str = "shop.refund.*";
/// An event type that it matches.
pub(crate) const MATCHED: &str = "shop.refund.created";
/// What is started.
pub(crate) const WORKFLOW_TYPE: &str = "review";

const ENTITIES: [&str; 10] =
    ["order", "invoice", "price", "item", "customer", "refund", "parcel", "basket", "rating", "coupon"];
const CHANGES: [&str; 5] = ["created", "changed", "approved", "rejected", "closed"];

/// The `number`th event type, counted round and round: each entity comes once in ten.
pub(crate) fn event_type(number: usize) -> String {
    let entity = ENTITIES[number % ENTITIES.len()];
    let change = CHANGES[number / ENTITIES.len() % CHANGES.len()];
    format!("shop.{entity}.{change}")
}

/// An event type that never was before, like the `number`th of the others.
pub(crate) fn new_event_type(number: usize) -> String {
    format!("{}_{number}", event_type(number))
}

/// The `number`th glob of those that match none of these: a third each are literals, have a `*` at the end
/// only, and have one elsewhere. Of the last, some begin as the events do and some with the `*`.
pub(crate) fn bystander(number: usize) -> String {
    match number % 6 {
        0 | 3 => format!("warehouse_{number}.stock.counted"),
        1 | 4 => format!("warehouse_{number}.*"),
        2 => format!("shop.*.audited_by_{number}"),
        _ => format!("*.archived_{number}"),
    }
}

/// Gives `tenant` a workflow type of kind `task`.
pub(crate) async fn register(stage: &Stage, tenant: &Name) -> anyhow::Result<()> {
    let workflow_type =
        json!({ "workflowType": WORKFLOW_TYPE, "kind": "task", "createdAt": system_clock()() });
    let workflow_type: WorkflowType = serde_json::from_value(workflow_type)?;
    Ok(stage.registry().register(tenant, &workflow_type).await?)
}

/// Subscribes `tenant` to `glob`; a start says which event and entity it is about.
pub(crate) async fn subscribe(stage: &Stage, tenant: &Name, glob: &str) -> anyhow::Result<()> {
    let new: Value = json!({
        "eventTypeGlob": glob,
        "workflowType": WORKFLOW_TYPE,
        "inputMapper": { "event": "$.event_id", "entity": "$.entity_id" },
    });
    let new: NewSubscription = serde_json::from_value(new)?;
    stage.registry().subscribe(tenant, new).await.with_context(|| format!("subscribing to {glob}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use ledgerline_subscription::GlobSet;

    use super::*;

    #[test]
    fn fifty_types_of_which_one_in_ten_is_matched_and_none_by_a_bystander() {
        let types: std::collections::BTreeSet<String> = (0..1_000).map(event_type).collect();
        assert_eq!(types.len(), 50);
        let matched = GlobSet::new([ONE_IN_TEN]);
        let count = (0..1_000).filter(|n| !matched.matching(&event_type(*n)).is_empty()).count();
        assert_eq!((count, matched.matching(MATCHED).len()), (100, 1));
        let globs: Vec<String> = (0..1_000).map(bystander).collect();
        let bystanders = GlobSet::new(globs.iter().map(String::as_str));
        assert!(types.iter().all(|event_type| bystanders.matching(event_type).is_empty()));
        assert!((0..1_000).all(|n| bystanders.matching(&new_event_type(n)).is_empty()));
    }
}
