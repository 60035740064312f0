use proptest::prelude::*;

use super::*;

fn data() -> impl Strategy<Value = Map<String, Value>> {
    let fields = proptest::sample::select(vec![
        "workflowName",
        "workflowVersion",
        "input",
        "output",
        "error",
        "errorCode",
        "reason",
        "stepName",
        "attempt",
        "result",
        "retryAfter",
        "token",
        "metadata",
        "payload",
        "resumeAt",
        "eventName",
        "matchCriteria",
        "timeoutAt",
        "since",
        "task",
        "job",
        "outcome",
        "eventId",
        "data",
        "state",
        "errorCategory",
    ]);
    let values = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|float| json!(float)),
        (0..4_u32).prop_map(Value::from),
        (AT..AT + 99).prop_map(Value::from),
        ".{0,4}".prop_map(Value::from),
        proptest::sample::select(vec!["event", "elapsed", "ended", "failed", "a"]).prop_map(Value::from),
        Just(json!({"a": [1, {"b": null}]})),
        Just(json!([[], {}])),
    ];
    proptest::collection::btree_map(fields.prop_map(str::to_owned), values, 0..6)
        .prop_map(|fields| fields.into_iter().collect())
}

/// A log that the tables allow: each byte chooses among all that could follow.
fn legal(choices: &[u8]) -> Vec<(RunEventType, u128)> {
    let tables: Vec<_> = GRIDS.iter().map(|(entity, _)| (*entity, table(*entity))).collect();
    let mut now: BTreeMap<(RunEntity, u128), &'static str> = BTreeMap::new();
    let mut log = Vec::new();
    for choice in choices {
        let running = now.get(&(RunEntity::Run, 0)) == Some(&"running");
        let mut possible = Vec::new();
        for (entity, table) in &tables {
            let numbers = if *entity == RunEntity::Run { 0..1 } else { 1..4 };
            // Ends are rare, or logs would be short.
            let may = *entity == RunEntity::Run && (!running || *choice == 255)
                || *entity != RunEntity::Run && running;
            for number in numbers.filter(|_| may) {
                let state = now.get(&(*entity, number)).copied().unwrap_or("absent");
                let next = table.iter().filter(|((from, _), _)| *from == state);
                possible.extend(next.filter_map(|((_, kind), next)| Some((*kind, number, (*next)?))));
            }
        }
        let Some((kind, number, next)) = possible.get(usize::from(*choice) % possible.len().max(1)).copied()
        else {
            break;
        };
        now.insert((kind.entity(), number), next);
        log.push((kind, number));
    }
    log
}

proptest! {
    #[test]
    fn a_legal_log_folds_whatever_its_details_are(
        choices in proptest::collection::vec(any::<u8>(), 0..60),
        details in proptest::collection::vec(data(), 60),
    ) {
        let log = legal(&choices);
        let mut history = RunHistory::new();
        for ((kind, number), details) in log.iter().zip(details) {
            prop_assert_eq!(append(&mut history, draft(*kind, *number, Value::Object(details))), Ok(()));
            let end = draft(RunEventType::RunCancelled, 0, json!({}));
            if history.state().is_some_and(|state| !state.is_terminal()) {
                prop_assert_eq!(history.check_all(history.closings().iter().chain([&end])), Ok(()));
            }
        }
        prop_assert_eq!(history.view().is_some(), !log.is_empty());
        if let Some(view) = history.view() {
            let json = serde_json::to_string(&view).unwrap();
            prop_assert_eq!(serde_json::from_str::<RunView<'_>>(&json).unwrap(), view);
        }
        if history.state().is_some_and(RunState::is_terminal) {
            for kind in RunEventType::ALL {
                for number in 0..5 {
                    let more = append(&mut history, draft(*kind, number, json!({})));
                    prop_assert!(more.is_err(), "{kind}");
                }
            }
        }
    }

    #[test]
    fn any_log_whatsoever_is_folded_or_refused(
        events in proptest::collection::vec((proptest::sample::select(RunEventType::ALL), 0..3_u128, data()), 0..30),
    ) {
        let mut history = RunHistory::new();
        let mut taken = Vec::new();
        for (kind, number, details) in events {
            let next = draft(kind, number, Value::Object(details));
            if append(&mut history, next.clone()).is_ok() {
                taken.push(next);
            }
        }
        prop_assert_eq!(RunHistory::new().check_all(&taken), Ok(()));
        prop_assert_eq!(folded(taken), history);
    }

    #[test]
    fn what_is_let_in_can_be_read(kind in proptest::sample::select(RunEventType::ALL), details in data()) {
        let id = id_of(kind.entity(), 1);
        if let Ok(draft) = read_draft(kind, Some(&id), details.clone()) {
            prop_assert_eq!(&draft.event_data, &details);
            if kind == RunEventType::WaitCreated {
                prop_assert_ne!(WaitFor::of(&details), WaitFor::Unknown);
            }
        }
    }
}
