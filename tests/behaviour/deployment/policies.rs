//! What each role of the template may do, and what it may not.

use std::collections::BTreeSet;

use ledgerline_store::keys;
use serde_yaml_ng::Value;

use super::template::{resources, template, text};

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
fn no_policy_allows_changing_or_deleting_an_event() {
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

fn managed<'a>(template: &'a Value, name: &str) -> &'a Value {
    let policies = resources(template, "AWS::IAM::ManagedPolicy");
    policies.iter().find(|(id, _)| *id == name).unwrap_or_else(|| panic!("no policy is called {name}")).1
}

/// The only statement on the control table itself.
fn on_control<'a>(statements: &[&'a Value]) -> &'a Value {
    let found: Vec<_> = statements.iter().filter(|one| one["Resource"] == "ControlTable").collect();
    let [only] = found[..] else { panic!("one statement: {found:?}") };
    only
}

fn leading_keys(statement: &Value) -> Vec<&str> {
    let keys = &statement["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"];
    keys.as_sequence().unwrap().iter().map(text).collect()
}

/// The code of its users runs with it.
#[test]
fn a_runner_may_change_runs_and_what_they_start_and_sees_no_keys_cursors_or_subscriptions() {
    let template = template();
    let mut statements = Vec::new();
    collect_statements(managed(&template, "RunnerPolicy"), &mut statements);
    let patterns = leading_keys(on_control(&statements));
    let allowed = |pk: &str| {
        patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => pk.starts_with(beginning),
            None => pk == *pattern,
        })
    };
    let needed = [
        keys::run("t", "r").pk,
        keys::run_entry("t", "r", 1).pk,
        keys::run_timer("t", "r", "e").pk,
        keys::run_awaits("t", "r", "TASK", "e").pk,
        keys::waiters("t", "e", None),
        keys::sent_events("t", "e", Some(1)),
        keys::consumed_by("t", "e"),
        keys::send_claim("t", "e").pk,
        keys::hook("d").pk,
        keys::named_hook("t", "token").pk,
        keys::runnable("w").pk,
        keys::task("t", "r"),
        keys::job_partition("t", "j"),
    ];
    for pk in needed {
        assert!(allowed(&pk), "{pk}");
    }
    let others = [
        keys::api_key("k").pk,
        keys::failures("t"),
        keys::drains("t"),
        keys::subscriptions("t"),
        keys::workflow_types("t"),
        keys::parked("t"),
        keys::tenant("t").pk,
        keys::marker("t", "k").pk,
        keys::late_arrivals("t"),
    ];
    for pk in others {
        assert!(!allowed(&pk), "{pk}");
    }
    let (_, role) =
        resources(&template, "AWS::IAM::Role").into_iter().find(|(id, _)| *id == "RunnerRole").unwrap();
    assert_eq!(role["ManagedPolicyArns"][0], "RunnerPolicy");
    assert!(statements.iter().all(|statement| statement["Resource"] != "EventsTable"));
}

/// What a worker's machine may do is handed out more freely than anything else here.
#[test]
fn a_worker_may_hold_and_end_tasks_and_see_nothing_else_of_the_control_table() {
    let template = template();
    let mut statements = Vec::new();
    collect_statements(managed(&template, "WorkerPolicy"), &mut statements);
    let held = on_control(&statements);
    assert_eq!(actions(held), BTreeSet::from(["dynamodb:GetItem", "dynamodb:UpdateItem"]));
    assert_eq!(leading_keys(held), ["TASK#*"]);
    assert!(keys::task("t", "r").starts_with("TASK#"));
    let tables: BTreeSet<&str> = statements
        .iter()
        .flat_map(|statement| actions(statement))
        .filter(|action| action.contains("dynamodb"))
        .collect();
    assert_eq!(tables.len(), 2, "{tables:?}");
}
