//! Creates the tables, queues, bus, rules, bucket and parameters of local mode. What exists already keeps its data;
//! missing indexes are added, and the settings of queues and the parameters are set anew.

use std::collections::HashMap;

use anyhow::Context;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, CreateGlobalSecondaryIndexAction, GlobalSecondaryIndex,
    GlobalSecondaryIndexUpdate, KeySchemaElement, KeyType, Projection, ProjectionType, ScalarAttributeType,
    TimeToLiveSpecification,
};
use aws_sdk_eventbridge::types::{DeadLetterConfig, Target};
use aws_sdk_sqs::types::QueueAttributeName;
use ledgerline_event::keys::Index;
use ledgerline_ledger::{Clients, Names};
use ledgerline_store::{DUE_INDEX, Fault, LIST_INDEX, StoreError};
use serde_json::json;

use super::{REGION, Wiring, wiring::QueueWiring};

const ACCOUNT: &str = "000000000000";

/// The values of the SSM parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parameters<'a> {
    /// Where alerts go; an operator sets it.
    pub slack_webhook: Option<&'a str>,
    /// The drainers, as `workflow_runner,timeline=1h`.
    pub drainers: &'a str,
}

/// Creates all resources of a stage.
pub async fn provision(
    clients: &Clients,
    names: &Names,
    wiring: &Wiring,
    parameters: &Parameters<'_>,
) -> anyhow::Result<()> {
    table(clients, &names.events_table, events_indexes()?).await.context("making the events table")?;
    table(clients, &names.control_table, control_indexes()?).await.context("making the control table")?;
    for queue in &wiring.queues {
        make_queue(clients, queue).await.with_context(|| format!("making the queue {}", queue.name))?;
    }
    bus(clients, names, wiring).await.context("making the event bus")?;
    let made = clients.s3.create_bucket().bucket(&names.payload_bucket).send().await;
    if let Err(error) = made.map_err(|error| StoreError::new("CreateBucket", error))
        && !matches!(error.code.as_deref(), Some("BucketAlreadyOwnedByYou" | "BucketAlreadyExists"))
    {
        return Err(error).context("making the payload bucket");
    }
    parameter(clients, &names.payload_bucket_parameter, Some(&names.payload_bucket)).await?;
    parameter(clients, &names.drainers_parameter, Some(parameters.drainers).filter(|text| !text.is_empty()))
        .await?;
    parameter(clients, &names.slack_webhook_parameter, parameters.slack_webhook).await
}

/// An index and the attributes that it is made of.
struct IndexPlan {
    index: GlobalSecondaryIndex,
    attributes: [(&'static str, ScalarAttributeType); 2],
}

fn events_indexes() -> anyhow::Result<Vec<IndexPlan>> {
    let plan = |index: Index| {
        let (pk, sk) = index.attributes();
        Ok(IndexPlan {
            index: GlobalSecondaryIndex::builder()
                .set_index_name(index.name().map(str::to_owned))
                .set_key_schema(Some(schema(pk, sk)?))
                .projection(Projection::builder().projection_type(ProjectionType::All).build())
                .build()?,
            attributes: [(pk, ScalarAttributeType::S), (sk, ScalarAttributeType::S)],
        })
    };
    (1..=7).map(Index::Gsi).map(plan).collect()
}

fn control_indexes() -> anyhow::Result<Vec<IndexPlan>> {
    let plan = |name, pk, (sk, kind), projected: ProjectionType| {
        anyhow::Ok(IndexPlan {
            index: GlobalSecondaryIndex::builder()
                .index_name(name)
                .set_key_schema(Some(schema(pk, sk)?))
                .projection(Projection::builder().projection_type(projected).build())
                .build()?,
            attributes: [(pk, ScalarAttributeType::S), (sk, kind)],
        })
    };
    Ok(vec![
        plan(DUE_INDEX, "dueShard", ("dueAt", ScalarAttributeType::N), ProjectionType::KeysOnly)?,
        plan(LIST_INDEX, "listIn", ("listAt", ScalarAttributeType::S), ProjectionType::All)?,
    ])
}

fn schema(pk: &str, sk: &str) -> anyhow::Result<Vec<KeySchemaElement>> {
    let element =
        |attribute: &str, kind| KeySchemaElement::builder().attribute_name(attribute).key_type(kind).build();
    Ok(vec![element(pk, KeyType::Hash)?, element(sk, KeyType::Range)?])
}

/// A table with `PK` and `SK`, its indexes, and `ttl`.
async fn table(clients: &Clients, name: &str, indexes: Vec<IndexPlan>) -> anyhow::Result<()> {
    let mut request = clients
        .dynamo
        .create_table()
        .table_name(name)
        .billing_mode(BillingMode::PayPerRequest)
        .set_key_schema(Some(schema("PK", "SK")?));
    let keys = [("PK", ScalarAttributeType::S), ("SK", ScalarAttributeType::S)];
    for (attribute, kind) in keys.into_iter().chain(indexes.iter().flat_map(|plan| plan.attributes.clone())) {
        let definition =
            AttributeDefinition::builder().attribute_name(attribute).attribute_type(kind).build()?;
        request = request.attribute_definitions(definition);
    }
    request =
        request.set_global_secondary_indexes(Some(indexes.iter().map(|plan| plan.index.clone()).collect()));
    match request.send().await.map_err(|error| StoreError::new("CreateTable", error)) {
        Err(error) if error.fault == Fault::ConditionFailed => add_missing(clients, name, &indexes).await?,
        other => drop(other?),
    }
    // Also for a table that exists: an earlier start may have died right after it created the table.
    let ttl = TimeToLiveSpecification::builder().attribute_name("ttl").enabled(true).build()?;
    let update = clients.dynamo.update_time_to_live().table_name(name).time_to_live_specification(ttl);
    match update.send().await.map_err(|error| StoreError::new("UpdateTimeToLive", error)) {
        Err(error) if !error.message.contains("already enabled") => Err(error.into()),
        _ => Ok(()),
    }
}

/// Adds the indexes that the table of an earlier version lacks.
async fn add_missing(clients: &Clients, name: &str, indexes: &[IndexPlan]) -> anyhow::Result<()> {
    let table = clients.dynamo.describe_table().table_name(name).send().await;
    let table = table
        .map_err(|error| StoreError::new("DescribeTable", error))?
        .table
        .unwrap_or_else(|| aws_sdk_dynamodb::types::TableDescription::builder().build());
    let there = |plan: &&IndexPlan| {
        table
            .global_secondary_indexes()
            .iter()
            .any(|index| index.index_name() == Some(plan.index.index_name()))
    };
    for plan in indexes.iter().filter(|plan| !there(plan)) {
        let create = CreateGlobalSecondaryIndexAction::builder()
            .index_name(plan.index.index_name())
            .set_key_schema(Some(plan.index.key_schema().to_vec()))
            .set_projection(plan.index.projection().cloned())
            .build()?;
        let mut update = clients
            .dynamo
            .update_table()
            .table_name(name)
            .global_secondary_index_updates(GlobalSecondaryIndexUpdate::builder().create(create).build());
        for (attribute, kind) in &plan.attributes {
            let definition = AttributeDefinition::builder().attribute_name(*attribute);
            update = update.attribute_definitions(definition.attribute_type(kind.clone()).build()?);
        }
        update.send().await.map_err(|error| StoreError::new("UpdateTable", error))?;
    }
    Ok(())
}

async fn make_queue(clients: &Clients, queue: &QueueWiring) -> anyhow::Result<()> {
    let mut attributes = vec![(QueueAttributeName::VisibilityTimeout, queue.visibility_seconds.to_string())];
    if let Some(seconds) = queue.retention_seconds {
        attributes.push((QueueAttributeName::MessageRetentionPeriod, seconds.to_string()));
    }
    if let Some((target, receives)) = &queue.redrive {
        let policy = json!({ "deadLetterTargetArn": queue_arn(target), "maxReceiveCount": receives });
        attributes.push((QueueAttributeName::RedrivePolicy, policy.to_string()));
    }
    let attributes: HashMap<_, _> = attributes.into_iter().collect();
    let create = clients.sqs.create_queue().queue_name(&queue.name).set_attributes(Some(attributes.clone()));
    match create.send().await.map_err(|error| StoreError::new("CreateQueue", error)) {
        // An earlier version created the queue with other settings.
        Err(error) if matches!(error.code.as_deref(), Some("QueueNameExists" | "QueueAlreadyExists")) => {}
        other => return Ok(other.map(|_| ())?),
    }
    let found = clients.sqs.get_queue_url().queue_name(&queue.name).send().await;
    let found = found.map_err(|error| StoreError::new("GetQueueUrl", error))?;
    let set = clients.sqs.set_queue_attributes().set_queue_url(found.queue_url);
    let set = set.set_attributes(Some(attributes)).send().await;
    set.map_err(|error| StoreError::new("SetQueueAttributes", error))?;
    Ok(())
}

async fn bus(clients: &Clients, names: &Names, wiring: &Wiring) -> anyhow::Result<()> {
    let made = clients.events.create_event_bus().name(&names.bus).send().await;
    if let Err(error) = made.map_err(|error| StoreError::new("CreateEventBus", error))
        && error.code.as_deref() != Some("ResourceAlreadyExistsException")
    {
        return Err(error.into());
    }
    for rule in &wiring.rules {
        let pattern = json!({ "detail-type": [rule.detail_type] }).to_string();
        let put =
            clients.events.put_rule().event_bus_name(&names.bus).name(&rule.name).event_pattern(pattern);
        put.send().await.map_err(|error| StoreError::new("PutRule", error))?;
        let dead_letters = DeadLetterConfig::builder().arn(queue_arn(&names.dead_letter_queue)).build();
        let target = Target::builder()
            .id(&rule.target_id)
            .arn(queue_arn(&rule.target_queue))
            .dead_letter_config(dead_letters)
            .build()?;
        let put = clients.events.put_targets().event_bus_name(&names.bus).rule(&rule.name).targets(target);
        put.send().await.map_err(|error| StoreError::new("PutTargets", error))?;
    }
    Ok(())
}

async fn parameter(clients: &Clients, name: &str, value: Option<&str>) -> anyhow::Result<()> {
    match value {
        Some(value) => {
            let put = clients.ssm.put_parameter().name(name).value(value).overwrite(true);
            let put = put.r#type(aws_sdk_ssm::types::ParameterType::SecureString).send().await;
            put.map_err(|error| StoreError::new("PutParameter", error))?;
        }
        // An earlier start may have set it.
        None => {
            let deleted = clients.ssm.delete_parameter().name(name).send().await;
            if let Err(error) = deleted.map_err(|error| StoreError::new("DeleteParameter", error))
                && error.fault != Fault::Missing
            {
                return Err(error.into());
            }
        }
    }
    Ok(())
}

fn queue_arn(name: &str) -> String {
    format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{name}")
}
