//! The scheduler: which actor runs, which request is picked next, and what becomes of it.
//!
//! Between two polls of an actor exactly one thing happens to it: an answer arrives, or time passes.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Display,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use fastrand::Rng;
use futures::{channel::oneshot, task::AtomicWaker};
use ledgerline_event::Millis;
use ledgerline_ledger::Clock;
use ledgerline_test_support::at;

use super::{
    faults::{Fate, Faults, failure, throttled},
    request::{Reply, Request, Response, item_keys},
    services::{Depth, Message},
    store::{InFlight, PartialFaults, Store},
    trace::Trace,
};

/// When every history begins.
pub const BEGINNING: u64 = 1_767_453_739_000;
/// A step takes up to this long.
const TICK_MS: u64 = 40;
/// So long is each step while an actor sleeps through its lease.
const SLOW_TICK_MS: u64 = 8_000;
const JUMP_MS: u64 = 120_000;
/// A pause and a late answer last up to this many steps.
const LONGEST: u64 = 40;
/// Nothing under test waits as long as this for a timer.
const STUCK: Duration = Duration::from_secs(24 * 3600);
/// Far more than any history needs.
const MOST_STEPS: u64 = 200_000;

struct Actor {
    name: String,
    /// None once it has ended or died.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    alarm: Arc<Alarm>,
    paused: Option<Pause>,
}

#[derive(Clone, Copy)]
struct Pause {
    until: u64,
    /// Whether time flies meanwhile.
    outlasts_leases: bool,
}

/// Notes that an actor has a reason to run.
struct Alarm {
    rung: AtomicBool,
    scheduler: Arc<AtomicWaker>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        self.scheduler.wake();
    }
}

/// An answer that is held back.
struct LateResponse {
    due: u64,
    actor: usize,
    reply: oneshot::Sender<Reply>,
    answer: Response,
}

/// One history. Runs in a runtime with paused time (`#[tokio::test(start_paused = true)]`).
pub struct Simulation<'s> {
    store: &'s Store,
    random: Rng,
    actors: Vec<Actor>,
    network: Vec<InFlight>,
    late: Vec<LateResponse>,
    killed: Vec<String>,
    /// Keys that transactions have touched.
    contended: HashSet<String>,
    requests: BTreeMap<String, u64>,
    /// Updates and transactions that were applied.
    updates: u64,
    /// The actor whose request met its fate in the last step, and whether the request changes a table.
    last_request: Option<(usize, bool)>,
    steps: u64,
    now: Arc<AtomicU64>,
    scheduler: Arc<AtomicWaker>,
    trace: Trace,
}

impl<'s> Simulation<'s> {
    /// Begins a history. Everything that happens in it follows from `seed`.
    pub fn new(store: &'s Store, seed: u64) -> Self {
        store.shared.begin();
        // Pauses and orders that the code under test chooses at random follow the seed too.
        fastrand::seed(seed);
        Self {
            store,
            // Not the stream that a test gets from the same seed.
            random: Rng::with_seed(seed).fork(),
            actors: Vec::new(),
            network: Vec::new(),
            late: Vec::new(),
            killed: Vec::new(),
            contended: HashSet::new(),
            requests: BTreeMap::new(),
            updates: 0,
            last_request: None,
            steps: 0,
            now: Arc::new(AtomicU64::new(BEGINNING)),
            scheduler: Arc::default(),
            trace: Trace::new(),
        }
    }

    /// Lets an actor run from the next step on. It must not spawn tasks: their requests would belong to no actor.
    pub fn spawn(&mut self, name: impl Into<String>, future: impl Future<Output = ()> + 'static) {
        let alarm = Arc::new(Alarm { rung: AtomicBool::new(true), scheduler: self.scheduler.clone() });
        // Tokio's budget of a task is not the actor's: it would make it wait for no reason of its own.
        let future = Box::pin(tokio::task::unconstrained(future));
        self.actors.push(Actor { name: name.into(), future: Some(future), alarm, paused: None });
    }

    /// A clock of an actor's, off by `skew_ms`.
    pub fn clock(&self, skew_ms: i64) -> Clock {
        let now = self.now.clone();
        Arc::new(move || at(now.load(Ordering::SeqCst).saturating_add_signed(skew_ms)))
    }

    /// The true time, which no actor knows.
    pub fn now(&self) -> Millis {
        at(self.now.load(Ordering::SeqCst))
    }

    /// How many actors run.
    pub fn live(&self) -> usize {
        self.actors.iter().filter(|actor| actor.future.is_some()).count()
    }

    /// Whether an actor of this name runs.
    pub fn is_live(&self, name: &str) -> bool {
        self.actors.iter().any(|actor| actor.future.is_some() && actor.name == name)
    }

    /// Whether an actor has ended and none of its requests is still on its way.
    pub fn is_done(&self, name: &str) -> bool {
        let sends = |flight: &InFlight| self.actors[flight.actor].name == name;
        !self.is_live(name) && !self.network.iter().any(sends)
    }

    /// The actors that have died since this was last called.
    pub fn take_killed(&mut self) -> Vec<String> {
        std::mem::take(&mut self.killed)
    }

    /// The details that the bus has taken since this was last asked.
    pub fn take_bus(&mut self) -> Vec<String> {
        self.store.shared.services(|services| std::mem::take(&mut services.bus))
    }

    /// What was sent to queues since this was last asked, received or not.
    pub fn take_sent(&mut self) -> Vec<Message> {
        self.store.shared.services(|services| std::mem::take(&mut services.queues.sent))
    }

    /// How many messages are in a queue, by its name or URL.
    pub fn depth(&self, queue: &str) -> Depth {
        let now = self.store.shared.now();
        self.store.shared.services(|services| services.queues.depth(queue, now))
    }

    /// The bodies of all messages in a queue, by its name or URL, in the order in which they were sent.
    pub fn bodies_in(&self, queue: &str) -> Vec<String> {
        self.store.shared.services(|services| services.queues.bodies(queue))
    }

    /// How often actors have sent each operation.
    pub fn requests(&self) -> &BTreeMap<String, u64> {
        &self.requests
    }

    /// Rises whenever an item may have changed that was there before.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// The actor whose request met its fate in the last step, and whether the request changes a table.
    pub fn last_request(&self) -> Option<(&str, bool)> {
        self.last_request.map(|(actor, changes)| (self.actors[actor].name.as_str(), changes))
    }

    /// Equal for equal histories.
    pub fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Adds a line of the test's own to the trace.
    pub fn note(&mut self, what: impl Display) {
        let (step, now) = (self.steps, self.now());
        self.trace.line(format_args!("{step:5} {now} {what}"));
    }

    /// Lets time pass, for timers and clocks alike.
    pub async fn advance(&mut self, ms: u64) {
        tokio::time::advance(Duration::from_millis(ms)).await;
        self.read_time();
    }

    fn read_time(&self) {
        self.now.store(self.store.shared.now(), Ordering::SeqCst);
    }

    /// Steps until every actor has ended or died and no request is on its way.
    pub async fn run_until_idle(&mut self, faults: &Faults) {
        while self.step(faults).await {}
    }

    /// One request meets its fate, or time passes if there is none. `false`: nothing is left to do.
    pub async fn step(&mut self, faults: &Faults) -> bool {
        self.steps += 1;
        self.last_request = None;
        assert!(self.steps < MOST_STEPS, "the history does not end; live: {:?}", self.names());
        self.run_actors();
        self.resume();
        self.deliver_late_answers();
        let free = |flight: &InFlight| self.actors[flight.actor].paused.is_none();
        let waiting: Vec<usize> =
            (0..self.network.len()).filter(|position| free(&self.network[*position])).collect();
        let slow = |position: &usize| {
            faults.slow.is_some_and(|about| self.network[*position].request.about.contains(about))
        };
        let prompt: Vec<usize> = waiting.iter().copied().filter(|position| !slow(position)).collect();
        let picked = match prompt.is_empty() || self.random.u8(..20) == 0 {
            true => self.random.choice(waiting),
            false => self.random.choice(prompt),
        };
        if let Some(position) = picked {
            let flight = self.network.remove(position);
            self.decide(flight, faults);
            self.run_actors();
        } else if self.late.is_empty() && self.actors.iter().all(|actor| actor.paused.is_none()) {
            if self.live() == 0 {
                return false;
            }
            self.wait_for_a_timer().await;
            return true;
        }
        self.tick(faults).await;
        true
    }

    /// Ends an actor on the spot; what it has sent is applied now, later or never.
    pub fn kill(&mut self, name: &str) {
        let victim = self.actors.iter().position(|actor| actor.future.is_some() && actor.name == name);
        if let Some(victim) = victim {
            self.note(format_args!("{name} killed"));
            self.end(victim);
        }
    }

    /// The actors that run, and those that are gone and have requests on their way.
    pub fn not_done(&self) -> Vec<&str> {
        let names = self.actors.iter().map(|actor| actor.name.as_str());
        names.filter(|name| !self.is_done(name)).collect()
    }

    fn names(&self) -> Vec<&str> {
        self.actors.iter().filter(|actor| actor.future.is_some()).map(|actor| actor.name.as_str()).collect()
    }

    /// Polls every actor that has a reason to run, until none has.
    fn run_actors(&mut self) {
        let mut polls = 0;
        while let Some(index) = self.actors.iter().position(Actor::wants_to_run) {
            polls += 1;
            assert!(polls < 100_000, "{} never waits", self.actors[index].name);
            self.run(index);
        }
    }

    fn run(&mut self, index: usize) {
        let actor = &mut self.actors[index];
        actor.alarm.rung.store(false, Ordering::SeqCst);
        let Some(future) = &mut actor.future else { return };
        let waker = Waker::from(actor.alarm.clone());
        let poll = || future.as_mut().poll(&mut Context::from_waker(&waker));
        let (polled, mut sent) = self.store.shared.sent_by(index, poll);
        if polled == Poll::Ready(()) {
            actor.future = None;
            let name = actor.name.clone();
            self.note(format_args!("{name} ended"));
        }
        // What leaves at once leaves in no order: code that goes through a hash map must not change the history.
        sent.sort_by(|a, b| {
            (&a.request.operation, &a.request.about).cmp(&(&b.request.operation, &b.request.about))
        });
        for flight in sent {
            *self.requests.entry(flight.request.name()).or_default() += 1;
            if flight.request.operation == "TransactWriteItems" {
                self.contended.extend(item_keys(flight.request.text()).into_iter().map(str::to_owned));
            }
            self.network.push(flight);
        }
    }

    /// Wakes the actors whose pause is over, one after the other.
    fn resume(&mut self) {
        for index in 0..self.actors.len() {
            if self.actors[index].paused.is_some_and(|pause| pause.until <= self.steps) {
                self.actors[index].paused = None;
                let name = self.actors[index].name.clone();
                self.note(format_args!("{name} wakes"));
                self.run_actors();
            }
        }
    }

    fn deliver_late_answers(&mut self) {
        let due = |late: &LateResponse, actors: &[Actor], steps| {
            late.due <= steps && actors[late.actor].paused.is_none()
        };
        while let Some(position) = self.late.iter().position(|late| due(late, &self.actors, self.steps)) {
            let late = self.late.remove(position);
            let name = self.actors[late.actor].name.clone();
            self.note(format_args!("{name} hears a late answer"));
            // The actor may have dropped the request.
            let _ = late.reply.send(Reply::Response(late.answer));
            self.run_actors();
        }
    }

    fn decide(&mut self, flight: InFlight, faults: &Faults) {
        if faults.throttles(&flight.request, &mut self.random) {
            let (name, what) = (self.actors[flight.actor].name.clone(), flight.request.name());
            let (step, now, about) = (self.steps, self.now(), &flight.request.about);
            self.trace.line(format_args!("{step:5} {now} {name} {what} [{about}] throttled"));
            let _ = flight.reply.send(throttled(&flight.request));
            return;
        }
        let abandoned = flight.reply.is_canceled();
        let fate = match faults.fate(&mut self.random) {
            // No actor waits for the answer: the request is applied or not.
            Fate::Serve | Fate::Repeat | Fate::AnswerLate if abandoned => Fate::Lose,
            Fate::KillBefore | Fate::KillAfter | Fate::Pause if abandoned => Fate::Fail,
            fate => fate,
        };
        let name = self.actors[flight.actor].name.clone();
        let request = &flight.request;
        self.last_request = Some((flight.actor, request.changes_table()));
        let (what, about) = (request.name(), &request.about);
        let told = if abandoned { "(abandoned)" } else { "" };
        let (step, now) = (self.steps, self.now());
        self.trace.line(format_args!("{step:5} {now} {name} {what} [{about}] {fate:?}{told}"));
        match fate {
            Fate::Serve => {
                let answer = self.serve(&flight.request, faults);
                let _ = flight.reply.send(Reply::Response(answer));
            }
            Fate::Fail => {
                let contended = request.writes_one_item()
                    && item_keys(request.text()).iter().all(|key| self.contended.contains(*key));
                let reply = failure(request, contended, &mut self.random);
                let _ = flight.reply.send(reply);
            }
            Fate::Lose => {
                self.serve(&flight.request, faults);
                let _ = flight.reply.send(self.silence());
            }
            Fate::Linger => {
                let InFlight { actor, request, reply } = flight;
                let _ = reply.send(self.silence());
                self.network.push(InFlight { actor, request, reply: oneshot::channel().0 });
            }
            Fate::Repeat => {
                self.serve(&flight.request, faults);
                let answer = self.serve(&flight.request, faults);
                let _ = flight.reply.send(Reply::Response(answer));
            }
            Fate::AnswerLate => {
                let answer = self.serve(&flight.request, faults);
                let due = self.steps + self.random.u64(2..=LONGEST);
                self.late.push(LateResponse { due, actor: flight.actor, reply: flight.reply, answer });
            }
            Fate::KillBefore => self.end(flight.actor),
            Fate::KillAfter => {
                self.serve(&flight.request, faults);
                self.end(flight.actor);
            }
            Fate::Pause => self.pause(flight, faults),
        }
    }

    fn serve(&mut self, request: &Request, faults: &Faults) -> Response {
        self.updates += u64::from(matches!(request.operation.as_str(), "UpdateItem" | "TransactWriteItems"));
        let random = &mut self.random;
        let page = (random.f64() < faults.short_page).then(|| random.usize(1..5));
        let (refuse_entry, redeliver) = (faults.refuse_entry, faults.redeliver);
        self.store.shared.serve(request, PartialFaults { random, refuse_entry, redeliver, page })
    }

    fn silence(&mut self) -> Reply {
        if self.random.bool() { Reply::TimedOut } else { Reply::ConnectionLost }
    }

    /// The actor stops for a while. Each of its requests is applied now and answered when it wakes, or reaches the store
    /// only after that.
    fn pause(&mut self, flight: InFlight, faults: &Faults) {
        let actor = flight.actor;
        let until = self.steps + self.random.u64(2..=LONGEST);
        self.actors[actor].paused = Some(Pause { until, outlasts_leases: self.random.bool() });
        self.network.push(flight);
        for flight in self.take_flights(actor) {
            if self.random.bool() {
                self.note_beside(&flight);
                let answer = self.serve(&flight.request, faults);
                self.late.push(LateResponse { due: until, actor, reply: flight.reply, answer });
            } else {
                self.network.push(flight);
            }
        }
    }

    /// Remembers a request that is served together with the last one of its actor.
    fn note_beside(&mut self, flight: &InFlight) {
        let (name, request) = (self.actors[flight.actor].name.clone(), &flight.request);
        let changes = matches!(self.last_request, Some((actor, true)) if actor == flight.actor);
        self.last_request = Some((flight.actor, changes || request.changes_table()));
        let (step, now, what, about) = (self.steps, self.now(), request.name(), &request.about);
        self.trace.line(format_args!("{step:5} {now} {name} {what} [{about}] beside"));
    }

    fn end(&mut self, actor: usize) {
        let name = self.actors[actor].name.clone();
        self.actors[actor].future = None;
        self.actors[actor].paused = None;
        self.killed.push(name);
        for flight in self.take_flights(actor) {
            match self.random.u8(..3) {
                0 => {}
                1 => {
                    self.note_beside(&flight);
                    self.serve(&flight.request, &Faults::none());
                }
                _ => self.network.push(flight),
            }
        }
    }

    fn take_flights(&mut self, actor: usize) -> Vec<InFlight> {
        self.network.extract_if(.., |flight| flight.actor == actor).collect()
    }

    async fn tick(&mut self, faults: &Faults) {
        let slow = self.actors.iter().any(|actor| actor.paused.is_some_and(|pause| pause.outlasts_leases));
        let mut ms = self.random.u64(..=if slow { SLOW_TICK_MS } else { TICK_MS });
        if self.random.f64() < faults.jump {
            ms += self.random.u64(1_000..=JUMP_MS);
            self.note(format_args!("a jump of {ms} ms"));
        }
        self.advance(ms).await;
    }

    /// Every live actor sleeps: time passes until the first one wakes.
    async fn wait_for_a_timer(&mut self) {
        let rung = poll_fn(|context| {
            self.scheduler.register(context.waker());
            match self.actors.iter().any(Actor::wants_to_run) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        let waited = tokio::time::timeout(STUCK, rung).await;
        assert!(waited.is_ok(), "waiting for neither a request nor a timer: {:?}", self.names());
        self.read_time();
    }
}

impl Actor {
    fn wants_to_run(&self) -> bool {
        self.future.is_some() && self.paused.is_none() && self.alarm.rung.load(Ordering::SeqCst)
    }
}

impl Drop for Simulation<'_> {
    fn drop(&mut self) {
        self.store.shared.end();
    }
}
