//! `producer-api`: the HTTP API, the same router behind API Gateway and in local mode.

mod access;
mod body;
mod health;
mod idempotency;
mod long_path;
mod metered;
mod problem;
mod routes;

pub use health::{Finding, HealthProbe, Level, Vitals};

use std::sync::Arc;

use axum::{
    Router, middleware,
    routing::{delete, get, post},
};
use ledgerline_dispatch::Dispatch;
use ledgerline_event::Name;
use ledgerline_ledger::{
    Clients, Clock, Emitter, Names, Payloads, Reader, control::ControlTable, telemetry::Metrics,
};

/// What the API needs.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Api {
    pub dispatch: Dispatch,
    pub control: ControlTable,
    pub reader: Reader,
    pub emitter: Emitter,
    pub payloads: Payloads,
    pub clients: Clients,
    pub names: Names,
    pub metrics: Metrics,
    pub clock: Clock,
    pub health: HealthProbe,
}

impl Api {
    /// The API of a stage. An event whose request names no app comes from the app `api`.
    pub fn new(
        clients: Clients,
        names: Names,
        dispatch: Dispatch,
        metrics: Metrics,
        clock: Clock,
    ) -> Result<Self, ledgerline_event::Invalid> {
        let name = |text| Name::new("app", text);
        // Each request replaces the tenant by the one of the caller's key.
        let emitter = Emitter::with_clock(&clients, &names, name("api")?, name("api")?, clock.clone())
            .within(|origin| {
                origin.context.source = Some("api".into());
                origin.context.origin = Some("producer-api".into());
            });
        let payloads = Payloads::new(clients.s3.clone(), &names.payload_bucket);
        Ok(Self {
            dispatch,
            control: ControlTable::new(clients.dynamo.clone(), &names.control_table),
            reader: Reader::new(clients.dynamo.clone(), &names.events_table, payloads.clone()),
            emitter,
            payloads,
            clients,
            names,
            metrics,
            clock,
            health: HealthProbe::default(),
        })
    }

    /// Emits for the tenant of a caller's key.
    pub(crate) fn emitter_of(&self, tenant: Name) -> Emitter {
        self.emitter.within(|origin| origin.tenant = tenant)
    }
}

/// All routes.
pub fn router(api: Api) -> Router {
    let api = Arc::new(api);
    Router::new()
        .route("/api/events/recent", get(routes::recent::list))
        .route("/api/events/record", post(routes::record::record))
        .route("/api/events/drain", post(routes::drainers::drain))
        .route("/api/events/send", post(routes::send::send))
        .route("/api/events/sent", get(routes::send::list))
        .route("/api/subscriptions", get(routes::subscriptions::list).post(routes::subscriptions::create))
        .route("/api/subscriptions/test", post(routes::subscriptions::test))
        .route(
            "/api/subscriptions/{id}",
            get(routes::subscriptions::show)
                .patch(routes::subscriptions::change)
                .delete(routes::subscriptions::remove),
        )
        .route("/api/workflows", get(routes::workflows::list).post(routes::workflows::create))
        .route("/api/workflows/{type}", delete(routes::workflows::remove))
        .route("/api/workflows/{type}/start", post(routes::workflows::start))
        .route("/api/tasks", get(routes::tasks::list).post(routes::tasks::submit))
        .route("/api/tasks/{id}", get(routes::tasks::show))
        .route("/api/tasks/{id}/history", get(routes::tasks::history))
        .route("/api/jobs", get(routes::jobs::list).post(routes::jobs::submit))
        .route("/api/jobs/{id}", get(routes::jobs::show))
        .route("/api/jobs/{id}/tasks", post(routes::jobs::add))
        .route("/api/jobs/{id}/resume", post(routes::jobs::resume))
        .route("/api/runs", get(routes::runs::list).post(routes::runs::start))
        .route("/api/runs/{id}", get(routes::runs::show))
        .route("/api/runs/{id}/events", get(routes::runs::events).post(routes::runs::append))
        .route("/api/runs/{id}/cancel", post(routes::runs::cancel))
        .route("/api/hooks/{token}", post(routes::hooks::receive))
        .route("/api/drainers", get(routes::drainers::list))
        .route("/api/drainers/{id}/rewind", post(routes::drainers::rewind))
        .route("/api/parked", get(routes::parked::list))
        .route("/api/parked/{id}", get(routes::parked::show).delete(routes::parked::drop))
        .route("/api/parked/{id}/retry", post(routes::parked::retry))
        .route("/api/failed-deliveries", get(routes::failed::list))
        .route("/api/failed-deliveries/redrive", post(routes::failed::redrive))
        .route("/api/health", get(routes::health::health))
        .fallback(problem::no_such_route)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(middleware::from_fn(long_path::refuse))
        .layer(middleware::from_fn_with_state(api.clone(), metered::count))
        .with_state(api)
}
