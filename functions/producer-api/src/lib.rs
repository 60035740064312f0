//! The function `producer-api`: the HTTP API. One [`router`] serves it behind API Gateway and in local mode.
//!
//! Each route reads the caller's key, the address and the body with extractors, calls the component that does the work,
//! and turns its result or its error (`problem`) into an answer. The crate stores nothing but the record that its
//! [`HealthProbe`] writes and reads.

mod access;
mod health_probe;
mod idempotency_key;
mod json_body;
mod path_length;
mod problem;
mod query_params;
mod request_log;
mod routes;

pub use health_probe::{Finding, HealthProbe, Level, Vitals};

use std::sync::Arc;

use axum::{
    Router, middleware,
    routing::{delete, get, post},
};
use ledgerline_event::Name;
use ledgerline_ledger::{Clients, Clock, Emitter, Names, Reader, Redrive, telemetry::Metrics};
use ledgerline_stage::Stage;
use ledgerline_store::{ApiKeys, ControlTable, FailedDeliveries, IdempotencyMarkers, Payloads};

/// The state of the API: the components that its routes call.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Api {
    pub stage: Stage,
    pub control: ControlTable,
    pub api_keys: ApiKeys,
    pub failed_deliveries: FailedDeliveries,
    pub redrive: Redrive,
    pub markers: IdempotencyMarkers,
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
        stage: Stage,
        metrics: Metrics,
        clock: Clock,
    ) -> Result<Self, ledgerline_event::Invalid> {
        let name = |text| Name::new("app", text);
        // Each request sets the tenant to that of the caller's key.
        let emitter = Emitter::with_clock(&clients, &names, name("api")?, name("api")?, clock.clone())
            .with_scope(|scope| {
                scope.context.source = Some("api".into());
                scope.context.origin = Some("producer-api".into());
            });
        let payloads = Payloads::new(clients.s3.clone(), &names.payload_bucket);
        let control = ControlTable::new(clients.dynamo.clone(), &names.control_table);
        Ok(Self {
            stage,
            api_keys: ApiKeys::new(control.clone()),
            failed_deliveries: FailedDeliveries::new(control.clone()),
            redrive: Redrive::new(&clients, &names, clock.clone()),
            markers: IdempotencyMarkers::new(control.clone()),
            control,
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
        self.emitter.with_scope(|scope| scope.tenant = tenant)
    }
}

/// All routes.
pub fn router(api: Api) -> Router {
    let api = Arc::new(api);
    Router::new()
        .route("/api/events/recent", get(routes::events::recent))
        .route("/api/events/record", post(routes::events::record))
        .route("/api/events/drain", post(routes::drainers::drain))
        .route("/api/events/send", post(routes::sent_events::send))
        .route("/api/events/sent", get(routes::sent_events::list))
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
        .route("/api/failed-deliveries", get(routes::failed_deliveries::list))
        .route("/api/failed-deliveries/redrive", post(routes::failed_deliveries::redrive))
        .route("/api/health", get(routes::health::health))
        .fallback(problem::no_such_route)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(middleware::from_fn(path_length::refuse_overlong_ids))
        .layer(middleware::from_fn_with_state(api.clone(), request_log::log_and_count))
        .with_state(api)
}
