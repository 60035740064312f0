//! `ledgerline doctor`: every part of a ledger, one line each, and what to do about the missing ones.

use std::process::ExitCode;

use aws_sdk_sqs::types::QueueAttributeName;
use ledgerline_stage::Note;
use ledgerline_store::StoreError;
use serde::Serialize;

use crate::{
    output::{Output, on_one_line},
    target::Target,
};

/// Details are whole in JSON.
const DETAIL_CHARS: usize = 160;

/// The state of one part.
#[derive(Serialize)]
struct Check {
    part: &'static str,
    name: String,
    state: State,
    detail: String,
}

#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Works, and an operator should know.
    Note,
    /// Works, and waits for an operator.
    Attention,
    Missing,
}

pub(super) async fn run(target: &Target, output: Output) -> anyhow::Result<ExitCode> {
    let names = &target.names;
    let mut checks = vec![
        table(target, "events table", &names.events_table, 7).await,
        table(target, "control table", &names.control_table, 2).await,
        bus(target).await,
        queue(target, "ingest queue", &names.ingest_queue, Messages::AreUsual).await,
        queue(target, "dead-letter queue", &names.dead_letter_queue, Messages::MeanFailures).await,
        queue(target, "task queue", &names.task_queue, Messages::AreUsual).await,
        queue(target, "task dead letters", &names.task_dead_letter_queue, Messages::MeanFailures).await,
        queue(target, "run queue", &names.run_queue, Messages::AreUsual).await,
        bucket(target).await,
        webhook(target).await,
    ];
    checks.extend(attention(target).await);
    let missing = checks.iter().filter(|check| check.state == State::Missing).count();
    if output.is_json() {
        checks.iter().try_for_each(|check| output.json_line(check))?;
    } else {
        output.line(&format!("Stage {} at {}\n", names.stage, target.endpoint))?;
        let rows = checks.iter().map(|check| {
            let state = match check.state {
                State::Ok => "ok",
                State::Note => "note",
                State::Attention => "ATTENTION",
                State::Missing => "MISSING",
            };
            vec![
                state.into(),
                check.part.into(),
                check.name.clone(),
                on_one_line(&check.detail, DETAIL_CHARS),
            ]
        });
        output.table(&["state", "part", "name", "detail"], rows.collect(), "")?;
        match missing {
            0 if checks.iter().any(|check| check.state == State::Attention) => {
                let said = "\nEverything that is needed is there. What needs attention is above; `ledgerline drainers` \
                            shows the command for each.";
                output.line(said)?;
            }
            0 => output.line("\nEverything that is needed is there.")?,
            count => output.line(&format!(
                "\n{count} of {} parts are missing. Local mode: is `ledgerline local` running? AWS: are region and credentials \
                 right, and is the stage deployed (docs/deploying.md)?",
                checks.len()
            ))?,
        }
    }
    Ok(if missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The tenant's notes about what needs attention; none if the stage lacks parts, which the other checks report.
async fn attention(target: &Target) -> Vec<Check> {
    let (Some(tenant), Ok(stage)) = (target.tenant_if_given(), target.stage().await) else {
        return Vec::new();
    };
    let notes =
        async { stage.attention.attention(tenant, &stage.drains.drainer_states(tenant).await?).await };
    let shown = |note: Note| check(note.kind.label(), &note.subject, State::Attention, note.message);
    match notes.await {
        Ok(notes) => notes.into_iter().map(shown).collect(),
        Err(error) => vec![check("attention", tenant, State::Missing, error.to_string())],
    }
}

async fn table(target: &Target, part: &'static str, name: &str, indexes: usize) -> Check {
    let answer = target.clients.dynamo.describe_table().table_name(name).send().await;
    match answer.map_err(|error| StoreError::new("DescribeTable", error)) {
        Err(error) => missing(part, name, error),
        Ok(found) => {
            let count = found.table().map_or(0, |table| table.global_secondary_indexes().len());
            match count == indexes {
                true => check(part, name, State::Ok, format!("{count} indexes")),
                false => {
                    check(part, name, State::Missing, format!("{count} indexes where {indexes} are expected"))
                }
            }
        }
    }
}

async fn bus(target: &Target) -> Check {
    let names = &target.names;
    let answer = target
        .clients
        .events
        .list_targets_by_rule()
        .event_bus_name(&names.bus)
        .rule(&names.save_rule)
        .send()
        .await;
    match answer.map_err(|error| StoreError::new("ListTargetsByRule", error)) {
        Err(error) => missing("event bus", &names.bus, error),
        Ok(found) if found.targets().is_empty() => check(
            "event bus",
            &names.bus,
            State::Missing,
            format!("the rule {} has no target", names.save_rule),
        ),
        Ok(_) => check("event bus", &names.bus, State::Ok, format!("rule {}", names.save_rule)),
    }
}

/// What messages in a queue mean to an operator.
#[derive(Clone, Copy, PartialEq)]
enum Messages {
    AreUsual,
    MeanFailures,
}

async fn queue(target: &Target, part: &'static str, name: &str, messages: Messages) -> Check {
    let sqs = &target.clients.sqs;
    let url = match sqs.get_queue_url().queue_name(name).send().await {
        Ok(found) => found.queue_url.unwrap_or_default(),
        Err(error) => return missing(part, name, StoreError::new("GetQueueUrl", error)),
    };
    // Messages in flight count too: their receiver has not handled them yet.
    let asked = [
        QueueAttributeName::ApproximateNumberOfMessages,
        QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
    ];
    match sqs.get_queue_attributes().queue_url(url).set_attribute_names(Some(asked.to_vec())).send().await {
        Err(error) => missing(part, name, StoreError::new("GetQueueAttributes", error)),
        Ok(found) => {
            let count = |attribute| found.attributes()?.get(attribute)?.parse::<u64>().ok();
            let held = asked.iter().filter_map(count).sum::<u64>();
            let state = match messages {
                Messages::MeanFailures if held > 0 => State::Note,
                _ => State::Ok,
            };
            check(part, name, state, format!("{held} messages"))
        }
    }
}

async fn bucket(target: &Target) -> Check {
    let name = &target.names.payload_bucket;
    match target.clients.s3.head_bucket().bucket(name).send().await {
        Ok(_) => check("payload bucket", name, State::Ok, "reachable"),
        Err(error) => missing("payload bucket", name, StoreError::new("HeadBucket", error)),
    }
}

/// Without a webhook alerts go only to the log. That works, and an operator should know it.
async fn webhook(target: &Target) -> Check {
    let name = &target.names.slack_webhook_parameter;
    let answer = target.clients.ssm.get_parameter().name(name).send().await;
    match answer.map_err(|error| StoreError::new("GetParameter", error)) {
        Ok(_) => check("Slack webhook", name, State::Ok, "set"),
        Err(error) if error.fault == ledgerline_store::Fault::Missing => {
            check("Slack webhook", name, State::Note, "not set: alerts go to the log only")
        }
        Err(error) => missing("Slack webhook", name, error),
    }
}

fn check(part: &'static str, name: &str, state: State, detail: impl Into<String>) -> Check {
    Check { part, name: name.into(), state, detail: detail.into() }
}

fn missing(part: &'static str, name: &str, error: StoreError) -> Check {
    check(part, name, State::Missing, error.to_string())
}
