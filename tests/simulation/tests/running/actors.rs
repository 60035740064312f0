//! The actors of a history: starters, senders, callers of hooks, runners, workers, drainers and sweeps.

use std::time::Duration;

use fastrand::Rng;
use ledgerline_event::Millis;
use ledgerline_ledger::Emitter;
use ledgerline_outbox::ComponentError;
use ledgerline_runs::{EventSubmission, HookAnswer, HookPayload, RunMessage, RunSubmission, SendingRun};
use ledgerline_stage::Stage;
use ledgerline_test_support::{
    name,
    previous_version::{OldEvent, OldSender},
};
use ledgerline_workflow::{Runner, Visited};
use serde_json::json;
use tokio::time::Instant;

use super::{
    History, TENANT, Told, external_runs,
    scenario::{Sending, tokens, under_way},
    task_worker, url,
    workflow_script::VISIT,
};

impl History<'_> {
    /// Whether something is left to do that a stage does not do by itself.
    pub(super) fn has_to_do(&self) -> bool {
        self.scenario.wanted.values().any(|(.., started)| !started)
            || self.scenario.sends.iter().any(|send| send.event_id.is_some() && !send.sent)
            || !self.scenario.posts.is_empty()
            || !self.external_runs_to_drive().is_empty()
            || self.simulation.depth(&self.store.names.run_queue).visible > 0
            || self.simulation.depth(&self.store.names.task_queue).visible > 0
            || self.undrained && (self.scenario.with_tasks || self.scenario.with_subscriptions)
    }

    /// The external runs that could go on.
    fn external_runs_to_drive(&self) -> Vec<String> {
        let new = self.scenario.external.iter().filter(|run_id| !self.observed.runs.contains_key(*run_id));
        let could = self.observed.runs.values().filter(|known| {
            let waits = known.history.open_waits().count();
            known.is_external() && !known.has_ended() && (waits == 0 || !self.is_calm())
        });
        new.cloned().chain(could.map(|known| known.run_id.to_string())).collect()
    }

    /// Spawns an actor, perhaps.
    pub(super) fn act(&mut self) {
        let calm = self.is_calm();
        if self.simulation.live() >= if calm { 4 } else { 7 } || !calm && self.random.u8(..5) != 0 {
            return;
        }
        if calm && !self.has_to_do() {
            return;
        }
        match self.random.u8(..32) {
            0..4 => self.start(),
            4..7 => self.send(),
            7..10 => self.post(),
            10 if !calm && self.scenario.with_cancels => self.cancel(),
            11 | 12 if !calm => self.sweep(),
            13..16 => self.drive_external_run(),
            16 | 17 if self.scenario.with_tasks => self.work(),
            18..20 if self.undrained => self.drain(),
            20.. => self.visit(),
            _ => {}
        }
    }

    /// A runner dies for no reason of its own. Returns which.
    pub(super) fn kill(&mut self) -> Option<String> {
        let visits: Vec<String> =
            self.visits.keys().filter(|visit| self.simulation.is_live(visit)).cloned().collect();
        let visit = self.random.choice(visits)?;
        self.simulation.kill(&visit);
        Some(visit)
    }

    /// A process, with an emitter of its own.
    fn any_process(&mut self) -> (usize, Stage, Emitter) {
        let which = self.random.usize(..self.processes.len());
        let process = &self.processes[which];
        let clock = self.simulation.clock(process.skew_ms);
        let store = self.store;
        let emitter = Emitter::with_clock(&store.clients, &store.names, name(TENANT), name("shop"), clock);
        (which, process.stage.clone(), emitter)
    }

    fn spawn(&mut self, what: &str, future: impl Future<Output = ()> + 'static) {
        self.spawned += 1;
        self.simulation.spawn(format!("{what}-{}", self.spawned), future);
    }

    fn start(&mut self) {
        let calm = self.is_calm();
        let runs = self.scenario.wanted.iter().filter(|(.., (.., started))| !calm || !started);
        let runs: Vec<_> = runs.map(|(run_id, run)| (run_id.clone(), run.clone())).collect();
        let Some((run_id, (workflow, mut input, started))) = self.random.choice(runs) else { return };
        let (_, stage, emitter) = self.any_process();
        // Another caller may want another run by that name.
        let is_other = started && self.random.u8(..4) == 0;
        if is_other {
            input = json!("something else");
        }
        let submission = RunSubmission { workflow: workflow.into(), input, run_id: Some(run_id.clone()) };
        let told = self.told.clone();
        self.spawn("start", async move {
            match stage.runs.start_run(&emitter, submission).await {
                Ok(run) => {
                    assert!(!is_other && run.run_id.as_str() == run_id, "{run_id} is {run:?}");
                    assert!(!started || run.collapsed, "{run_id} is new again");
                    told.borrow_mut().push(Told::Started(run_id));
                }
                Err(ComponentError::Refused(reason)) => assert!(is_other, "{reason}"),
                Err(ComponentError::Store(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
        });
    }

    fn send(&mut self) {
        let calm = self.is_calm();
        let sends = self.scenario.sends.iter().enumerate();
        // What is sent under its id once more is not sent again.
        let open = sends.filter(|(_, send)| !send.sent || !calm && send.event_id.is_some());
        let open: Vec<_> = open.map(|(number, send)| (number, send.clone())).collect();
        let Some((number, send)) = self.random.choice(open) else { return };
        if send.event_id.is_none() {
            self.scenario.sent(number);
        }
        let began = *self.scenario.sends[number].began.get_or_insert(self.steps);
        let (which, stage, emitter) = self.any_process();
        let told = self.told.clone();
        if send.old {
            let clock = self.simulation.clock(self.processes[which].skew_ms);
            let timestamp = *self.scenario.sends[number].old_time.get_or_insert_with(|| clock());
            return self.send_as_before(number, &send, began, timestamp);
        }
        self.spawn("send", async move {
            // A sender has an id for its event, or a key under which the event gets one.
            let (event_id, idempotency_key) = match number % 2 {
                0 => (send.event_id, None),
                _ => (None, send.event_id),
            };
            let from = name("somebody");
            let from = event_id.map(|id| SendingRun { run_id: &from, event_id: name(&id) });
            let data = json!({ "number": number });
            let event = EventSubmission { event: send.event, data, r#match: send.matching, idempotency_key };
            match stage.events.send_event(&emitter, event, from).await {
                Ok(sent) => {
                    told.borrow_mut().push(Told::Sent { number, event_id: sent.event_id.to_string(), began })
                }
                Err(ComponentError::Store(_) | ComponentError::NotNotified(_) | ComponentError::Emit(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
        });
    }

    fn send_as_before(&mut self, number: usize, send: &Sending, began: u64, timestamp: Millis) {
        let store = self.store;
        let sender = OldSender::new(&store.clients, &store.names, &url(&store.names.run_queue));
        let event = OldEvent {
            tenant: TENANT.into(),
            event_name: send.event.clone(),
            event_id: send.event_id.clone().unwrap(),
            data: json!({ "number": number }),
            matching: send.matching.clone(),
            timestamp,
        };
        let told = self.told.clone();
        self.spawn("old-send", async move {
            if sender.send(&event).await.is_ok() {
                told.borrow_mut().push(Told::Sent { number, event_id: event.event_id, began });
            }
        });
    }

    fn post(&mut self) {
        let token = match self.scenario.posts.pop() {
            Some(token) => Some(token),
            None if self.is_calm() => None,
            None => self.random.choice(tokens(&self.observed.runs)),
        };
        let Some(token) = token else { return };
        let number = self.spawned + 1;
        let keyed = self.random.bool().then(|| format!("post-{number}"));
        // With a key the payload comes from two processes, perhaps at once.
        if keyed.is_some() {
            self.post_to(token.clone(), number, keyed.clone());
        }
        self.post_to(token, number, keyed);
    }

    fn post_to(&mut self, token: String, payload: u64, idempotency_key: Option<String>) {
        let (_, stage, _) = self.any_process();
        let told = self.told.clone();
        self.acknowledged.payloads.entry(payload).or_default().senders += 1;
        self.spawn("post", async move {
            let given = HookPayload { payload: json!(payload), idempotency_key };
            match stage.hooks.receive_by_hook(Some(&name(TENANT)), &token, given).await {
                Ok(HookAnswer::Received { .. }) => {
                    told.borrow_mut().push(Told::Posted { payload, received: true })
                }
                Ok(HookAnswer::Gone) => told.borrow_mut().push(Told::Posted { payload, received: false }),
                Ok(HookAnswer::Unknown) => panic!("{token} is unknown"),
                Err(ComponentError::Store(_) | ComponentError::NotNotified(_) | ComponentError::Emit(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
        });
    }

    fn cancel(&mut self) {
        let Some(run_id) = self.random.choice(under_way(&self.observed.runs)) else { return };
        let (_, stage, _) = self.any_process();
        self.spawn("cancel", async move {
            match stage.runs.cancel_run(&name(TENANT), &run_id, Some("no more")).await {
                Ok(run) => assert!(run.state.is_terminal(), "{run_id} is {}", run.state),
                Err(ComponentError::Illegal(_) | ComponentError::Store(_) | ComponentError::Emit(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
        });
    }

    pub(super) fn sweep(&mut self) {
        let (_, stage, _) = self.any_process();
        let (calm, first) = (self.is_calm(), self.random.bool());
        self.spawn("sweep", async move {
            if first || calm {
                let swept = stage.run_sweep.sweep_runs().await;
                assert!(swept.is_ok() || !calm, "{swept:?}");
            }
            if !first || calm {
                let swept = stage.sweep.sweep(None).await;
                assert!(swept.is_ok() || !calm, "{swept:?}");
            }
        });
    }

    fn drive_external_run(&mut self) {
        let mut could = self.external_runs_to_drive();
        // Some take over a run that a runner executes.
        if !self.is_calm() && self.random.u8(..20) == 0 {
            could.extend(under_way(&self.observed.runs));
        }
        let Some(run_id) = self.random.choice(could) else { return };
        let (_, stage, emitter) = self.any_process();
        let (random, calm) = (Rng::with_seed(self.random.u64(..)), self.is_calm());
        self.spawn("driver", external_runs::append_one(stage, emitter, run_id, random, calm));
    }

    fn work(&mut self) {
        let (_, stage, _) = self.any_process();
        let (sqs, queue) = (self.store.clients.sqs.clone(), url(&self.store.names.task_queue));
        let fails = self.random.u8(..5) == 0;
        self.spawn("work", async move { drop(task_worker::work(stage, sqs, queue, fails).await) });
    }

    fn drain(&mut self) {
        self.undrained = false;
        let (_, stage, _) = self.any_process();
        let drainer = match (self.scenario.with_tasks, self.scenario.with_subscriptions) {
            (true, true) => ["jobs", "workflow_runner"][self.random.usize(..2)],
            (true, false) => "jobs",
            (false, true) => "workflow_runner",
            (false, false) => return,
        };
        self.spawn("drain", async move {
            let _ = stage.drains.drain(&name(TENANT), &name(drainer), None).await;
        });
    }

    /// A runner gets a message and does what it says.
    fn visit(&mut self) {
        let (which, ..) = self.any_process();
        let runner = self.processes[which].runner.clone();
        let (sqs, queue) = (self.store.clients.sqs.clone(), url(&self.store.names.run_queue));
        let seconds = match self.scenario.with_deadlines && !self.is_calm() {
            true => self.random.u64(..30),
            false => 10_000,
        };
        let deadline = Instant::now() + Duration::from_secs(seconds);
        self.spawned += 1;
        let (visit, actor) = (self.spawned, format!("visit-{}", self.spawned));
        self.observed.visit_begins(visit, self.steps);
        self.visits.insert(actor.clone(), which);
        self.simulation.spawn(actor, VISIT.scope(visit, receive_and_visit(runner, sqs, queue, deadline)));
    }
}

async fn receive_and_visit(runner: Runner, sqs: aws_sdk_sqs::Client, queue: String, deadline: Instant) {
    let answer = sqs.receive_message().queue_url(&queue).max_number_of_messages(1).send().await;
    let Some(received) = answer.ok().and_then(|answer| answer.messages?.pop()) else { return };
    let message = RunMessage::parse(received.body().unwrap()).unwrap();
    match runner.visit(&message, Some(deadline)).await {
        Ok(Visited::Unknown) => panic!("{message:?} is unknown"),
        Ok(_) => {
            let receipt = received.receipt_handle().unwrap();
            let _ = sqs.delete_message().queue_url(&queue).receipt_handle(receipt).send().await;
        }
        // The message comes again.
        Err(ComponentError::Store(_) | ComponentError::NotNotified(_) | ComponentError::Emit(_)) => {}
        Err(error) => panic!("{message:?}: {error:?}"),
    }
}
