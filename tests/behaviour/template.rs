//! Local mode is wired as the template wires AWS.

use ledgerline::local::wiring;
use ledgerline_event::keys::{ATTRIBUTES, Index};
use ledgerline_ledger::Names;
use serde_yaml_ng::Value;

/// The template with `${Stage}` filled in and every reference turned into the logical id it names.
fn template() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../template.yaml");
    let text = std::fs::read_to_string(path).unwrap().replace("${Stage}", "dev");
    plain(serde_yaml_ng::from_str(&text).unwrap())
}

fn plain(value: Value) -> Value {
    match value {
        Value::Tagged(tagged) => match (tagged.tag.to_string().as_str(), plain(tagged.value)) {
            ("!GetAtt", Value::String(path)) => {
                Value::String(path.split('.').next().unwrap_or_default().to_owned())
            }
            (_, inner) => inner,
        },
        Value::Sequence(items) => Value::Sequence(items.into_iter().map(plain).collect()),
        Value::Mapping(entries) => {
            Value::Mapping(entries.into_iter().map(|(key, value)| (key, plain(value))).collect())
        }
        other => other,
    }
}

fn resources<'a>(template: &'a Value, kind: &str) -> Vec<(&'a str, &'a Value)> {
    let all = template["Resources"].as_mapping().unwrap();
    all.iter()
        .filter(|(_, resource)| resource["Type"] == kind)
        .map(|(id, resource)| (id.as_str().unwrap(), &resource["Properties"]))
        .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("text, not {value:?}"))
}

#[test]
fn the_events_table_has_the_same_keys_and_indexes() {
    let template = template();
    let names = Names::of_stage("dev");
    let tables = resources(&template, "AWS::DynamoDB::Table");
    let table = |name: &str| tables.iter().find(|(_, table)| table["TableName"] == name).unwrap().1;
    let events = table(&names.events_table);
    let defined: Vec<&str> = events["AttributeDefinitions"]
        .as_sequence()
        .unwrap()
        .iter()
        .map(|entry| text(&entry["AttributeName"]))
        .collect();
    assert_eq!(defined, ATTRIBUTES);
    let indexes = events["GlobalSecondaryIndexes"].as_sequence().unwrap();
    assert_eq!(indexes.len(), 7);
    for (number, index) in (1_u8..).zip(indexes) {
        let expected = Index::Gsi(number);
        assert_eq!(index["IndexName"].as_str(), expected.name());
        let schema: Vec<_> =
            index["KeySchema"].as_sequence().unwrap().iter().map(|key| text(&key["AttributeName"])).collect();
        assert_eq!(schema, [expected.attributes().0, expected.attributes().1]);
        assert_eq!(index["Projection"]["ProjectionType"], "ALL");
    }
    for table in [events, table(&names.control_table)] {
        assert_eq!(table["TimeToLiveSpecification"]["AttributeName"], "ttl");
        assert_eq!(table["BillingMode"], "PAY_PER_REQUEST");
    }
}

#[test]
fn queues_rules_and_event_sources_are_the_same() {
    let template = template();
    let names = Names::of_stage("dev");
    let wiring = wiring(&names);
    let queues = resources(&template, "AWS::SQS::Queue");
    let queue_of = |id: &str| {
        text(&queues.iter().find(|(logical, _)| *logical == id).unwrap().1["QueueName"]).to_owned()
    };
    assert_eq!(queues.len(), wiring.queues.len());
    for queue in &wiring.queues {
        let declared = queues.iter().find(|(_, found)| found["QueueName"] == *queue.name).unwrap().1;
        assert_eq!(declared["VisibilityTimeout"], queue.visibility_seconds, "{}", queue.name);
        if let Some(seconds) = queue.retention_seconds {
            assert_eq!(declared["MessageRetentionPeriod"], seconds, "{}", queue.name);
        }
        let redrive = declared.get("RedrivePolicy").map(|policy| {
            let receives = policy["maxReceiveCount"].as_u64().unwrap();
            (queue_of(text(&policy["deadLetterTargetArn"])), u32::try_from(receives).unwrap())
        });
        assert_eq!(redrive, queue.redrive, "{}", queue.name);
    }

    let rules = resources(&template, "AWS::Events::Rule");
    assert_eq!(rules.len(), wiring.rules.len());
    for rule in &wiring.rules {
        let declared = rules.iter().find(|(_, found)| found["Name"] == *rule.name).unwrap().1;
        assert_eq!(declared["EventPattern"]["detail-type"][0], rule.detail_type);
        let target = &declared["Targets"][0];
        assert_eq!(target["Id"], *rule.target_id);
        assert_eq!(queue_of(text(&target["Arn"])), rule.target_queue);
        assert_eq!(queue_of(text(&target["DeadLetterConfig"]["Arn"])), names.dead_letter_queue);
        assert_eq!(target["RetryPolicy"]["MaximumRetryAttempts"], 3);
        assert_eq!(target["RetryPolicy"]["MaximumEventAgeInSeconds"], 3600);
    }

    let mut declared = Vec::new();
    for (_, function) in resources(&template, "AWS::Serverless::Function") {
        let Some(events) = function.get("Events").and_then(Value::as_mapping) else { continue };
        for source in events.values().filter(|source| source["Type"] == "SQS") {
            let source = &source["Properties"];
            assert_eq!(source["FunctionResponseTypes"][0], "ReportBatchItemFailures");
            let name = text(&function["FunctionName"]).trim_start_matches("dev-").to_owned();
            let window = source.get("MaximumBatchingWindowInSeconds").and_then(Value::as_u64).unwrap_or(0);
            declared.push((
                name,
                queue_of(text(&source["Queue"])),
                source["BatchSize"].as_u64().unwrap(),
                window,
            ));
        }
    }
    for source in &wiring.sources {
        let expected = (
            source.function.to_owned(),
            source.queue.clone(),
            source.batch_size as u64,
            source.window_seconds,
        );
        assert!(declared.contains(&expected), "{expected:?} in {declared:?}");
    }
    assert_eq!(declared.len(), wiring.sources.len());
}

#[test]
fn no_policy_lets_anybody_change_or_delete_an_event() {
    let template = template();
    let mut found = 0;
    for (id, function) in resources(&template, "AWS::Serverless::Function")
        .into_iter()
        .chain(resources(&template, "AWS::IAM::Role"))
        .chain(resources(&template, "AWS::IAM::Policy"))
    {
        let mut statements = Vec::new();
        collect_statements(function, &mut statements);
        for statement in statements {
            let written = serde_yaml_ng::to_string(statement).unwrap();
            if written.contains("EventsTable") && written.contains("dynamodb:") {
                found += 1;
                for forbidden in ["UpdateItem", "DeleteItem", "BatchWrite", "PartiQL", "dynamodb:*"] {
                    assert!(!written.contains(forbidden), "{id}: {written}");
                }
            }
        }
    }
    assert!(found >= 2, "the saver and the API have statements on the table");
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
