//! The EventBridge wire protocol (aws-json 1.1).

use serde::Deserialize;
use serde_json::{Value, json};

use super::bus::{Bus, Buses, Rule, RuleRecord, bus_name, no_bus, no_rule};
use super::publish::put_events;
use crate::answer::{Answer, AwsError, input};
use crate::sqs::queue_of_arn;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BusInput {
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListInput {
    name_prefix: Option<String>,
    event_bus_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RuleInput {
    name: String,
    event_bus_name: Option<String>,
    event_pattern: Option<String>,
    schedule_expression: Option<String>,
    description: Option<String>,
    state: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TargetsInput {
    rule: String,
    event_bus_name: Option<String>,
    #[serde(default)]
    targets: Vec<Value>,
    #[serde(default)]
    ids: Vec<String>,
}

/// Carries out one operation.
pub(crate) fn handle(buses: &Buses, operation: &str, body: &[u8]) -> Answer {
    match operation {
        "PutEvents" => put_events(buses, input(body)?),
        "CreateEventBus" => {
            let name = input::<BusInput>(body)?.name.unwrap_or_default();
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b"/._-".contains(&b);
            if name.is_empty() || name.len() > 256 || !name.bytes().all(allowed) {
                return Err(AwsError::sender("ValidationException", "Value at 'name' is not a valid name."));
            }
            buses.create(&name)?;
            Ok(json!({"EventBusArn": buses.bus_arn(&name)}))
        }
        "DeleteEventBus" => {
            let name = input::<BusInput>(body)?.name;
            buses.delete(bus_name(name.as_deref())).map(|()| Value::Null)
        }
        "DescribeEventBus" => {
            let name = input::<BusInput>(body)?.name;
            let name = bus_name(name.as_deref());
            let all = buses.read();
            Ok(bus_json(buses, name, all.get(name).ok_or_else(|| no_bus(name))?))
        }
        "ListEventBuses" => {
            let prefix = input::<ListInput>(body)?.name_prefix.unwrap_or_default();
            let all = buses.read();
            let found = all.iter().filter(|(name, _)| name.starts_with(&prefix));
            Ok(json!({"EventBuses": found.map(|(name, bus)| bus_json(buses, name, bus)).collect::<Vec<_>>()}))
        }
        "PutRule" => put_rule(buses, input(body)?),
        "DescribeRule" => {
            let RuleInput { name, event_bus_name, .. } = input(body)?;
            let bus = bus_name(event_bus_name.as_deref());
            with_rule(buses, bus, &name, |rule| rule_json(buses, bus, &name, rule))
        }
        "ListRules" => {
            let ListInput { name_prefix, event_bus_name } = input(body)?;
            let (prefix, name) = (name_prefix.unwrap_or_default(), bus_name(event_bus_name.as_deref()));
            let all = buses.read();
            let rules = &all.get(name).ok_or_else(|| no_bus(name))?.rules;
            let found = rules.iter().filter(|(rule, _)| rule.starts_with(&prefix));
            let found: Vec<_> =
                found.map(|(rule_name, rule)| rule_json(buses, name, rule_name, rule)).collect();
            Ok(json!({"Rules": found}))
        }
        "DeleteRule" => {
            let RuleInput { name, event_bus_name, .. } = input(body)?;
            buses.delete_rule(bus_name(event_bus_name.as_deref()), &name).map(|()| Value::Null)
        }
        "EnableRule" | "DisableRule" => {
            let RuleInput { name, event_bus_name, .. } = input(body)?;
            let bus = bus_name(event_bus_name.as_deref());
            buses.change_rule(bus, &name, |rule| {
                let rule = rule.ok_or_else(|| no_rule(bus, &name))?;
                Ok(RuleRecord { enabled: operation == "EnableRule", ..rule })
            })?;
            Ok(Value::Null)
        }
        "PutTargets" => put_targets(buses, input(body)?),
        "ListTargetsByRule" => {
            let TargetsInput { rule, event_bus_name, .. } = input(body)?;
            let bus = bus_name(event_bus_name.as_deref());
            with_rule(
                buses,
                bus,
                &rule,
                |rule| json!({"Targets": rule.record.targets.values().collect::<Vec<_>>()}),
            )
        }
        "RemoveTargets" => {
            let TargetsInput { rule, event_bus_name, ids, .. } = input(body)?;
            let bus = bus_name(event_bus_name.as_deref());
            buses.change_rule(bus, &rule, |record| {
                let mut record = record.ok_or_else(|| no_rule(bus, &rule))?;
                record.targets.retain(|id, _| !ids.contains(id));
                Ok(record)
            })?;
            Ok(json!({"FailedEntryCount": 0, "FailedEntries": []}))
        }
        _ => Err(AwsError::unknown_operation(operation)),
    }
}

fn put_rule(buses: &Buses, input: RuleInput) -> Answer {
    let bus = bus_name(input.event_bus_name.as_deref());
    if input.event_pattern.is_none() && input.schedule_expression.is_none() {
        return Err(AwsError::sender(
            "ValidationException",
            "Parameter(s) EventPattern or ScheduleExpression must be specified.",
        ));
    }
    if input.schedule_expression.is_some() {
        return Err(AwsError::sender("ValidationException", "ScheduleExpression is not available here."));
    }
    buses.change_rule(bus, &input.name, |before| {
        Ok(RuleRecord {
            pattern: input.event_pattern,
            description: input.description,
            enabled: input.state.as_deref() != Some("DISABLED"),
            targets: before.unwrap_or_default().targets,
        })
    })?;
    Ok(json!({"RuleArn": buses.rule_arn(bus, &input.name)}))
}

fn put_targets(buses: &Buses, input: TargetsInput) -> Answer {
    let TargetsInput { rule, event_bus_name, targets, .. } = input;
    let bus = bus_name(event_bus_name.as_deref());
    for target in &targets {
        let refuse = |why: String| Err(AwsError::sender("ValidationException", why));
        if target["Id"].as_str().is_none_or(str::is_empty) {
            return refuse("Each target must have an Id.".to_owned());
        }
        if target["Arn"].as_str().and_then(queue_of_arn).is_none() {
            return refuse(format!("Only SQS queues can be targets here, not {}.", target["Arn"]));
        }
        if let Some(name) = ["Input", "InputPath", "InputTransformer"].iter().find(|n| !target[**n].is_null())
        {
            return refuse(format!("{name} is not available here: a target receives the whole event."));
        }
    }
    buses.change_rule(bus, &rule, |record| {
        let mut record = record.ok_or_else(|| no_rule(bus, &rule))?;
        for target in targets {
            record.targets.insert(target["Id"].as_str().unwrap_or_default().to_owned(), target);
        }
        Ok(record)
    })?;
    Ok(json!({"FailedEntryCount": 0, "FailedEntries": []}))
}

fn with_rule(buses: &Buses, bus: &str, name: &str, show: impl FnOnce(&Rule) -> Value) -> Answer {
    let all = buses.read();
    let rules = &all.get(bus).ok_or_else(|| no_bus(bus))?.rules;
    Ok(show(rules.get(name).ok_or_else(|| no_rule(bus, name))?))
}

fn bus_json(buses: &Buses, name: &str, bus: &Bus) -> Value {
    json!({"Name": name, "Arn": buses.bus_arn(name), "CreationTime": bus.created_at / 1000})
}

fn rule_json(buses: &Buses, bus: &str, name: &str, rule: &Rule) -> Value {
    let mut answer = json!({
        "Name": name, "Arn": buses.rule_arn(bus, name), "EventBusName": bus,
        "State": if rule.record.enabled { "ENABLED" } else { "DISABLED" },
    });
    for (field, value) in [("EventPattern", &rule.record.pattern), ("Description", &rule.record.description)]
    {
        if let Some(value) = value {
            answer[field] = json!(value);
        }
    }
    answer
}
