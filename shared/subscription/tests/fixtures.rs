//! The producers and the subscriptions that the product was made for.

#![allow(clippy::unwrap_used)]

use ledgerline_event::Event;
use ledgerline_subscription::{Matcher, Subscription, Verdict};
use serde_json::{Value, json};

fn event(event_type: &str, entity: (&str, &str), source: &str, caused_by: &str, properties: Value) -> Event {
    serde_json::from_value(json!({
        "eventId": "evnt_01J0XYZ", "tenantId": "acme", "appName": "platform", "eventType": event_type,
        "entityType": entity.0, "entityId": entity.1, "timestamp": 1_779_719_000_000_u64,
        "sourceSystem": source, "causedBy": caused_by, "properties": properties,
    }))
    .unwrap()
}

fn producers() -> [Event; 8] {
    let price = json!({
        "old_price": 1.42, "new_price": 1.48, "bid_id": "B5875", "customer_id": "2147", "approved_by": "mike",
        "proposed_action_id": 8421,
    });
    [
        event(
            "sync.tier_completed",
            ("tier", "gold"),
            "sync",
            "sync:tier=gold",
            json!({"rows": 512, "ok": true}),
        ),
        event(
            "sync.tier_completed",
            ("tier", "gold"),
            "sync",
            "sync:tier=gold",
            json!({"error": "timeout", "ok": false}),
        ),
        event(
            "hitl.approved",
            ("action", "8421"),
            "hitl",
            "hitl:api:decide",
            json!({"proposed_action_id": 8421}),
        ),
        event(
            "hitl.rejected",
            ("action", "8422"),
            "hitl",
            "hitl:api:decide",
            json!({"proposed_action_id": 8422}),
        ),
        event("price.changed", ("item", "10472"), "drain", "drain:push_type=bulk_cost_basis", price),
        event(
            "email.parsed",
            ("email", "m-1"),
            "email",
            "email:mailbox=orders",
            json!({"lines": [{"sku": "a"}, {"sku": "b"}]}),
        ),
        event("vendor.cost_changed", ("vendor", "V77"), "platform", "workflow:costs", json!({"cost": 12})),
        event(
            "ar.bucket_moved",
            ("customer", "2147"),
            "platform",
            "workflow:ar",
            json!({"from": "30", "to": "60"}),
        ),
    ]
}

fn subscriptions() -> Vec<Subscription> {
    let one = |(index, (glob, workflow, more)): (usize, (&str, &str, Value))| {
        let mut record = json!({
            "subscriptionId": format!("sub_{index}"), "tenantId": "acme", "drainerId": "workflow_runner",
            "eventTypeGlob": glob, "workflowType": workflow, "createdAt": 1_779_718_000_000_u64,
        });
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(record).unwrap()
    };
    let rows = [
        ("vendor.cost_changed", "vendor_cost_review", json!({"inputMapper": {"vendor_id": "$.entity_id"}})),
        ("ar.*", "recompute_customer_health", json!({})),
        ("sync.tier_completed", "alert", json!({"filterExpr": "has(event.properties.error)"})),
        (
            "hitl.*",
            "push",
            json!({"inputMapper": {"id": "$.payload.proposed_action_id", "outcome": "$.event_type"}}),
        ),
        (
            "price.*",
            "reprice",
            json!({
                "filterExpr": "event.properties.new_price > event.properties.old_price && event.sourceSystem == 'drain'",
                "inputMapper": {"bid": "$.payload.bid_id", "by": "$.caused_by", "mode": "literal:bulk"},
            }),
        ),
        (
            "email.parsed",
            "order",
            json!({"inputMapper": {"skus": "$.payload_json.lines[*].sku", "at": "$.occurred_at"}}),
        ),
    ];
    rows.into_iter().enumerate().map(one).collect()
}

#[test]
fn every_producer_starts_what_subscribes_to_it() {
    for subscription in subscriptions() {
        assert_eq!(subscription.check(), Ok(()));
    }
    let matcher = Matcher::new(subscriptions());
    let expected = [
        json!([["alert", "filtered"]]),
        json!([["alert", {"error": "timeout", "ok": false}]]),
        json!([["push", {"id": 8421, "outcome": "hitl.approved"}]]),
        json!([["push", {"id": 8422, "outcome": "hitl.rejected"}]]),
        json!([["reprice", {"bid": "B5875", "by": "drain:push_type=bulk_cost_basis", "mode": "bulk"}]]),
        json!([["order", {"skus": ["a", "b"], "at": 1_779_719_000_000_u64}]]),
        json!([["vendor_cost_review", {"vendor_id": "V77"}]]),
        json!([["recompute_customer_health", {"from": "30", "to": "60"}]]),
    ];
    for (event, expected) in producers().iter().zip(expected) {
        let shown = |verdict: Verdict| match verdict {
            Verdict::Start { input } => Value::Object(input),
            Verdict::Filtered => "filtered".into(),
            other => panic!("{}: {other:?}", event.event_type),
        };
        let decided = matcher.decide(event).into_iter();
        let found: Vec<Value> =
            decided.map(|one| json!([one.subscription.workflow_type, shown(one.verdict)])).collect();
        assert_eq!(Value::from(found), expected, "{}", event.event_type);
        assert!(matcher.touches(&event.event_type));
    }
    assert!(!matcher.touches("ar"), "`ar.*` needs the dot");
    assert!(!matcher.touches("workflow.dispatch_failed"));
}
