//! The services behind the connector, made once and used by many histories, one after the other.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use dynoxide::Database;
use fastrand::Rng;
use futures::channel::oneshot;
use ledgerline::local::{Parameters, provision, wiring};
use ledgerline_ledger::{
    Clients, Names, Saver,
    control::{ControlTable, keys},
};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    BEGINNING,
    call::{Answer, Call, Reply, Service},
    connector, dynamo,
    services::Services,
};

/// Tables and services with the clients that lead to them. Every history finds them as provisioning left them.
pub(crate) struct Store {
    pub(crate) clients: Clients,
    pub(crate) names: Names,
    pub(crate) shared: Arc<Shared>,
}

impl Store {
    pub(crate) async fn start() -> Self {
        let shared = Arc::new(Shared(Mutex::new(State::default())));
        let clients = connector::clients(shared.clone());
        let names = Names::of_stage("test");
        provision(&clients, &names, &wiring(&names), &Parameters::default()).await.unwrap();
        Self { clients, names, shared }
    }

    pub(crate) fn control(&self) -> ControlTable {
        ControlTable::new(self.clients.dynamo.clone(), &self.names.control_table)
    }

    /// Every mark of a drainer that has left something undone.
    pub(crate) async fn marks(&self) -> Vec<Value> {
        let mut marks = Vec::new();
        for partition in keys::dirty_partitions() {
            marks.extend(self.control().all::<Value>(&partition).await.unwrap());
        }
        marks
    }

    pub(crate) fn saver(&self) -> Saver {
        Saver::new(self.clients.dynamo.clone(), &self.names.events_table, self.control(), 0)
    }
}

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) actor: usize,
    pub(crate) call: Call,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// What happens to requests that no actor sends: how long each takes, and the failure of one that is not applied.
pub(crate) type Weather = Arc<dyn Fn(&Call) -> (Option<Duration>, Option<Answer>) + Send + Sync>;

/// What connector and simulation both hold.
pub(crate) struct Shared(Mutex<State>);

struct State {
    database: Database,
    /// The requests that made tables and queues: what a stage has takes the clients longer than the store.
    definitions: Vec<Call>,
    services: Services,
    began: Instant,
    /// For requests that no actor sends.
    random: Rng,
    /// The actor that is being polled: whatever is sent comes from it.
    speaker: Option<usize>,
    departed: Vec<Flight>,
    in_use: bool,
    weather: Option<Weather>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            database: Database::memory().unwrap(),
            definitions: Vec::new(),
            services: Services::default(),
            began: Instant::now(),
            random: Rng::with_seed(0),
            speaker: None,
            departed: Vec::new(),
            in_use: false,
            weather: None,
        }
    }
}

/// Small faults inside an operation that succeeds, and the chance that they and the order of messages depend on.
pub(crate) struct Flaws<'a> {
    pub(crate) random: &'a mut Rng,
    pub(crate) refuse_entry: f64,
    pub(crate) redeliver: f64,
    pub(crate) page: Option<usize>,
}

impl Flaws<'_> {
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
    pub(crate) fn send(&self, call: Call) -> Result<oneshot::Receiver<Reply>, (Answer, Option<Duration>)> {
        let mut state = self.state();
        let Some(actor) = state.speaker else {
            let (delay, failure) = match &state.weather {
                Some(weather) => weather(&call),
                None => (None, None),
            };
            if let Some(failure) = failure {
                return Err((failure, delay));
            }
            let answer = state.serve_well(&call);
            // What a history makes for itself goes with it.
            if call.provisions() && !state.in_use {
                state.definitions.push(call);
            }
            return Err((answer, delay));
        };
        let (reply, answer) = oneshot::channel();
        state.departed.push(Flight { actor, call, reply });
        Ok(answer)
    }

    /// Applies a request.
    pub(crate) fn serve(&self, call: &Call, flaws: Flaws<'_>) -> Answer {
        self.state().serve(call, flaws)
    }

    /// What `actor` sends while `poll` runs.
    pub(crate) fn speaking<T>(&self, actor: usize, poll: impl FnOnce() -> T) -> (T, Vec<Flight>) {
        self.state().speaker = Some(actor);
        let polled = poll();
        let mut state = self.state();
        state.speaker = None;
        (polled, std::mem::take(&mut state.departed))
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
    pub(crate) fn set_weather(&self, weather: Weather) {
        self.state().weather = Some(weather);
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
    fn serve_well(&mut self, call: &Call) -> Answer {
        let mut random = self.random.fork();
        self.serve(call, Flaws { random: &mut random, refuse_entry: 0.0, redeliver: 0.0, page: None })
    }

    fn serve(&mut self, call: &Call, mut flaws: Flaws<'_>) -> Answer {
        match call.service {
            Service::Dynamo => dynamo::serve(&self.database, call, flaws.page),
            Service::Events | Service::Sqs | Service::Ssm | Service::S3 => {
                self.services.serve(call, self.now(), &mut flaws)
            }
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}
