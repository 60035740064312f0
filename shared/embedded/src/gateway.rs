//! All services behind one port: finds the service of a request, counts the request, calls the interceptor, answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{Method, request::Parts};
use axum::response::Response;

use crate::answer::{Answer, AwsError, json_response, respond};
use crate::dynamo::Dynamo;
use crate::events::{self, Buses};
use crate::interceptor::{Call, Interceptor, Moment, Verdict};
use crate::s3::S3;
use crate::service::{Route, Service, route};
use crate::sqs::{self, Endpoint, Queues};
use crate::ssm;
use crate::store::Store;
use crate::{Clock, Options};

/// The largest request taken, so that a mistaken upload does not fill the memory.
const MAX_REQUEST_BYTES: usize = 256 * 1024 * 1024;

/// How long a publisher waits for room, and how often it looks.
const WAIT_FOR_ROOM: Duration = Duration::from_secs(1);
const LOOK_FOR_ROOM: Duration = Duration::from_millis(100);

/// The services and what stands around them.
pub(crate) struct Gateway {
    dynamo: Dynamo,
    pub(crate) queues: Arc<Queues>,
    buses: Buses,
    s3: S3,
    store: Arc<Store>,
    endpoint: Endpoint,
    region: String,
    clock: Clock,
    interceptor: Option<Interceptor>,
    requests: Mutex<BTreeMap<(Service, String), u64>>,
    /// When a request last failed through no fault of its sender, and which.
    failed: Mutex<Option<(Instant, String)>>,
}

impl Gateway {
    /// Reads what is stored and makes the services ready.
    pub(crate) fn new(
        options: Options,
        store: Store,
        dynamo: Dynamo,
        endpoint: String,
    ) -> rusqlite::Result<Self> {
        let Options { region, clock, interceptor, admission, .. } = options;
        let store = Arc::new(store);
        let queues = Arc::new(Queues::open(store.clone(), clock.clone(), region.clone())?);
        let buses = Buses::open(store.clone(), queues.clone(), clock.clone(), region.clone(), admission)?;
        Ok(Self {
            dynamo,
            queues,
            buses,
            s3: S3::new(store.clone(), clock.clone(), region.clone()),
            store,
            endpoint: Endpoint(endpoint),
            region,
            clock,
            interceptor,
            requests: Mutex::default(),
            failed: Mutex::default(),
        })
    }

    /// How often each operation was called.
    pub(crate) fn requests(&self) -> MutexGuard<'_, BTreeMap<(Service, String), u64>> {
        self.requests.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Serves one request.
    pub(crate) async fn handle(&self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        if parts.method == Method::GET && parts.uri.path() == "/_ledgerline/health" {
            return respond(200, "application/json", r#"{"status":"ok"}"#);
        }
        let (service, operation) = match route(&parts) {
            Route::Operation(service, operation) => (service, operation),
            Route::UnknownTarget(target) => {
                return AwsError::unknown_operation(&target).into_response(Service::DynamoDb);
            }
        };
        let Ok(body) = axum::body::to_bytes(body, MAX_REQUEST_BYTES).await else {
            return AwsError::sender("EntityTooLarge", "The request is too large or was cut short.")
                .into_response(service);
        };
        *self.requests().entry((service, operation.clone())).or_default() += 1;

        let Some(interceptor) = &self.interceptor else {
            return self.serve(service, &operation, parts, body).await;
        };
        let call = Call { service, operation: operation.clone(), body: body.clone() };
        if let Verdict::Fail { status, code } = interceptor(call.clone(), Moment::Before).await {
            return AwsError::injected(status, code).into_response(service);
        }
        let response = self.serve(service, &operation, parts, body).await;
        let moment = Moment::After { status: response.status().as_u16() };
        match interceptor(call, moment).await {
            Verdict::Proceed => response,
            Verdict::Fail { status, code } => AwsError::injected(status, code).into_response(service),
        }
    }

    async fn serve(&self, service: Service, operation: &str, parts: Parts, body: Bytes) -> Response {
        let served = match service {
            Service::DynamoDb => self.dynamo.handle(&parts, operation, body).await,
            Service::S3 => self.s3.handle(parts, body).await,
            Service::Sqs => {
                let answer = sqs::handle(&self.queues, &self.endpoint, operation, &body).await;
                Ok(json_response(service, answer))
            }
            Service::EventBridge => Ok(json_response(service, self.publish(operation, &body).await)),
            Service::Ssm => {
                let answer = ssm::handle(&self.store, &self.clock, &self.region, operation, &body);
                Ok(json_response(service, answer))
            }
        };
        let response = served.unwrap_or_else(|fault| fault.into_response(service));
        let status = response.status().as_u16();
        if status >= 500 && status != 501 {
            tracing::error!(%service, operation, status, "a request failed");
            let reason = format!("{operation} of {service} failed with the status {status}");
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), reason));
        }
        response
    }

    /// Publishers wait a while for room, so that those that do not look at refusals slow down too.
    async fn publish(&self, operation: &str, body: &[u8]) -> Answer {
        let deadline = Instant::now() + WAIT_FOR_ROOM;
        loop {
            match events::handle(&self.buses, operation, body) {
                Err(fault) if fault.is(events::THROTTLED) && Instant::now() < deadline => {
                    tokio::time::sleep(LOOK_FOR_ROOM).await;
                }
                answer => return answer,
            }
        }
    }

    /// Whether the store of queues, buses, objects and parameters can be written and read.
    pub(crate) fn probe(&self) -> Result<(), String> {
        self.store.probe((self.clock)()).map_err(|error| error.to_string())
    }

    /// What failed within the last while, if anything did.
    pub(crate) fn failed_within(&self, while_: Duration) -> Option<String> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let request = failed.as_ref().filter(|(at, _)| at.elapsed() < while_);
        self.store.failed_within(while_).or_else(|| request.map(|(_, reason)| reason.clone()))
    }
}

/// The gateway as an HTTP application.
pub(crate) fn router(gateway: Arc<Gateway>) -> Router {
    async fn handle(State(gateway): State<Arc<Gateway>>, request: Request<Body>) -> Response {
        gateway.handle(request).await
    }
    Router::new().fallback(handle).with_state(gateway)
}
