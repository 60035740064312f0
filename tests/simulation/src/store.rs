//! The services behind the HTTP client, made once and used by many histories, one after the other.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use dynoxide::Database;
use fastrand::Rng;
use futures::channel::oneshot;
use ledgerline_ledger::{Clients, Names, Saver};
use ledgerline_local::{Parameters, provision, wiring};
use ledgerline_store::{ControlTable, keys};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    BEGINNING, dynamo, http_client,
    request::{Reply, Request, Response, Service},
    services::Services,
};

/// Tables and services with the clients that lead to them. Every history finds them as provisioning left them.
pub struct Store {
    /// For actors and for the test itself.
    pub clients: Clients,
    /// What its tables and queues are called.
    pub names: Names,
    pub(crate) shared: Arc<Shared>,
}

impl Store {
    /// Makes tables, queues, bus and bucket as a stage has them.
    pub async fn start() -> Self {
        let shared = Arc::new(Shared(Mutex::new(State::default())));
        let clients = http_client::clients(shared.clone());
        let names = Names::of_stage("test");
        provision(&clients, &names, &wiring(&names), &Parameters::default()).await.unwrap();
        Self { clients, names, shared }
    }

    /// Its control table.
    pub fn control(&self) -> ControlTable {
        ControlTable::new(self.clients.dynamo.clone(), &self.names.control_table)
    }

    /// Every mark of a drainer that has left something undone.
    pub async fn marks(&self) -> Vec<Value> {
        let mut marks = Vec::new();
        for partition in keys::dirty_partitions() {
            marks.extend(self.control().all::<Value>(&partition).await.unwrap());
        }
        marks
    }

    /// A saver without retention.
    pub fn saver(&self) -> Saver {
        Saver::new(self.clients.dynamo.clone(), &self.names.events_table, self.control(), 0)
    }

    /// From now on requests outside of actors take their time, or fail.
    pub fn set_conditions(&self, conditions: Conditions) {
        self.shared.set_conditions(conditions);
    }
}

/// A request on its way.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) actor: usize,
    pub(crate) request: Request,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// What happens to requests that no actor sends: how long each takes, and the failure of one that is not applied.
pub type Conditions = Arc<dyn Fn(&Request) -> (Option<Duration>, Option<Response>) + Send + Sync>;

/// What the HTTP client and the scheduler both hold.
pub(crate) struct Shared(Mutex<State>);

struct State {
    database: Database,
    /// The requests that made tables and queues: what a stage has takes the clients longer than the store.
    definitions: Vec<Request>,
    services: Services,
    began: Instant,
    /// For requests that no actor sends.
    random: Rng,
    /// The actor that is being polled: whatever is sent comes from it.
    polled: Option<usize>,
    sent: Vec<InFlight>,
    in_use: bool,
    conditions: Option<Conditions>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            database: Database::memory().unwrap(),
            definitions: Vec::new(),
            services: Services::default(),
            began: Instant::now(),
            random: Rng::with_seed(0),
            polled: None,
            sent: Vec::new(),
            in_use: false,
            conditions: None,
        }
    }
}

/// Small faults inside an operation that succeeds, and the chance that they and the order of messages depend on.
pub(crate) struct PartialFaults<'a> {
    pub(crate) random: &'a mut Rng,
    pub(crate) refuse_entry: f64,
    pub(crate) redeliver: f64,
    pub(crate) page: Option<usize>,
}

impl PartialFaults<'_> {
    /// Whether the next entry of a batch fails, alone.
    pub(crate) fn refuses_entry(&mut self) -> bool {
        self.random.f64() < self.refuse_entry
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no actor panics while it sends")
    }

    /// A request leaves: into the network if an actor sends it, else its answer is there at once.
    pub(crate) fn send(
        &self,
        request: Request,
    ) -> Result<oneshot::Receiver<Reply>, (Response, Option<Duration>)> {
        let mut state = self.state();
        let Some(actor) = state.polled else {
            let (delay, failure) = match &state.conditions {
                Some(conditions) => conditions(&request),
                None => (None, None),
            };
            if let Some(failure) = failure {
                return Err((failure, delay));
            }
            let answer = state.serve_well(&request);
            // What a history makes for itself goes with it.
            if request.provisions() && !state.in_use {
                state.definitions.push(request);
            }
            return Err((answer, delay));
        };
        let (reply, answer) = oneshot::channel();
        state.sent.push(InFlight { actor, request, reply });
        Ok(answer)
    }

    /// Applies a request.
    pub(crate) fn serve(&self, request: &Request, partial: PartialFaults<'_>) -> Response {
        self.state().serve(request, partial)
    }

    /// What `actor` sends while `poll` runs.
    pub(crate) fn sent_by<T>(&self, actor: usize, poll: impl FnOnce() -> T) -> (T, Vec<InFlight>) {
        self.state().polled = Some(actor);
        let polled = poll();
        let mut state = self.state();
        state.polled = None;
        (polled, std::mem::take(&mut state.sent))
    }

    /// Begins a history: what the one before has left is gone.
    pub(crate) fn begin(&self) {
        let mut state = self.state();
        assert!(!state.in_use, "one history at a time");
        let definitions = std::mem::take(&mut state.definitions);
        let mut fresh = State { in_use: true, ..State::default() };
        for definition in &definitions {
            fresh.serve_well(definition);
        }
        *state = State { definitions, ..fresh };
    }

    /// From now on requests outside of actors take their time, or fail.
    pub(crate) fn set_conditions(&self, conditions: Conditions) {
        self.state().conditions = Some(conditions);
    }

    /// Ends it; what it has left stays until the next one begins.
    pub(crate) fn end(&self) {
        if let Ok(mut state) = self.0.lock() {
            state.in_use = false;
        }
    }

    /// The time of the history: what has passed since it began.
    pub(crate) fn now(&self) -> u64 {
        self.state().now()
    }

    pub(crate) fn services<T>(&self, use_them: impl FnOnce(&mut Services) -> T) -> T {
        use_them(&mut self.state().services)
    }
}

impl State {
    fn now(&self) -> u64 {
        BEGINNING + u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - BEGINNING)
    }

    /// Applies a request without any faults.
    fn serve_well(&mut self, request: &Request) -> Response {
        let mut random = self.random.fork();
        self.serve(
            request,
            PartialFaults { random: &mut random, refuse_entry: 0.0, redeliver: 0.0, page: None },
        )
    }

    fn serve(&mut self, request: &Request, mut partial: PartialFaults<'_>) -> Response {
        match request.service {
            Service::Dynamo => dynamo::serve(&self.database, request, partial.page),
            Service::Events | Service::Sqs | Service::Ssm | Service::S3 => {
                self.services.serve(request, self.now(), &mut partial)
            }
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}
