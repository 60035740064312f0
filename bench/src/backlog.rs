//! Events that are in the table before anything looks at them.

use anyhow::ensure;
use aws_sdk_dynamodb::types::{PutRequest, WriteRequest};
use futures::{StreamExt, TryStreamExt, stream};
use ledgerline_event::{Context, Event, Keyed, Kind, Millis, Name};
use serde_json::{Map, json};
use ulid::Ulid;

use crate::subscribers::event_type;

/// Items of one request.
const BATCH: usize = 25;
/// Requests at the same time.
const AT_ONCE: usize = 4;
/// Entities that the events are about.
const ENTITIES: usize = 100;

/// The `number`th event of a tenant.
pub(crate) fn event(tenant: &Name, number: usize, at: Millis) -> anyhow::Result<Event> {
    let properties = json!({
        "old": 1.42, "new": 1.48, "currency": "EUR", "by": "clerk-17", "lines": [{"sku": "A-1", "count": 3}],
    });
    Ok(Event {
        event_id: Kind::Event.id(Ulid::generate()),
        tenant_id: tenant.clone(),
        app_name: Name::new("appName", "shop")?,
        entity_type: Name::new("entityType", "ITEM")?,
        entity_id: Name::new("entityId", format!("item-{}", number % ENTITIES))?,
        event_type: Name::new("eventType", event_type(number))?,
        timestamp: at,
        context: Context { source: Some("system".into()), ..Context::default() },
        properties: properties.as_object().cloned().unwrap_or_else(Map::new),
        idempotency_key: None,
        caused_by: None,
        workflow_run_id: None,
        source_system: None,
        sequence_no: None,
        ttl: None,
        received_at: Some(at),
    })
}

/// Puts `count` events of `tenant` into the table, a millisecond apart from `first` on.
pub(crate) async fn put(
    dynamo: &aws_sdk_dynamodb::Client,
    table: &str,
    tenant: &Name,
    first: Millis,
    count: usize,
) -> anyhow::Result<()> {
    let request = |from: usize| async move {
        let mut items = Vec::with_capacity(BATCH);
        for number in from..count.min(from + BATCH) {
            let event = event(tenant, number, first.plus(number as u64))?;
            let item =
                serde_dynamo::aws_sdk_dynamodb_1::to_item(Keyed { keys: &event.keys(), event: &event })?;
            let put = PutRequest::builder().set_item(Some(item)).build()?;
            items.push(WriteRequest::builder().put_request(put).build());
        }
        let answer = dynamo.batch_write_item().request_items(table, items).send().await?;
        ensure!(answer.unprocessed_items().is_none_or(|left| left.is_empty()), "some events were left out");
        anyhow::Ok(())
    };
    stream::iter((0..count).step_by(BATCH).map(request)).buffer_unordered(AT_ONCE).try_collect().await
}
