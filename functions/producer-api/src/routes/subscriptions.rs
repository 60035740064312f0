//! Subscriptions: which events start what, and testing them on an event.

use std::sync::Arc;

use axum::{Json, extract::State, http::StatusCode};
use ledgerline_drains::{NewSubscription, SampleEvent, SubscriptionChange};
use ledgerline_event::{Event, Name};
use ledgerline_ledger::{EventFilter, Order};
use ledgerline_subscription::Subscription;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Api,
    access::{MayAdminister, MayRead},
    json_body::{JsonBody, JsonBodyOrDefault},
    problem::Problem,
    query_params::PathId,
};

/// A search for the newest event of a type ends after this many pages.
const MAX_PAGES: usize = 50;

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
) -> Result<Json<Value>, Problem> {
    let items = api.stage.registry().subscriptions(&tenant).await?;
    Ok(Json(json!({ "items": items, "cursor": null })))
}

pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    JsonBody(new): JsonBody<NewSubscription>,
) -> Result<(StatusCode, Json<Subscription>), Problem> {
    Ok((StatusCode::CREATED, Json(api.stage.registry().subscribe(&tenant, new).await?)))
}

pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    PathId(id): PathId,
) -> Result<Json<Subscription>, Problem> {
    Ok(Json(api.stage.registry().subscription(&tenant, &id).await?))
}

pub(crate) async fn change(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    PathId(id): PathId,
    JsonBody(change): JsonBody<SubscriptionChange>,
) -> Result<Json<Subscription>, Problem> {
    Ok(Json(api.stage.registry().change_subscription(&tenant, &id, change).await?))
}

pub(crate) async fn remove(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    PathId(id): PathId,
) -> Result<Json<Subscription>, Problem> {
    Ok(Json(api.stage.registry().unsubscribe(&tenant, &id).await?))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct TestRequest {
    event_id: Option<String>,
    event: Option<SampleEvent>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// One more subscription to test, which the API does not store.
    subscription: Option<NewSubscription>,
}

pub(crate) async fn test(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    JsonBodyOrDefault(request): JsonBodyOrDefault<TestRequest>,
) -> Result<Json<Value>, Problem> {
    let not_found = |detail: &str| Problem::new(StatusCode::NOT_FOUND, detail);
    let event = match (request.event_id, request.event, request.event_type) {
        (Some(id), None, None) => api.stage.registry().event(&tenant, &id).await?,
        (None, Some(sample), None) => api.stage.registry().sample(&tenant, sample)?,
        (None, None, Some(of_type)) => api
            .newest_of_type(&tenant, of_type)
            .await?
            .ok_or_else(|| not_found("type: the ledger has no such event; pass an `event` instead"))?,
        (None, None, None) => {
            let newest = api.stage.registry().newest(&tenant).await?;
            newest.ok_or_else(|| not_found("event: the ledger is empty; pass an `event` to try"))?
        }
        _ => {
            return Err(Problem::bad_request(
                "event: only one of `eventId`, `event` and `type` can be given",
            ));
        }
    };
    let items = api.stage.registry().explain(&tenant, &event, request.subscription).await?;
    Ok(Json(json!({ "event": event, "items": items })))
}

impl Api {
    async fn newest_of_type(&self, tenant: &Name, of_type: String) -> Result<Option<Event>, Problem> {
        let filter = EventFilter { event_type: Some(of_type), ..EventFilter::everything() }.checked()?;
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let order = Order::NewestFirst;
            let mut page = self.reader.recent(tenant, &filter, order, 1, cursor.as_deref()).await?;
            cursor = page.cursor;
            if !page.items.is_empty() || cursor.is_none() {
                return Ok(page.items.pop());
            }
        }
        Ok(None)
    }
}
