//! What holds for all subscriptions and events, not only for examples.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use ledgerline_event::Event;
use ledgerline_subscription::{FAN_OUT, Matcher, Subscription, Verdict};
use proptest::{prelude::*, sample::select};
use serde_json::{Map, Value, json};

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-c]{0,3}|\\PC{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn event() -> impl Strategy<Value = Event> {
    let types = select(vec!["a", "a.b", "b.a", "Task Failed", "run_done", "ü.x"]);
    let via = prop::collection::vec("sub_[0-9]", 0..10);
    let properties = prop::collection::btree_map("[a-c]", json_value(), 0..4);
    (types, via, properties).prop_map(|(event_type, via, properties)| {
        serde_json::from_value(json!({
            "eventId": "e", "tenantId": "t", "appName": "a", "entityType": "E", "entityId": "i",
            "eventType": event_type, "timestamp": 1_767_453_739_640_u64, "context": {"via": via},
            "properties": properties,
        }))
        .unwrap()
    })
}

/// Filters made of pieces that mostly fit together.
fn filter() -> impl Strategy<Value = String> {
    let leaf = select(vec![
        "event",
        "event.properties",
        "event.properties.a",
        "event.properties.b.a",
        "event.properties.c[0]",
        "event.context.via",
        "event.?nope",
        "1",
        "-1",
        "2u",
        "1.5",
        "'a'",
        "b'a'",
        "null",
        "true",
        "[]",
        "{}",
        "x",
        "int",
        "9223372036854775807",
        "optional.none()",
    ]);
    let leaf = leaf.prop_map(str::to_owned);
    leaf.prop_recursive(4, 24, 3, |inner| {
        let operators = select(vec![
            "&&", "||", "==", "!=", "<", ">=", "+", "-", "*", "/", "%", "in", ".a +", "? 1 :", "", "=",
        ]);
        let calls = select(vec![
            "size(",
            "!(",
            "-(",
            "string(",
            "int(",
            "double(",
            "bool(",
            "type(",
            "dyn(",
            "has(",
            "[",
            "(",
            "event.properties.a.all(x, ",
            "event.properties.map(x, ",
            "[1, 2].exists(x, ",
            "'a'.matches(",
            "event.properties.b.filter(x, ",
            "[1].exists_one(x, ",
            "optional.of(",
            "uint(",
            "bytes(",
        ]);
        prop_oneof![
            (inner.clone(), operators, inner.clone()).prop_map(|(a, op, b)| format!("{a} {op} {b}")),
            (calls, inner).prop_map(|(call, a)| {
                let close = if call.ends_with('[') { "]" } else { ")" };
                format!("{call}{a}{close}")
            }),
        ]
    })
}

fn recipe() -> impl Strategy<Value = String> {
    let beginnings =
        select(vec!["$", "$.payload", "$.properties.a", "$['payload']", "$.entity_id", "literal:", ""]);
    let rest = prop::collection::vec(
        select(vec![
            ".a",
            ".b",
            "[0]",
            "[-1]",
            "[*]",
            ".*",
            "..a",
            "..*",
            "[0,1]",
            "[::-1]",
            "[?@.a]",
            "[?@.a > 1 && @ != 'a']",
            "[?length(@.a) > 0]",
            "[?count($..*) > 3]",
            "[?match(@.a, 'a.*')]",
            "['a']",
            "[\"\\u00fc\"]",
            "[",
            "'",
        ]),
        0..4,
    );
    (beginnings, rest).prop_map(|(beginning, rest)| format!("{beginning}{}", rest.concat()))
}

/// Reasons for which a subscription is not written though it can be compiled.
const UNFIT: [&str; 4] = [
    "no event has a field",
    "true or false is needed",
    "is an object and has no index",
    "with nothing inside",
];

fn subscription(id: usize) -> impl Strategy<Value = Subscription> {
    let glob = prop_oneof![
        select(vec!["*", "a", "a.*", "?.?", "Task *", "r*"]).prop_map(str::to_owned),
        "[a-b.*?# \n]{0,4}"
    ];
    let mapper = prop::collection::btree_map("[a-b]", recipe(), 0..3);
    let parts = (glob, prop::option::of(filter()), prop::option::of(mapper), prop::bool::weighted(0.8));
    parts.prop_map(move |(glob, filter, mapper, enabled): (_, _, Option<BTreeMap<_, _>>, _)| {
        serde_json::from_value(json!({
            "subscriptionId": format!("sub_{id}"), "tenantId": "t", "drainerId": "d", "eventTypeGlob": glob,
            "workflowType": "w", "filterExpr": filter, "inputMapper": mapper, "enabled": enabled,
            "createdAt": 1_767_453_739_640_u64,
        }))
        .unwrap()
    })
}

fn subscriptions() -> impl Strategy<Value = Vec<Subscription>> {
    (0..12_usize).prop_flat_map(|count| (0..count).map(subscription).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn whatever_is_accepted_is_decided_without_a_panic(subscription in subscription(1), event in event()) {
        let accepted = subscription.check();
        let matcher = Matcher::new(vec![subscription]);
        let verdict = matcher.decide_one("sub_1", &event).unwrap();
        match (accepted, verdict) {
            // What can work on no event is refused when it is written, and compiled where it was stored before.
            (Err(invalid), _) if UNFIT.iter().any(|unfit| invalid.reason.contains(unfit)) => {}
            (Err(invalid), Verdict::Failed { reason }) => prop_assert_eq!(reason, invalid.to_string()),
            (Err(invalid), other) => prop_assert!(false, "{} yet {:?}", invalid, other),
            (Ok(()), Verdict::Failed { reason }) => prop_assert!(!reason.contains("cannot be evaluated"), "{}", reason),
            (Ok(()), Verdict::Start { .. } | Verdict::Filtered | Verdict::Lacking { .. }) => {}
            (Ok(()), other) => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn the_order_in_which_subscriptions_come_makes_no_difference(
        (sorted, shuffled) in subscriptions().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        event in event(),
    ) {
        let (sorted, shuffled) = (Matcher::new(sorted), Matcher::new(shuffled));
        prop_assert_eq!(sorted.decide(&event), shuffled.decide(&event));
        prop_assert_eq!(sorted.explain(&event), shuffled.explain(&event));
    }

    #[test]
    fn deciding_agrees_with_touching_explaining_and_the_limits(all in subscriptions(), event in event()) {
        let matcher = Matcher::new(all);
        let decided = matcher.decide(&event);
        prop_assert_eq!(matcher.touches(&event.event_type), !decided.is_empty());
        let starting = |verdict: &Verdict| matches!(verdict, Verdict::Start { .. });
        prop_assert!(decided.iter().filter(|one| starting(&one.verdict)).count() <= FAN_OUT);
        let explained = matcher.explain(&event);
        prop_assert_eq!(explained.len(), matcher.subscriptions().len());
        for one in &decided {
            prop_assert!(one.subscription.enabled);
            let id = &one.subscription.subscription_id;
            let explanation = explained.iter().find(|explanation| explanation.subscription_id == *id).unwrap();
            let input = match &one.verdict {
                Verdict::Start { input } | Verdict::Loop { input } | Verdict::Capped { input } => Some(input),
                Verdict::Filtered | Verdict::Lacking { .. } | Verdict::InVia | Verdict::Failed { .. } => None,
            };
            prop_assert_eq!(explanation.input.as_ref(), input);
            prop_assert_eq!(explanation.matches, input.is_some());
        }
    }

    #[test]
    fn no_filter_text_panics_or_overflows(text in r#"[a-z0-9'"\\()\[\]{}.,:?!=<>+*/%&| \nüeventrb-]{0,300}"#) {
        let _ = ledgerline_subscription::Filter::compile(&text);
    }
}
