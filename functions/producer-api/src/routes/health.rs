//! `GET /api/health`: whether the ledger can be written and read, and whether its drainers move. A caller without a key, such as a load
//! balancer, gets the word alone; one with a key gets the checks behind it. A stalled drainer is one tenant's trouble, and another
//! process would not mend it, so that answer has the status 200.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, header::AUTHORIZATION},
};
use ledgerline_drains::DrainerState;
use ledgerline_event::{Name, keys::Scope};
use ledgerline_ledger::EventQuery;
use ledgerline_stage::NoteKind;
use ledgerline_store::{FailureFilter, KeyScope, StoreError};
use serde_json::{Value, json};

use crate::{Api, Level, problem::Problem};

/// Failed deliveries are counted up to here.
const MAX_COUNTED: usize = 100;

pub(crate) async fn health(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let tenant = match headers.contains_key(AUTHORIZATION) {
        true => Some(api.caller(&headers, KeyScope::Read).await?),
        false => None,
    };
    // Without a key the checks cost next to nothing, since every process may call, as often as it likes.
    let checked_tenant = tenant.as_ref().unwrap_or(&api.emitter.scope().tenant);
    let events = api.newest(checked_tenant).await;
    let failures = match tenant {
        Some(_) => api
            .failed_deliveries
            .list(checked_tenant, FailureFilter::Failed, MAX_COUNTED, None)
            .await
            .map(|page| page.items.len()),
        None => api.markers.get(checked_tenant, "health", (api.clock)()).await.map(|_| 0),
    };
    let drainers = match tenant {
        Some(_) => api.stage.drains.drainer_states(checked_tenant).await,
        None => Ok(Vec::new()),
    };
    let attention = match (&tenant, &drainers) {
        (Some(tenant), Ok(states)) => api.stage.attention.attention(tenant, states).await,
        _ => Ok(Vec::new()),
    };
    let report = api.health.report(&api.control, (api.clock)()).await;
    let answers = events.is_ok() && failures.is_ok() && drainers.is_ok() && attention.is_ok();
    let late = attention.iter().flatten().any(|note| note.kind == NoteKind::LateSweep);
    let stalled = drainers.iter().flatten().any(|state| state.stalled);
    let (status, level) = match (answers, report.level()) {
        (false, _) | (true, Some(Level::Down)) => (StatusCode::SERVICE_UNAVAILABLE, "down"),
        (true, Some(Level::Degraded)) => (StatusCode::OK, "degraded"),
        (true, None | Some(Level::Note)) if stalled => (StatusCode::OK, "stalled"),
        (true, None | Some(Level::Note)) if late => (StatusCode::OK, "degraded"),
        (true, None | Some(Level::Note)) => (StatusCode::OK, "ok"),
    };
    let mut answer = json!({ "status": level });
    if tenant.is_some() {
        let check = |problem: Option<String>| json!({ "ok": problem.is_none(), "problem": problem });
        answer["stage"] = json!(api.names.stage);
        answer["version"] = json!(env!("CARGO_PKG_VERSION"));
        answer["checks"] = json!({
            "eventsTable": check(events.as_ref().err().map(ToString::to_string)),
            "controlTable": check(failures.as_ref().err().map(ToString::to_string)),
            "drainers": check(drainers.as_ref().err().map(ToString::to_string)),
            "attention": check(attention.as_ref().err().map(ToString::to_string)),
        });
        let shown = |state: &DrainerState| json!({ "drainerId": state.drainer_id, "lagMs": state.lag_ms, "stalled": state.stalled });
        answer["drainers"] = drainers.iter().flatten().map(shown).collect();
        answer["attention"] = json!(attention.unwrap_or_default());
        answer["findings"] = json!(report.findings);
        if let Some(process) = report.process {
            answer["process"] = process;
        }
        answer["failedDeliveries"] = json!(failures.unwrap_or_default());
        answer["newestEventAt"] = json!(events.unwrap_or_default());
    }
    Ok((status, Json(answer)))
}

impl Api {
    async fn newest(&self, tenant: &Name) -> Result<Option<u64>, StoreError> {
        let mut query = EventQuery::new(tenant, Scope::Tenant);
        query.order = ledgerline_ledger::Order::NewestFirst;
        match self.reader.page(&query, 1, None).await {
            Ok(page) => Ok(page.items.first().map(|event| event.timestamp.get())),
            Err(ledgerline_ledger::QueryError::Store(error)) => Err(error),
            Err(ledgerline_ledger::QueryError::Cursor(_)) => Ok(None),
        }
    }
}
