//! Subscriptions: which events start what, and trying them before they do.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::StatusCode,
};
use ledgerline_dispatch::{NewSubscription, SampleEvent, SubscriptionChange};
use ledgerline_event::{Event, Name};
use ledgerline_ledger::{EventFilter, Order};
use ledgerline_subscription::Subscription;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Api,
    access::{MayAdminister, MayRead},
    body,
    problem::Problem,
};

/// A search for the newest event of a type ends after so many pages.
const MAX_PAGES: usize = 50;

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
) -> Result<Json<Value>, Problem> {
    let items = api.dispatch.subscriptions(&tenant).await?;
    Ok(Json(json!({ "items": items, "cursor": null })))
}

pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    body: Body,
) -> Result<(StatusCode, Json<Subscription>), Problem> {
    let new: NewSubscription = body::read(body).await?;
    Ok((StatusCode::CREATED, Json(api.dispatch.subscribe(&tenant, new).await?)))
}

pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Subscription>, Problem> {
    Ok(Json(api.dispatch.subscription(&tenant, &id?.0).await?))
}

pub(crate) async fn change(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    id: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<Json<Subscription>, Problem> {
    let change: SubscriptionChange = body::read(body).await?;
    Ok(Json(api.dispatch.change_subscription(&tenant, &id?.0, change).await?))
}

pub(crate) async fn remove(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Subscription>, Problem> {
    Ok(Json(api.dispatch.unsubscribe(&tenant, &id?.0).await?))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Trial {
    event_id: Option<String>,
    event: Option<SampleEvent>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// One more subscription, which is not stored.
    subscription: Option<NewSubscription>,
}

pub(crate) async fn test(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    body: Body,
) -> Result<Json<Value>, Problem> {
    let trial: Trial = body::read_or_default(body).await?;
    let nothing = |detail: &str| Problem::new(StatusCode::NOT_FOUND, detail);
    let event = match (trial.event_id, trial.event, trial.event_type) {
        (Some(id), None, None) => api.dispatch.event(&tenant, &id).await?,
        (None, Some(sample), None) => api.dispatch.sample(&tenant, sample)?,
        (None, None, Some(of_type)) => api
            .newest_of_type(&tenant, of_type)
            .await?
            .ok_or_else(|| nothing("type: the ledger has no such event; pass an `event` instead"))?,
        (None, None, None) => {
            let newest = api.dispatch.newest(&tenant).await?;
            newest.ok_or_else(|| nothing("event: the ledger is empty; pass an `event` to try"))?
        }
        _ => {
            return Err(Problem::bad_request(
                "event: only one of `eventId`, `event` and `type` can be given",
            ));
        }
    };
    let items = api.dispatch.explain(&tenant, &event, trial.subscription).await?;
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
