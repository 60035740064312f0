//! Jobs with everything going wrong that can: producers, savers, the drainer `jobs` of two processes, workers that die,
//! sleep past their lease and wake up again, a dead-letter queue, tasks that are added and jobs that are resumed.
//! Another system ends tasks too, some before their job is known, and tasks that a subscription started.
//! Whatever happens, each task of each generation starts once and ends once, no child starts before its parents are
//! completed, and in the end every job is completed and told so once.

mod external_ends;
mod final_checks;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use fastrand::Rng;
use ledgerline_alert::Slack;
use ledgerline_drains::Drainers;
use ledgerline_event::{
    JobState, Millis, ValidEvent,
    catalogue::{ErrorCategory, Signal},
    validate,
};
use ledgerline_jobs::{Acquisition, EndAnswer, JobSubmission, TaskEnd, TaskLease, TaskMessage};
use ledgerline_ledger::{Emitter, Outcome, telemetry::Metrics};
use ledgerline_outbox::{ComponentError, QueueUrls};
use ledgerline_simulation::{Faults, Simulation, Store, histories, wanted};
use ledgerline_stage::{Stage, StageOptions};
use ledgerline_test_support::name;
use serde_json::{Value, json};

use self::external_ends::ExternalEnds;

const TENANT: &str = "t";
const JOB: &str = "job-1";
/// How often a task may be tried.
const ATTEMPTS: u32 = 3;
/// How long a worker hides a message at a time.
const EXTENSION: Duration = Duration::from_secs(40);
/// From this step on there are no faults.
const TROUBLE_ENDS: u64 = 400;

/// How the attempts at a task end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nature {
    /// Completes at once.
    Sound,
    /// Fails for a passing reason, and then completes.
    Shaky,
    /// Fails for a passing reason each time, until it is resumed.
    Hopeless,
    /// Fails for good, until it is resumed.
    Refused,
    /// Takes too long, until it is resumed.
    Slow,
}

const NATURES: [Nature; 8] = [
    Nature::Sound,
    Nature::Sound,
    Nature::Sound,
    Nature::Sound,
    Nature::Shaky,
    Nature::Hopeless,
    Nature::Refused,
    Nature::Slow,
];

struct Plan {
    tasks: Value,
    added: Value,
    natures: BTreeMap<String, Nature>,
    parents: BTreeMap<String, Vec<String>>,
}

fn plan(random: &mut Rng) -> Plan {
    let (count, added) = (random.usize(1..7), random.usize(..3));
    let mut plan =
        Plan { tasks: json!([]), added: json!([]), natures: BTreeMap::new(), parents: BTreeMap::new() };
    for n in 0..count + added {
        let id = format!("task-{n}");
        let parents: Vec<String> =
            (0..n).filter(|_| random.u8(..5) < 2).map(|parent| format!("task-{parent}")).collect();
        let task = json!({
            "taskId": id, "name": "work", "dependsOn": parents, "input": {"n": n}, "maxAttempts": ATTEMPTS,
        });
        let list = if n < count { &mut plan.tasks } else { &mut plan.added };
        list.as_array_mut().unwrap().push(task);
        plan.natures.insert(id.clone(), NATURES[random.usize(..NATURES.len())]);
        plan.parents.insert(id, parents);
    }
    plan
}

fn process(store: &Store, simulation: &Simulation<'_>, skew_ms: i64) -> Stage {
    let url = |queue: &str| format!("http://simulated/000000000000/{queue}");
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
    Stage::new(&store.clients, &store.names, options).unwrap()
}

/// By task and generation.
type ByGeneration<T> = BTreeMap<(String, u32), T>;

/// What a worker saw of one attempt.
#[derive(Debug)]
struct Ran {
    request_id: String,
    generation: u32,
    attempt: u32,
    input: Value,
}

/// A worker with one message: takes it, works for a while, ends it. Whatever goes wrong, it leaves the rest to others.
struct Worker {
    stage: Stage,
    sqs: aws_sdk_sqs::Client,
    tasks: String,
    dead_letters: String,
    natures: Rc<BTreeMap<String, Nature>>,
    ran: Rc<RefCell<Vec<Ran>>>,
    holds: Rc<RefCell<ByGeneration<(u32, Millis)>>>,
    random: Rng,
}

impl Worker {
    async fn receive(&self, queue: &str) -> Option<aws_sdk_sqs::types::Message> {
        let answer = self.sqs.receive_message().queue_url(queue).max_number_of_messages(1).send().await;
        answer.ok()?.messages?.pop()
    }

    async fn delete(&self, queue: &str, message: &aws_sdk_sqs::types::Message) {
        let _ = self
            .sqs
            .delete_message()
            .queue_url(queue)
            .receipt_handle(message.receipt_handle().unwrap())
            .send()
            .await;
    }

    async fn handle_dead_letter(self) -> Result<(), ComponentError> {
        let Some(received) = self.receive(&self.dead_letters).await else { return Ok(()) };
        let body = received.body().unwrap();
        self.stage.tasks.end_dead_letter(&TaskMessage::parse(body).unwrap(), body).await?;
        self.delete(&self.dead_letters, &received).await;
        Ok(())
    }

    async fn work(mut self) -> Result<(), ComponentError> {
        let Some(received) = self.receive(&self.tasks).await else { return Ok(()) };
        let body = received.body().unwrap().to_owned();
        let message = TaskMessage::parse(&body).unwrap();
        let attempts = message.max_attempts.unwrap();
        match self.stage.tasks.acquire(&message, &body, "worker", EXTENSION, attempts).await? {
            Acquisition::Held { .. } => Ok(()),
            Acquisition::Ended => {
                self.delete(&self.tasks, &received).await;
                Ok(())
            }
            Acquisition::Exhausted { .. } => {
                self.stage.tasks.dead_letter(&message, &body).await?;
                self.delete(&self.tasks, &received).await;
                Ok(())
            }
            Acquisition::Acquired(lease) => {
                if Box::pin(self.run(*lease, &body)).await? {
                    self.delete(&self.tasks, &received).await;
                }
                Ok(())
            }
        }
    }

    fn note_renewed(&self, run: &(String, u32), lease: &TaskLease) {
        if let Some(held) =
            self.holds.borrow_mut().get_mut(run).filter(|(attempt, _)| *attempt == lease.attempt)
        {
            held.1 = lease.until;
        }
    }

    fn note_given_up(&self, run: &(String, u32), lease: &TaskLease) {
        self.holds.borrow_mut().retain(|other, (attempt, _)| other != run || *attempt != lease.attempt);
    }

    /// Runs the task. Returns whether the message can be deleted.
    async fn run(&mut self, mut lease: TaskLease, body: &str) -> Result<bool, ComponentError> {
        let message = lease.message.clone();
        // The worker before has released the task, or its lease is over. If a later attempt is known already, the answer
        // to this acquisition came late.
        let run = (message.request_id.to_string(), message.generation);
        let before = self.holds.borrow().get(&run).copied();
        if before.is_none_or(|(attempt, _)| attempt < lease.attempt) {
            let is_over = before.is_none_or(|(_, until)| until <= lease.acquired_at);
            assert!(is_over, "{run:?} is taken from its holder");
            self.holds.borrow_mut().insert(run.clone(), (lease.attempt, lease.until));
        }
        let ran = Ran {
            request_id: message.request_id.to_string(),
            generation: message.generation,
            attempt: lease.attempt,
            input: Value::Object(self.stage.tasks.input_of(&message).await?),
        };
        self.ran.borrow_mut().push(ran);
        let started = json!({ "requestId": message.request_id, "jobId": message.job_id, "effectiveUntil": 1, "workerId": "w", "processId": 1 });
        let emitter = self.stage.tasks.task_emitter(&lease);
        let about = |kind: &str| emitter.event(kind).entity("TASK", message.request_id.as_str());
        let _ = about("Task Processing Started").properties(started).emit().await;
        if self.random.u8(..8) == 0 {
            self.note_given_up(&run, &lease);
            self.stage.tasks.abandon(&lease).await?;
            return Ok(false);
        }
        for _ in 0..self.random.u8(..3) {
            // Some sleep past their lease.
            tokio::time::sleep(Duration::from_secs(self.random.u64(..50))).await;
            if self.random.bool() {
                if !self.stage.tasks.renew(&mut lease, EXTENSION).await? {
                    return Ok(false);
                }
                self.note_renewed(&run, &lease);
            }
        }
        // A task that a subscription started is in no job.
        let nature = message.task_id.as_deref().map_or(Nature::Sound, |task| self.natures[task]);
        let passing = match nature {
            Nature::Shaky => lease.counted < ATTEMPTS,
            Nature::Hopeless => message.generation == 1,
            Nature::Sound | Nature::Refused | Nature::Slow => false,
        };
        if passing {
            self.note_given_up(&run, &lease);
            if !self.stage.tasks.release(&lease, "ECONNRESET", ErrorCategory::Network).await? {
                return Ok(false);
            }
            if lease.is_last {
                self.stage.tasks.dead_letter(&message, body).await?;
            }
            return Ok(lease.is_last);
        }
        let end = match nature {
            Nature::Refused if message.generation == 1 => {
                TaskEnd::Failed { error: "no".into(), category: ErrorCategory::Auth }
            }
            Nature::Slow if message.generation == 1 => {
                TaskEnd::TimedOut { timeout_ms: 1, elapsed_ms: 2, signal: Signal::Sigkill }
            }
            _ => TaskEnd::Completed {
                output: json!({ "of": message.request_id, "generation": message.generation, "attempt": lease.attempt }),
                duration_ms: 1,
                exit_code: 0,
                usage: None,
            },
        };
        Ok(self.stage.tasks.end(&lease, end).await? == EndAnswer::Done)
    }
}

/// What actors tell the test.
enum Told {
    Saved(String, Vec<Result<Outcome, ledgerline_ledger::SaveError>>),
    Submitted,
    Added,
}

async fn history(store: &Store, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let plan = plan(&mut random);
    let natures = Rc::new(plan.natures.clone());
    let mut faults = Faults::random(&mut random);
    let mut simulation = Simulation::new(store, seed);
    let mut processes: Vec<(Stage, i64)> = Vec::new();
    for _ in 0..2 {
        let skew = random.i64(-10_000..10_000);
        processes.push((process(store, &simulation, skew), skew));
    }
    let url = |queue: &str| format!("http://simulated/000000000000/{queue}");
    let (tasks, dead_letters) = (url(&store.names.task_queue), url(&store.names.task_dead_letter_queue));
    let emitter =
        |clock| Emitter::with_clock(&store.clients, &store.names, name(TENANT), name("shop"), clock);
    let told: Rc<RefCell<Vec<Told>>> = Rc::default();
    let ran: Rc<RefCell<Vec<Ran>>> = Rc::default();
    let holds: Rc<RefCell<ByGeneration<(u32, Millis)>>> = Rc::default();
    let mut waiting: Vec<ValidEvent> = Vec::new();
    let other_system = emitter(simulation.clock(0));
    let mut external = ExternalEnds::plan(&mut random, &plan, &other_system);
    waiting.append(&mut external.early);
    let subscribed = random.u8(..3) == 0;
    if subscribed {
        waiting.push(external_ends::subscribe(&processes[0].0, &other_system).await);
    }
    let mut delivered: BTreeMap<String, Vec<ValidEvent>> = BTreeMap::new();
    let (mut submitted, mut added) = (false, plan.added.as_array().unwrap().is_empty());
    let (mut started, mut steps, mut idle_rounds) = (0_u64, 0_u64, 0_u64);
    let drainers = if subscribed { &["jobs", "workflow_runner"][..] } else { &["jobs"] };
    // Drainers that have not come since an event was saved.
    let mut undrained: BTreeSet<&str> = drainers.iter().copied().collect();
    let mut resting = false;
    // Some jobs exist only because another system emitted their event.
    if random.u8(..4) == 0 {
        let created = json!({ "jobId": JOB, "requestId": JOB, "tasks": plan.tasks, "totalTasks": plan.tasks.as_array().unwrap().len() });
        let emitter = emitter(simulation.clock(0));
        let draft = emitter.event("Job Created").entity("JOB", JOB).properties(created);
        let event = draft.build_plain().unwrap();
        waiting.push(ledgerline_test_support::admitted(event));
        submitted = true;
    }
    loop {
        let calm = steps >= TROUBLE_ENDS;
        if steps == TROUBLE_ENDS {
            faults = Faults::none();
        }
        steps += 1;
        waiting.extend(external.next(&mut random, &other_system));
        while !waiting.is_empty() && simulation.live() < 6 && (calm || random.u8(..3) == 0) {
            let batch = waiting.split_off(waiting.len() - random.usize(1..=waiting.len().min(4)));
            let actor = format!("saver-{}", delivered.len());
            delivered.insert(actor.clone(), batch.clone());
            let (saver, told, clock) =
                (store.saver(), told.clone(), simulation.clock(random.i64(-10_000..10_000)));
            simulation.spawn(actor.clone(), async move {
                let answers = saver.save(&batch, clock()).await;
                told.borrow_mut().push(Told::Saved(actor, answers));
            });
        }
        let to_do = simulation.depth(&store.names.task_queue).visible
            + simulation.depth(&store.names.task_dead_letter_queue).visible;
        // Without faults, actors begin only if there is something to do: most of the time would go to empty receives.
        let wanted = !calm || !submitted || !added || to_do > 0 || !undrained.is_empty();
        if wanted && !resting && simulation.live() < if calm { 4 } else { 7 } && (calm || random.u8(..6) == 0)
        {
            started += 1;
            let which = random.usize(..processes.len());
            let stage = processes[which].0.clone();
            let actor = format!("process-{which}-{started}");
            let (told, emitter) = (told.clone(), emitter(simulation.clock(processes[which].1)));
            let worker = Worker {
                stage: stage.clone(),
                sqs: store.clients.sqs.clone(),
                tasks: tasks.clone(),
                dead_letters: dead_letters.clone(),
                natures: natures.clone(),
                ran: ran.clone(),
                holds: holds.clone(),
                random: Rng::with_seed(random.u64(..)),
            };
            match random.u8(..20) {
                0..3 if !submitted => {
                    let job: JobSubmission =
                        serde_json::from_value(json!({ "jobId": JOB, "tasks": plan.tasks })).unwrap();
                    simulation.spawn(actor, async move {
                        if stage.jobs.submit_job(&emitter, job).await.is_ok() {
                            told.borrow_mut().push(Told::Submitted);
                        }
                    });
                }
                3 if submitted && !added => {
                    let tasks = serde_json::from_value(plan.added.clone()).unwrap();
                    simulation.spawn(actor, async move {
                        match stage.jobs.add_tasks(&emitter, JOB, tasks).await {
                            Ok(_) => told.borrow_mut().push(Told::Added),
                            // Added by an attempt whose answer was lost; or too late.
                            Err(ComponentError::Invalid(invalid)) => {
                                assert!(invalid.to_string().contains("already has a task"), "{invalid}");
                                told.borrow_mut().push(Told::Added);
                            }
                            Err(ComponentError::Refused(reason)) => {
                                assert!(reason.contains("is completed"), "{reason}");
                                told.borrow_mut().push(Told::Added);
                            }
                            Err(_) => {}
                        }
                    });
                }
                4 if random.u8(..3) == 0 => simulation.spawn(actor, async move {
                    let _ = stage.jobs.resume_job(&emitter, JOB).await;
                }),
                5 if !calm => simulation.spawn(actor, async move { drop(stage.sweep.sweep(None).await) }),
                6..10 => {
                    let drainer = if subscribed && random.u8(..3) == 0 { "workflow_runner" } else { "jobs" };
                    undrained.remove(drainer);
                    simulation.spawn(actor, async move {
                        let _ = stage.drains.drain(&name(TENANT), &name(drainer), None).await;
                    });
                }
                10..18 => simulation.spawn(actor, async move { drop(Box::pin(worker.work()).await) }),
                _ => {
                    simulation.spawn(actor, async move { drop(Box::pin(worker.handle_dead_letter()).await) })
                }
            }
        }
        if !calm && random.u8(..60) == 0 {
            simulation.advance(random.u64(..200_000)).await;
        }
        let more = simulation.step(&faults).await;
        for killed in simulation.take_killed() {
            if let Some(batch) = delivered.get(&killed) {
                waiting.extend(batch.iter().cloned());
            } else if let Some(which) = killed.split('-').nth(1).and_then(|which| which.parse::<usize>().ok())
            {
                let skew = processes[which].1;
                processes[which].0 = process(store, &simulation, skew);
            }
        }
        for told in told.borrow_mut().drain(..) {
            match told {
                Told::Submitted => submitted = true,
                Told::Added => added = true,
                Told::Saved(actor, answers) => {
                    for (sent, answer) in delivered[&actor].iter().zip(answers) {
                        match answer {
                            Ok(Outcome::Saved { .. } | Outcome::Duplicate { .. }) => {
                                undrained.extend(drainers);
                                if !calm && random.u8(..6) == 0 {
                                    waiting.push(sent.clone());
                                }
                            }
                            Ok(other) => panic!("{other:?}"),
                            Err(error) => {
                                assert!(error.is_transient(), "{error}");
                                waiting.push(sent.clone());
                            }
                        }
                    }
                }
            }
        }
        for detail in simulation.take_bus() {
            let sent = validate(&detail, simulation.now().plus(60_000)).unwrap();
            waiting.extend(ExternalEnds::of_start(&mut random, &other_system, &sent.event));
            waiting.push(sent);
        }
        let queued = simulation.depth(&store.names.task_queue).total()
            + simulation.depth(&store.names.task_dead_letter_queue).total();
        // One at a time: time that leaps ahead of a sweep would take its lease away each time.
        let swept = !simulation.is_live(&format!("sweep-{idle_rounds}"));
        if calm && swept && waiting.is_empty() && submitted && added && (!more || random.u8(..15) == 0) {
            idle_rounds += 1;
            let marks = store.marks().await;
            assert!(
                idle_rounds < 500,
                "it does not come to rest: {queued} messages, marked: {}",
                marks.len()
            );
            let job = processes[0].0.jobs.job(&name(TENANT), JOB).await;
            let completed = job.as_ref().is_ok_and(|job| job.job.state == JobState::Completed);
            // From here on only what a stage does by itself.
            resting = completed && queued == 0;
            if resting && idle_rounds > 3 && marks.is_empty() && simulation.live() == 0 {
                break;
            }
            simulation.advance(if idle_rounds == 1 { 3_600_000 } else { 60_000 }).await;
            let stage = processes[0].0.clone();
            let emitter = emitter(simulation.clock(processes[0].1));
            simulation.spawn(format!("sweep-{idle_rounds}"), async move {
                stage.sweep.sweep(None).await.unwrap();
                if job.is_ok_and(|job| job.job.state == JobState::Failed) {
                    let _ = stage.jobs.resume_job(&emitter, JOB).await;
                }
            });
        }
    }
    let ran = ran.take();
    final_checks::check(store, &plan, &ran, &processes[0].0).await;
}

#[test]
fn each_task_of_a_job_starts_once_and_ends_once_whatever_goes_wrong() {
    // Each of these histories is several times as long as one of draining alone.
    histories(wanted(500).div_ceil(5), history);
}
