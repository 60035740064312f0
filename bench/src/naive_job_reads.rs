//! What a naive polling dispatcher reads for a job: at every completion the job's events, and the latest event of every
//! task of it. Each read ends at the moment of the completion, so it finds what it would have found then.

use anyhow::ensure;
use aws_sdk_dynamodb::{Client, types::AttributeValue};
use futures::{StreamExt, TryStreamExt, stream};
use ledgerline_event::{
    Millis, Name,
    dag::task_entity,
    keys::{Range, Scope},
};

use crate::shapes::task_id;

/// Queries at the same time. The naive dispatcher sends them one after the other.
const AT_ONCE: usize = 8;

/// Reads what the naive dispatcher reads at the completion of a task of `job_id`, which has `count` tasks. Returns how many
/// requests it took.
pub(crate) async fn completion(
    dynamo: &Client,
    table: &str,
    (tenant, job_id): (&Name, &Name),
    count: usize,
    at: Millis,
) -> anyhow::Result<u64> {
    let job = query(dynamo, table, Range::new(tenant, Scope::Entity("JOB", job_id), Millis::MIN, at), None);
    ensure!(job.await? >= 1, "the job is not in the ledger");
    let latest = (0..count).map(|number| async move {
        let entity = task_entity(job_id, &task_id(number))?;
        query(dynamo, table, Range::new(tenant, Scope::Entity("TASK", &entity), Millis::MIN, at), Some(1))
            .await
    });
    let found: Vec<usize> = stream::iter(latest).buffer_unordered(AT_ONCE).try_collect().await?;
    ensure!(found.iter().sum::<usize>() >= 1, "no task is in the ledger");
    Ok(1 + count as u64)
}

async fn query(dynamo: &Client, table: &str, range: Range, limit: Option<i32>) -> anyhow::Result<usize> {
    let (pk, sk) = range.index.attributes();
    let answer = dynamo
        .query()
        .table_name(table)
        .set_index_name(range.index.name().map(str::to_owned))
        .key_condition_expression(format!("{pk} = :pk AND {sk} BETWEEN :from AND :to"))
        .expression_attribute_values(":pk", AttributeValue::S(range.pk))
        .expression_attribute_values(":from", AttributeValue::S(range.from))
        .expression_attribute_values(":to", AttributeValue::S(range.to))
        .scan_index_forward(limit.is_none())
        .set_limit(limit)
        .send()
        .await?;
    ensure!(
        answer.last_evaluated_key.is_none() || limit.is_some(),
        "the job's events do not fit into a page"
    );
    Ok(answer.items().len())
}
