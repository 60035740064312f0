//! What the template lets everybody do, and what it does not.

use std::collections::BTreeSet;

use ledgerline_ledger::control::keys;
use serde_yaml_ng::Value;

use crate::template::{resources, template, text};

/// SQS takes no policy that is about several queues.
#[test]
fn every_queue_has_a_policy_of_its_own_that_refuses_what_is_not_encrypted() {
    let template = template();
    let mut guarded = BTreeSet::new();
    for (id, policy) in resources(&template, "AWS::SQS::QueuePolicy") {
        let [queue] = policy["Queues"].as_sequence().unwrap().as_slice() else { panic!("{id}: one queue") };
        let statements = policy["PolicyDocument"]["Statement"].as_sequence().unwrap();
        for statement in statements {
            assert_eq!(statement["Resource"], *queue, "{id}");
        }
        let tls_only = statements.iter().any(|statement| {
            statement["Effect"] == "Deny" && statement["Condition"]["Bool"]["aws:SecureTransport"] == "false"
        });
        assert!(tls_only, "{id}");
        assert!(guarded.insert(text(queue)), "{id}: the queue has two policies");
    }
    let queues: BTreeSet<&str> = resources(&template, "AWS::SQS::Queue").iter().map(|(id, _)| *id).collect();
    assert_eq!(guarded, queues);
}

/// The actions that a statement allows.
fn actions(statement: &Value) -> BTreeSet<&str> {
    match &statement["Action"] {
        Value::Sequence(actions) => actions.iter().map(text).collect(),
        one => BTreeSet::from([text(one)]),
    }
}

#[test]
fn no_policy_lets_anybody_change_or_delete_an_event() {
    let template = template();
    let mut may_put = Vec::new();
    let mut found = 0;
    for (id, function) in resources(&template, "AWS::Serverless::Function")
        .into_iter()
        .chain(resources(&template, "AWS::IAM::Role"))
        .chain(resources(&template, "AWS::IAM::Policy"))
        .chain(resources(&template, "AWS::IAM::ManagedPolicy"))
    {
        let mut statements = Vec::new();
        collect_statements(function, &mut statements);
        for statement in statements {
            let actions = actions(statement);
            if !actions.iter().any(|action| action.starts_with("dynamodb:") || action.contains('*')) {
                continue;
            }
            let resource = serde_yaml_ng::to_string(&statement["Resource"]).unwrap();
            assert!(!resource.contains("'*'"), "{id}: any table: {actions:?}");
            if !resource.contains("EventsTable") {
                continue;
            }
            found += 1;
            let of_the_stream = ["DescribeStream", "GetRecords", "GetShardIterator", "ListStreams"];
            let to_read = ["Query", "GetItem", "BatchGetItem"];
            for action in actions {
                let action = action.strip_prefix("dynamodb:").unwrap();
                if action == "PutItem" {
                    may_put.push(id);
                } else {
                    assert!(of_the_stream.contains(&action) || to_read.contains(&action), "{id}: {action}");
                }
            }
        }
    }
    assert!(found >= 3, "the saver, the dispatcher and the API have statements on the table");
    assert_eq!(may_put, ["SaveEventToDynamoRole"]);
}

fn collect_statements<'a>(value: &'a Value, into: &mut Vec<&'a Value>) {
    match value {
        Value::Mapping(entries) => {
            if entries.contains_key("Action") {
                into.push(value);
            }
            entries.values().for_each(|inner| collect_statements(inner, into));
        }
        Value::Sequence(items) => items.iter().for_each(|inner| collect_statements(inner, into)),
        _ => {}
    }
}

/// What a worker's machine may do is handed out more freely than anything else here.
#[test]
fn a_worker_may_hold_and_end_tasks_and_see_nothing_else_of_the_control_table() {
    let template = template();
    let (_, policy) = resources(&template, "AWS::IAM::ManagedPolicy")[0];
    let mut statements = Vec::new();
    collect_statements(policy, &mut statements);
    let on_control: Vec<_> = statements
        .iter()
        .filter(|statement| statement["Resource"].as_str().is_some_and(|arn| arn.contains("ControlTable")))
        .collect();
    let [held] = on_control[..] else { panic!("one statement: {on_control:?}") };
    assert_eq!(actions(held), BTreeSet::from(["dynamodb:GetItem", "dynamodb:UpdateItem"]));
    let keys = &held["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"];
    assert_eq!(keys.as_sequence().unwrap()[..], [Value::from("TASK#*")]);
    assert!(keys::task("t", "r").starts_with("TASK#"));
    let tables: BTreeSet<&str> = statements
        .iter()
        .flat_map(|statement| actions(statement))
        .filter(|action| action.contains("dynamodb"))
        .collect();
    assert_eq!(tables.len(), 2, "{tables:?}");
}
