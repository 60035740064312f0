//! Local mode is wired as the template wires AWS.

use std::{collections::BTreeSet, time::Duration};

use aws_sdk_dynamodb::types::{KeySchemaElement, TableDescription};
use ledgerline_drains::Drainers;
use ledgerline_event::{
    check_limits,
    keys::{ATTRIBUTES, Index},
};
use ledgerline_jobs::Thresholds;
use ledgerline_ledger::Names;
use ledgerline_local::{Parameters, provision, wiring};
use ledgerline_store::{DUE_INDEX, LIST_INDEX};
use ledgerline_worker::Config;
use serde_yaml_ng::Value;

use ledgerline_test_support::World;

/// The top of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The template with `${Stage}` filled in and every reference turned into the logical id it names.
pub(crate) fn template() -> Value {
    let text = std::fs::read_to_string(format!("{ROOT}/template.yaml")).unwrap().replace("${Stage}", "dev");
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

pub(crate) fn resources<'a>(template: &'a Value, kind: &str) -> Vec<(&'a str, &'a Value)> {
    let all = template["Resources"].as_mapping().unwrap();
    all.iter()
        .filter(|(_, resource)| resource["Type"] == kind)
        .map(|(id, resource)| (id.as_str().unwrap(), &resource["Properties"]))
        .collect()
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("text, not {value:?}"))
}

/// cargo-lambda adds `panic = "abort"` to a release profile that does not say how to panic, and every `catch_unwind` is
/// dead then.
#[test]
fn every_build_profile_unwinds_when_a_function_panics() {
    let manifest = std::fs::read_to_string(format!("{ROOT}/Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let profiles = manifest["profile"].as_table().unwrap();
    assert_eq!(profiles["release"]["panic"].as_str(), Some("unwind"));
    for (name, profile) in profiles {
        let panic = profile.get("panic").and_then(|panic| panic.as_str());
        assert!(panic.is_none_or(|panic| panic == "unwind"), "profile {name}");
    }
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

/// What makes up a table: its attributes with their types, its keys, and its indexes with theirs.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    attributes: BTreeSet<(String, String)>,
    keys: Vec<(String, String)>,
    indexes: Vec<IndexShape>,
}

/// Name, keys and projection.
type IndexShape = (String, Vec<(String, String)>, String);

impl Shape {
    fn declared(table: &Value) -> Self {
        let pairs = |list: &Value, second: &str| -> Vec<(String, String)> {
            let entries = list.as_sequence().unwrap().iter();
            entries.map(|entry| (text(&entry["AttributeName"]).into(), text(&entry[second]).into())).collect()
        };
        let indexes = table["GlobalSecondaryIndexes"].as_sequence().unwrap().iter().map(|index| {
            let name = text(&index["IndexName"]).to_owned();
            let projection = text(&index["Projection"]["ProjectionType"]).to_owned();
            (name, pairs(&index["KeySchema"], "KeyType"), projection)
        });
        let mut indexes: Vec<_> = indexes.collect();
        indexes.sort();
        Self {
            attributes: pairs(&table["AttributeDefinitions"], "AttributeType").into_iter().collect(),
            keys: pairs(&table["KeySchema"], "KeyType"),
            indexes,
        }
    }

    fn made(table: &TableDescription) -> Self {
        let keys = |schema: &[KeySchemaElement]| -> Vec<(String, String)> {
            schema.iter().map(|key| (key.attribute_name.clone(), key.key_type.to_string())).collect()
        };
        let indexes = table.global_secondary_indexes().iter().map(|index| {
            let projection = index.projection().and_then(|projection| projection.projection_type()).unwrap();
            (index.index_name().unwrap().to_owned(), keys(index.key_schema()), projection.to_string())
        });
        let mut indexes: Vec<_> = indexes.collect();
        indexes.sort();
        let attributes = table.attribute_definitions().iter();
        Self {
            attributes: attributes
                .map(|attribute| (attribute.attribute_name.clone(), attribute.attribute_type.to_string()))
                .collect(),
            keys: keys(table.key_schema()),
            indexes,
        }
    }
}

#[tokio::test]
async fn local_mode_makes_both_tables_as_they_are_declared() {
    let template = template();
    let declared = Names::of_stage("dev");
    let world = World::start().await;
    let made = &world.local.names;
    let tables = resources(&template, "AWS::DynamoDB::Table");
    assert_eq!(tables.len(), 2);
    for (declared, made) in
        [(&declared.events_table, &made.events_table), (&declared.control_table, &made.control_table)]
    {
        let (_, table) = tables.iter().find(|(_, table)| table["TableName"] == *declared.as_str()).unwrap();
        let described = world.clients().dynamo.describe_table().table_name(made).send().await.unwrap();
        assert_eq!(Shape::declared(table), Shape::made(described.table().unwrap()), "{declared}");
    }
}

#[test]
fn the_index_of_due_records_holds_keys_only_and_the_one_of_lists_whole_records() {
    let template = template();
    let names = Names::of_stage("dev");
    let tables = resources(&template, "AWS::DynamoDB::Table");
    let (_, control) =
        tables.iter().find(|(_, table)| table["TableName"] == *names.control_table.as_str()).unwrap();
    let shape = Shape::declared(control);
    let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(first, second)| ((*first).into(), (*second).into())).collect()
    };
    let attributes = owned(&[
        ("PK", "S"),
        ("SK", "S"),
        ("dueShard", "S"),
        ("dueAt", "N"),
        ("listIn", "S"),
        ("listAt", "S"),
    ]);
    assert_eq!(shape.attributes, attributes.into_iter().collect());
    let due = owned(&[("dueShard", "HASH"), ("dueAt", "RANGE")]);
    let list = owned(&[("listIn", "HASH"), ("listAt", "RANGE")]);
    let indexes = [
        (DUE_INDEX.to_owned(), due, "KEYS_ONLY".to_owned()),
        (LIST_INDEX.to_owned(), list, "ALL".to_owned()),
    ];
    assert_eq!(shape.indexes, indexes);
}

/// The only source of a function that is of a kind.
fn source<'a>(function: &'a Value, kind: &str) -> &'a Value {
    let sources = function["Events"].as_mapping().unwrap();
    let mut found = sources.values().filter(|source| source["Type"] == kind);
    let only = &found.next().unwrap_or_else(|| panic!("no source of the kind {kind}"))["Properties"];
    assert!(found.next().is_none(), "{kind}");
    only
}

/// How often a function runs by its schedule.
fn period(function: &Value) -> Duration {
    let schedule = text(&source(function, "Schedule")["Schedule"]);
    let minutes = schedule.strip_prefix("cron(0/").and_then(|rest| rest.strip_suffix(" * * * ? *)"));
    let minutes: u64 =
        minutes.unwrap_or_else(|| panic!("every so many minutes, not {schedule}")).parse().unwrap();
    assert_eq!(60 % minutes, 0, "an hour is not made of such pauses");
    Duration::from_secs(60 * minutes)
}

#[test]
fn the_dispatcher_hears_of_new_events_by_their_keys_and_sweeps_as_often_as_in_local_mode() {
    let template = template();
    let (_, dispatcher) = function(&template, "dispatcher");
    let stream = source(dispatcher, "DynamoDB");
    assert_eq!(stream["Stream"], "EventsTable");
    assert_eq!(
        template["Resources"]["EventsTable"]["Properties"]["StreamSpecification"]["StreamViewType"],
        "KEYS_ONLY"
    );
    let pattern: serde_json::Value =
        serde_json::from_str(text(&stream["FilterCriteria"]["Filters"][0]["Pattern"])).unwrap();
    // An event that expires wakes no drainer.
    assert_eq!(pattern, serde_json::json!({"eventName": ["INSERT"]}));

    assert_eq!(period(dispatcher), wiring(&Names::of_stage("dev")).sweep_every);
    // A sweep that runs into the next must not be the end of what it does.
    let timeout = dispatcher["Timeout"].as_u64().unwrap();
    assert!(Duration::from_secs(timeout) > wiring(&Names::of_stage("dev")).sweep_every, "{timeout}");
}

#[test]
fn running_tasks_are_checked_as_often_and_by_the_same_thresholds_as_in_local_mode() {
    let template = template();
    let (_, check) = function(&template, "health-check");
    assert_eq!(period(check), wiring(&Names::of_stage("dev")).health_every);
    let given = |parameter: &str| {
        let default = template["Parameters"][parameter]["Default"].as_u64().unwrap();
        assert_eq!(template["Parameters"][parameter]["Type"], "Number");
        default.to_string()
    };
    let thresholds = Thresholds::of_seconds(
        ("warning", &given("HealthWarningSeconds")),
        ("critical", &given("HealthCriticalSeconds")),
        ("overtime", &given("HealthOvertimeSeconds")),
    );
    assert_eq!(thresholds, Ok(Thresholds::default()));
}

#[test]
fn runs_are_looked_for_as_often_as_in_local_mode_and_come_again_only_after_the_function_has_ended() {
    let template = template();
    let names = Names::of_stage("dev");
    let wiring = wiring(&names);
    let (_, runner) = function(&template, "runner");
    assert_eq!(period(runner), wiring.runs_every);
    let runs = wiring.queues.iter().find(|queue| queue.name == names.run_queue).unwrap();
    let timeout = runner["Timeout"].as_u64().unwrap();
    assert!(u64::from(runs.visibility_seconds) > timeout, "{} {timeout}", runs.visibility_seconds);
    // The function sends to the queue that calls it, and Lambda would take that for a mistake.
    assert_eq!(runner["RecursiveLoop"], "Allow");
    let (_, dead_letters) = resources(&template, "AWS::SQS::Queue")
        .into_iter()
        .find(|(_, queue)| queue["QueueName"] == *names.dead_letter_queue)
        .unwrap();
    let senders = dead_letters["RedriveAllowPolicy"]["sourceQueueArns"].as_sequence().unwrap();
    for queue in [&names.ingest_queue, &names.run_queue] {
        assert!(senders.iter().any(|arn| text(arn).ends_with(&format!(":{queue}"))), "{queue}");
    }
}

#[test]
fn the_task_queue_hides_a_message_as_long_as_a_worker_does_and_gives_up_after_any_number_of_attempts() {
    let names = Names::of_stage("dev");
    let wiring = wiring(&names);
    let tasks = wiring.queues.iter().find(|queue| queue.name == names.task_queue).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("worker.toml");
    std::fs::write(&file, "[tasks.'*']\ncommand = 'true'").unwrap();
    let extension = Config::read(&file).unwrap().visibility_extension();
    assert_eq!(Duration::from_secs(tasks.visibility_seconds.into()), extension);
    let (_, receives) = tasks.redrive.clone().unwrap();
    assert!(check_limits(None, Some(receives)).is_err(), "a task may be tried {receives} times");
}

#[tokio::test]
async fn queues_of_an_earlier_version_are_wired_as_this_one_wires_them() {
    let store = ledgerline_test_support::Store::start(None).await;
    let mut wired = wiring(&store.names);
    let tasks = wired.queues.iter_mut().find(|queue| queue.name == store.names.task_queue).unwrap();
    tasks.visibility_seconds += 7;
    let expected = tasks.visibility_seconds.to_string();
    provision(&store.clients, &store.names, &wired, &Parameters::default()).await.unwrap();
    let queue = store.clients.sqs.get_queue_url().queue_name(&store.names.task_queue).send().await.unwrap();
    let wanted = aws_sdk_sqs::types::QueueAttributeName::VisibilityTimeout;
    let found = store.clients.sqs.get_queue_attributes().set_queue_url(queue.queue_url);
    let found = found.attribute_names(wanted.clone()).send().await.unwrap();
    assert_eq!(found.attributes.unwrap()[&wanted], expected);
}

#[test]
fn the_drainers_that_are_there_from_the_start_are_drainers() {
    let template = template();
    let given = text(&template["Parameters"]["Drainers"]["Default"]);
    assert_eq!(Drainers::parse(given), Drainers::parse(""));
}

/// A function by its name without the stage; its logical id too.
fn function<'a>(template: &'a Value, name: &str) -> (&'a str, &'a Value) {
    let functions = resources(template, "AWS::Serverless::Function");
    let named = functions.iter().find(|(_, function)| function["FunctionName"] == format!("dev-{name}"));
    *named.unwrap_or_else(|| panic!("no function is called {name}"))
}

/// The names in calls like `reads("NAME")`.
fn named_in<'a>(source: &'a str, reads: &str) -> BTreeSet<&'a str> {
    let call = format!("{reads}(\"");
    source.split(&call).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// The source of a function's wiring: its own, and those methods of the shared environment that it calls.
fn wiring_source(folder: &str, file: &str) -> String {
    let mut source = std::fs::read_to_string(format!("{ROOT}/{folder}/src/{file}")).unwrap();
    let shared = std::fs::read_to_string(format!("{ROOT}/shared/lambda/src/environment.rs")).unwrap();
    for method in shared.split("    pub ").skip(1) {
        let name =
            method.trim_start_matches("async ").strip_prefix("fn ").and_then(|rest| rest.split('(').next());
        if let Some(name) = name
            && [format!(".{name}("), format!("::{name}(")].iter().any(|call| source.contains(call))
        {
            source.push_str(method);
        }
    }
    source
}

/// The crate that wires a function, and the file in which it does. A program with workflows is a crate around the runner's.
fn wired_in(function: &Value) -> (&str, &str) {
    match text(&function["CodeUri"]) {
        "examples/workflows" => ("functions/runner", "lambda.rs"),
        own => (own, "main.rs"),
    }
}

#[test]
fn every_function_is_given_the_variables_that_it_reads_and_no_others() {
    let template = template();
    let variables = |of: &Value| -> BTreeSet<String> {
        let entries = of["Environment"]["Variables"].as_mapping().unwrap();
        entries.keys().map(|name| text(name).to_owned()).collect()
    };
    let for_all = variables(&template["Globals"]["Function"]);
    let functions = resources(&template, "AWS::Serverless::Function");
    let crates: BTreeSet<String> = std::fs::read_dir(format!("{ROOT}/functions"))
        .unwrap()
        .map(|entry| format!("functions/{}", entry.unwrap().file_name().into_string().unwrap()))
        .collect();
    let declared: BTreeSet<String> =
        functions.iter().map(|(_, function)| wired_in(function).0.to_owned()).collect();
    assert_eq!(declared, crates);
    for (id, function) in functions {
        let (folder, file) = wired_in(function);
        let main = wiring_source(folder, file);
        let (required, optional) = (named_in(&main, "required"), named_in(&main, "optional"));
        assert!(required.contains("STAGE"), "{id}: {required:?}");
        let given: BTreeSet<String> = variables(function).union(&for_all).cloned().collect();
        let missing: Vec<_> = required.iter().filter(|name| !given.contains(**name)).collect();
        assert!(missing.is_empty(), "{id} does not get {missing:?}");
        // The log's filter is read by the library that filters.
        let unread: Vec<_> = given
            .iter()
            .filter(|name| !required.contains(name.as_str()) && !optional.contains(name.as_str()))
            .filter(|name| *name != "RUST_LOG")
            .collect();
        assert!(unread.is_empty(), "{id} does not read {unread:?}");
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
