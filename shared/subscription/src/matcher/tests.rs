use serde_json::json;

use super::*;

fn event(event_type: &str, via: &[&str]) -> Event {
    serde_json::from_value(json!({
        "eventId": "e1", "tenantId": "acme", "appName": "shop", "entityType": "item", "entityId": "10472",
        "eventType": event_type, "timestamp": 1_767_453_739_640_u64, "context": {"via": via},
        "properties": {"new_price": 1.48},
    }))
    .unwrap()
}

fn subscription(id: &str, glob: &str, more: Value) -> Subscription {
    let mut record = json!({
        "subscriptionId": id, "tenantId": "acme", "drainerId": "workflow_runner", "eventTypeGlob": glob,
        "workflowType": "review", "createdAt": 1_767_453_739_640_u64,
    });
    record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(record).unwrap()
}

fn verdicts(matcher: &Matcher, event: &Event) -> Vec<(String, &'static str)> {
    let name = |verdict: &Verdict| match verdict {
        Verdict::Start { .. } => "start",
        Verdict::Filtered => "filtered",
        Verdict::Lacking { .. } => "lacking",
        Verdict::InVia => "in via",
        Verdict::Loop { .. } => "loop",
        Verdict::Capped { .. } => "capped",
        Verdict::Failed { .. } => "failed",
    };
    let decided = matcher.decide(event);
    decided.iter().map(|one| (one.subscription.subscription_id.to_string(), name(&one.verdict))).collect()
}

#[test]
fn it_may_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Matcher>();
    shared::<GlobSet>();
}

#[test]
fn the_enabled_ones_that_match_decide_in_order_of_creation() {
    let matcher = Matcher::new(vec![
        subscription("sub_4", "price.*", json!({"inputMapper": {"id": "$.entity_id"}})),
        subscription("sub_1", "*", json!({})),
        subscription("sub_2", "price.*", json!({"enabled": false})),
        subscription("sub_3", "price.changed", json!({"filterExpr": "event.properties.new_price > 2"})),
        subscription("sub_5", "ar.*", json!({})),
    ]);
    let event = event("price.changed", &[]);
    let expected = [("sub_1", "start"), ("sub_3", "filtered"), ("sub_4", "start")];
    assert_eq!(verdicts(&matcher, &event), expected.map(|(id, verdict)| (id.to_owned(), verdict)));
    let decided = matcher.decide(&event);
    let input = |n: usize| match &decided[n].verdict {
        Verdict::Start { input } => Value::Object(input.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(input(0), json!({"new_price": 1.48}), "without a mapper the properties are the input");
    assert_eq!(input(2), json!({"id": "10472"}));
    assert!(matcher.touches("price.changed") && matcher.touches("x") && !matcher.touches("Task Failed"));
    assert_eq!(matcher.get("sub_2").unwrap().event_type_glob, "price.*");
    assert!(matcher.get("sub_9").is_none());
    assert_eq!(matcher.subscriptions().len(), 5);
}

#[test]
fn eight_start_and_the_rest_are_capped() {
    let mut all: Vec<Subscription> =
        (10..22).map(|n| subscription(&format!("sub_{n}"), "*", json!({}))).collect();
    all[1].filter_expr = Some("false".into());
    all[2].filter_expr = Some("event.properties.new_price".into());
    all[4].filter_expr = Some("event.properties.nothing > 1".into());
    let event = event("x", &["sub_13"]);
    let found: Vec<&str> =
        verdicts(&Matcher::new(all), &event).into_iter().map(|(_, verdict)| verdict).collect();
    let expected = [
        "start", "filtered", "failed", "in via", "lacking", "start", "start", "start", "start", "start",
        "start", "capped",
    ];
    assert_eq!(found, expected, "what failed takes a place; what does not fire takes none");
}

#[test]
fn a_long_way_here_is_a_loop_and_ones_own_events_do_not_fire_again() {
    let matcher =
        Matcher::new(vec![subscription("sub_1", "*", json!({})), subscription("sub_2", "*", json!({}))]);
    let via = ["a", "b", "c", "d", "e", "f", "g", "sub_2"];
    let verdicts_of =
        |via: &[&str]| verdicts(&matcher, &event("x", via)).into_iter().map(|(_, v)| v).collect::<Vec<_>>();
    assert_eq!(verdicts_of(&via), ["loop", "in via"]);
    assert_eq!(verdicts_of(&via[..7]), ["start", "start"]);
    // By hand, nothing of that counts.
    assert!(matches!(matcher.decide_one("sub_2", &event("y", &via)), Some(Verdict::Start { .. })));
    assert_eq!(matcher.decide_one("sub_9", &event("y", &via)), None);
}

#[test]
fn a_stored_one_that_does_not_compile_fails_the_events_it_would_match() {
    let matcher = Matcher::new(vec![
        subscription("sub_1", "price.*", json!({"filterExpr": "event.a >"})),
        subscription("sub_2", "price.*", json!({"inputMapper": {"a": "b"}})),
        subscription("sub_3", "*", json!({})),
    ]);
    let decided = matcher.decide(&event("price.changed", &[]));
    let reason = |n: usize| match &decided[n].verdict {
        Verdict::Failed { reason } => reason.clone(),
        other => panic!("{other:?}"),
    };
    assert!(reason(0).starts_with("filterExpr: at line 1, column 10: "), "{}", reason(0));
    assert!(reason(1).starts_with("inputMapper: a: "), "{}", reason(1));
    assert!(matches!(decided[2].verdict, Verdict::Start { .. }));
    assert_eq!(verdicts(&matcher, &event("ar.moved", &[])).len(), 1);
}

#[test]
fn a_missing_field_fails_with_the_reason() {
    let matcher =
        Matcher::new(vec![subscription("sub_1", "*", json!({"inputMapper": {"v": "$.payload.vendor"}}))]);
    let reason = "inputMapper: v: `$.payload.vendor` finds nothing in this event".to_owned();
    assert_eq!(matcher.decide_one("sub_1", &event("x", &[])), Some(Verdict::Failed { reason }));
}

#[test]
fn every_subscription_is_explained() {
    let matcher = Matcher::new(vec![
        subscription("sub_1", "ar.*", json!({})),
        subscription("sub_2", "*", json!({"enabled": false})),
        subscription("sub_3", "*", json!({"filterExpr": "false"})),
        subscription("sub_4", "*", json!({"inputMapper": {"id": "$.entity_id"}})),
        subscription("sub_5", "*", json!({"inputMapper": {"id": "$.payload.no"}})),
        subscription("sub_6", "*", json!({})),
        subscription("sub_7", "*", json!({"filterExpr": "event.properties.amount > 1"})),
    ]);
    let reasons = |event: &Event| -> Vec<String> {
        matcher.explain(event).into_iter().map(|explanation| explanation.reason).collect()
    };
    assert_eq!(
        reasons(&event("price.changed", &["sub_6"])),
        [
            "the glob `ar.*` does not match `price.changed`",
            "is disabled",
            "the filter is false",
            "starts `review`",
            "fails: inputMapper: id: `$.payload.no` finds nothing in this event",
            "it led to this event itself and does not fire again",
            "the event has no `amount`, which the filter needs; `has(…)` tells whether a field is there",
        ]
    );
    assert_eq!(
        reasons(&event("Task Completed", &[]))[5],
        "only globs that begin with `Task ` reach the system's own events"
    );
    let explained = serde_json::to_value(&matcher.explain(&event("price.changed", &[]))[3]).unwrap();
    assert_eq!(
        explained,
        json!({
            "subscriptionId": "sub_4", "eventTypeGlob": "*", "workflowType": "review", "matches": true,
            "reason": "starts `review`", "input": {"id": "10472"},
        })
    );
}
