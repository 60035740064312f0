//! Runs with everything going wrong that can: starters, runners that die, sleep past their lease and wake up again,
//! senders of events, hooks that are called, runs that are cancelled, external runs, sweeps, and clocks that
//! differ. Whatever happens, a step that was recorded never begins again, everything that a run waits for comes once,
//! the ledger tells each log as it is, and no run is forgotten.

mod actors;
mod derived_rows;
mod external_runs;
mod final_checks;
mod observed_runs;
mod scenario;
mod task_worker;
mod workflow_script;

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use fastrand::Rng;
use ledgerline_alert::Slack;
use ledgerline_drains::Drainers;
use ledgerline_event::{Millis, ValidEvent, validate};
use ledgerline_ledger::{Outcome, telemetry::Metrics};
use ledgerline_outbox::QueueUrls;
use ledgerline_simulation::{BEGINNING, Faults, Simulation, Store, histories, wanted};
use ledgerline_stage::{Stage, StageOptions};
use ledgerline_store::keys;
use ledgerline_test_support::at;
use ledgerline_workflow::{Runner, RunnerOptions};
use serde_json::json;

use self::{
    derived_rows::DerivedRows,
    final_checks::{Acknowledged, FinalChecks},
    observed_runs::ObservedRuns,
    scenario::Scenario,
    workflow_script::{Book, workflows},
};

const TENANT: &str = "t";
/// Clocks differ from the true time by less than this.
const SKEW_MS: u64 = 10_000;
const LEASE_MS: u64 = 60_000;
/// How many steps of a history have faults at first…
const FAULTY_STEPS_AT_FIRST: u64 = 400;
/// …and how many each time that runs get what they wait for.
const FAULTY_STEPS_LATER: u64 = 60;
/// Far more than any history needs.
const MOST_ROUNDS: u64 = 400;

/// A process that executes runs, and does all else besides.
struct Process {
    stage: Stage,
    runner: Runner,
    skew_ms: i64,
}

impl Process {
    fn start(
        store: &Store,
        simulation: &Simulation<'_>,
        book: &Book,
        skew_ms: i64,
        wait_in_place_ms: u64,
    ) -> Self {
        let options = StageOptions {
            queues: QueueUrls {
                tasks: url(&store.names.task_queue),
                task_dead_letters: url(&store.names.task_dead_letter_queue),
                runs: url(&store.names.run_queue),
            },
            drainers: Drainers::parse("").unwrap(),
            slack: Some(Slack::new(store.clients.ssm.clone(), store.names.slack_webhook_parameter.clone())),
            metrics: Metrics::silent(),
            ledger_flag: "--stage test".into(),
            clock: simulation.clock(skew_ms),
        };
        let stage = Stage::new(&store.clients, &store.names, options).unwrap();
        let options = RunnerOptions { lease_ms: LEASE_MS, wait_in_place_ms };
        let runner = Runner::new(stage.clone(), workflows(book), options);
        Self { stage, runner, skew_ms }
    }
}

fn url(queue: &str) -> String {
    format!("http://simulated/000000000000/{queue}")
}

/// What actors report to the test.
enum Told {
    Started(String),
    /// An event was accepted: its number in the scenario, its id, and the step in which its sender began.
    Sent {
        number: usize,
        event_id: String,
        began: u64,
    },
    /// The API has answered a payload for a hook; `received` is false if the hook was gone.
    Posted {
        payload: u64,
        received: bool,
    },
}

/// One history.
struct History<'s> {
    store: &'s Store,
    simulation: Simulation<'s>,
    random: Rng,
    faults: Faults,
    scenario: Scenario,
    processes: Vec<Process>,
    book: Book,
    observed: ObservedRuns<'s>,
    told: Rc<RefCell<Vec<Told>>>,
    acknowledged: Acknowledged,
    /// What the bus has taken and no saver has saved.
    waiting: Vec<ValidEvent>,
    /// The processes of visits.
    visits: BTreeMap<String, usize>,
    spawned: u64,
    steps: u64,
    /// From this step on all goes well.
    calm_at: u64,
    /// Whether there may be events that no drainer has seen.
    undrained: bool,
}

impl<'s> History<'s> {
    async fn begin(store: &'s Store, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let simulation = Simulation::new(store, seed);
        let book = Book::default();
        let wait_in_place_ms = if random.bool() { 0 } else { 1_000 };
        let skew = i64::try_from(SKEW_MS).unwrap();
        let processes: Vec<Process> = (0..random.usize(2..4))
            .map(|_| Process::start(store, &simulation, &book, random.i64(-skew..skew), wait_in_place_ms))
            .collect();
        let mut faults = Faults::random(&mut random);
        faults.repeat = if random.bool() { 0.0 } else { random.f64() * 0.1 };
        let scenario = Scenario::make(&mut random);
        if !scenario.with_old_senders {
            // The last process of a version before 0.1.0 is long gone.
            let began = json!({ "at": BEGINNING - 7_200_000 });
            store.control().put_new(&keys::sent_order_began(), &began).await.unwrap();
        }
        let waiting = scenario.subscribe(&processes[0].stage).await;
        let observed = ObservedRuns::new(store, processes[0].stage.clone());
        Self {
            store,
            simulation,
            faults,
            random,
            scenario,
            processes,
            book,
            observed,
            told: Rc::default(),
            acknowledged: Acknowledged::default(),
            waiting,
            visits: BTreeMap::new(),
            spawned: 0,
            steps: 0,
            calm_at: FAULTY_STEPS_AT_FIRST,
            undrained: true,
        }
    }

    fn is_calm(&self) -> bool {
        self.steps >= self.calm_at
    }

    async fn run(mut self) {
        let (mut rounds, mut quiet) = (0, 0);
        loop {
            self.steps += 1;
            self.save().await;
            self.act();
            if !self.is_calm() && self.random.u8(..60) == 0 {
                let ms = self.random.u64(..200_000);
                self.simulation.advance(ms).await;
            }
            if !self.is_calm()
                && self.random.u8(..200) == 0
                && let Some(killed) = self.kill()
            {
                self.observed.observe(self.steps, &killed).await;
            }
            let faults = if self.is_calm() { Faults::none() } else { self.faults.clone() };
            let more = self.simulation.step(&faults).await;
            self.restart_killed();
            self.collect_reports();
            self.observe().await;
            if more || !self.is_calm() || !self.waiting.is_empty() || self.has_to_do() {
                continue;
            }
            rounds += 1;
            let why_not_idle = self.why_not_idle().await;
            assert!(rounds < MOST_ROUNDS, "it does not come to rest: {why_not_idle:?}");
            quiet = if why_not_idle.is_none() { quiet + 1 } else { 0 };
            if quiet > 1 {
                let runner = &self.processes[0].runner;
                let stage = &self.processes[0].stage;
                let (scenario, acknowledged, book) = (&self.scenario, &self.acknowledged, &self.book);
                let checks = FinalChecks { store: self.store, stage, runner, scenario, acknowledged, book };
                checks.check(&mut self.observed).await;
                if self.observed.runs.values().all(|known| known.has_ended()) {
                    return;
                }
                quiet = 0;
                self.scenario.give(&self.observed.runs, &mut self.random);
                self.calm_at = self.steps + if self.random.bool() { FAULTY_STEPS_LATER } else { 0 };
                continue;
            }
            self.simulation.advance(if rounds == 1 { 3_600_000 } else { 61_000 }).await;
            self.sweep();
        }
    }

    /// Savers have histories of their own: here they only take their time, and take some things twice.
    async fn save(&mut self) {
        if self.waiting.is_empty() || !self.is_calm() && self.random.u8(..8) != 0 {
            return;
        }
        self.random.shuffle(&mut self.waiting);
        let batch =
            self.waiting.split_off(self.waiting.len() - self.random.usize(1..=self.waiting.len().min(10)));
        for (event, answer) in batch.iter().zip(self.store.saver().save(&batch, self.simulation.now()).await)
        {
            assert!(matches!(answer, Ok(Outcome::Saved { .. } | Outcome::Duplicate { .. })), "{answer:?}");
            if !self.is_calm() && self.random.u8(..10) == 0 {
                self.waiting.push(event.clone());
            }
        }
        self.undrained = true;
    }

    /// Starts a new process in place of each that died: it remembers nothing.
    fn restart_killed(&mut self) {
        for killed in self.simulation.take_killed() {
            if let Some(which) = self.visits.get(&killed) {
                let Process { skew_ms, .. } = self.processes[*which];
                let wait_in_place_ms = if self.random.bool() { 0 } else { 1_000 };
                self.processes[*which] =
                    Process::start(self.store, &self.simulation, &self.book, skew_ms, wait_in_place_ms);
            }
        }
    }

    /// Takes the reports of actors, and the events on the bus.
    fn collect_reports(&mut self) {
        for told in self.told.borrow_mut().drain(..) {
            match told {
                Told::Started(run_id) => self.scenario.started(&run_id),
                Told::Sent { number, event_id, began } => {
                    self.scenario.sent(number);
                    self.acknowledged.sent.entry(event_id).or_insert((began, self.steps));
                }
                Told::Posted { payload, received } => {
                    let posted = self.acknowledged.payloads.entry(payload).or_default();
                    *if received { &mut posted.received } else { &mut posted.gone } += 1;
                }
            }
        }
        let latest = self.simulation.now().plus(60_000);
        self.waiting
            .extend(self.simulation.take_bus().iter().map(|detail| validate(detail, latest).unwrap()));
    }

    /// Checks the runs after a step.
    async fn observe(&mut self) {
        let actor = match self.simulation.last_request() {
            Some((actor, true)) => actor.to_owned(),
            Some((_, false)) | None => String::new(),
        };
        if !actor.is_empty() {
            self.observed.observe(self.steps, &actor).await;
            if self.random.u8(..16) == 0 {
                DerivedRows::read(self.store).await.check(&self.observed.runs);
            }
        }
        self.observed.check_begun(self.steps, &self.book.take(), self.simulation.now());
        for asked in self.book.take_asked() {
            self.scenario.send(&asked.event, asked.matching, &mut self.random);
        }
    }

    /// What is left to do by itself, if something is.
    async fn why_not_idle(&self) -> Option<String> {
        let store = self.store;
        for queue in [&store.names.run_queue, &store.names.task_queue] {
            let depth = self.simulation.depth(queue);
            if depth.total() > 0 {
                return Some(format!("{queue}: {depth:?}"));
            }
        }
        let far: Millis = at(self.simulation.now().get() + 10_000_000_000);
        for shard in 0..keys::DUE_SHARDS {
            for shard in [keys::due_shard(shard), keys::run_due_shard(shard)] {
                if let Some(key) = store.control().all_due(&shard, far).await.unwrap().pop() {
                    return Some(format!("{key:?} is due"));
                }
            }
        }
        let marks = store.marks().await;
        (!marks.is_empty()).then(|| format!("{marks:?}"))
    }
}

async fn history(store: &Store, seed: u64) {
    Box::pin(History::begin(store, seed).await.run()).await;
}

#[test]
fn runs_execute_each_step_once_and_reach_their_end_whatever_goes_wrong() {
    // Each of these histories is several times as long as one of draining alone.
    histories(wanted(500).div_ceil(5), history);
}
