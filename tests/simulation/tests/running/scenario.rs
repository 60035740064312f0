//! What is to happen in a history, whatever else does: runs, events, payloads.

use std::collections::BTreeMap;

use fastrand::Rng;
use ledgerline_drains::{NewSubscription, NewWorkflowType};
use ledgerline_event::{HookState, Millis, RunState, ValidEvent, WaitFor};
use ledgerline_simulation::BEGINNING;
use ledgerline_stage::Stage;
use ledgerline_test_support::{admitted, at, event, name};
use serde_json::{Value, json};

use super::{
    TENANT,
    observed_runs::ObservedRun,
    workflow_script::{Author, EVENTS, matched},
};

pub(super) struct Scenario {
    /// Runs to start, with their workflows and inputs, and whether a start was acknowledged.
    pub(super) wanted: BTreeMap<String, (&'static str, Value, bool)>,
    /// Runs that are external from the beginning.
    pub(super) external: Vec<String>,
    pub(super) sends: Vec<Sending>,
    /// Tokens of the hooks to call.
    pub(super) posts: Vec<String>,
    pub(super) with_tasks: bool,
    pub(super) with_subscriptions: bool,
    pub(super) with_cancels: bool,
    pub(super) with_deadlines: bool,
    /// Processes of versions before 0.1.0 send some of the events.
    pub(super) with_old_senders: bool,
    orders: Vec<ValidEvent>,
}

/// How the ids of events begin that processes of versions before 0.1.0 send.
pub(super) const OLD: &str = "old-";

/// An event that is to be sent.
#[derive(Clone)]
pub(super) struct Sending {
    /// The id that it has to have, if it matters: then it is sent until a sender says that it is accepted.
    pub(super) event_id: Option<String>,
    pub(super) event: String,
    pub(super) matching: Value,
    pub(super) sent: bool,
    /// Sent by a process of a version before 0.1.0.
    pub(super) old: bool,
    /// The step in which the first sender began.
    pub(super) began: Option<u64>,
    /// The time that the first sender of a version before 0.1.0 has written down: those that resume it keep it.
    pub(super) old_time: Option<Millis>,
}

impl Scenario {
    pub(super) fn make(random: &mut Rng) -> Self {
        let with_tasks = random.u8(..4) == 0;
        let with_subscriptions = random.u8(..4) == 0;
        let is_crowd = random.u8(..3) == 0;
        let mut author = Author { random: random.fork(), names: 0, with_tasks, is_crowd };
        let mut wanted = BTreeMap::new();
        for n in 0..random.usize(1..4) {
            let (workflow, input) = match random.u8(..24) {
                0 => ("nobodys", json!({})),
                1 => ("script", json!("no script")),
                _ => ("script", json!(author.script())),
            };
            wanted.insert(format!("run-{n}"), (workflow, input, false));
        }
        let external = if random.u8(..4) == 0 { vec!["elsewhere-1".to_owned()] } else { Vec::new() };
        let mut orders = Vec::new();
        for n in 0..if with_subscriptions { random.u64(1..4) } else { 0 } {
            let mut order = event(TENANT, &format!("order-{n}"), at(BEGINNING + random.u64(..20_000)));
            let (event_type, properties) = match random.u8(..3) {
                0 => ("parcel.scanned", json!({ "to": random.u8(..3), "n": n })),
                _ => ("order.placed", json!(author.script())),
            };
            order.event_type = name(event_type);
            order.properties = properties.as_object().unwrap().clone();
            orders.push(admitted(order));
        }
        let mut scenario = Self {
            wanted,
            external,
            sends: Vec::new(),
            posts: Vec::new(),
            with_tasks,
            with_subscriptions,
            with_cancels: random.u8(..4) == 0,
            with_deadlines: random.u8(..3) == 0,
            with_old_senders: random.u8(..4) == 0,
            orders,
        };
        for _ in 0..if is_crowd { random.usize(6..14) } else { random.usize(..9) } {
            let event = if is_crowd { EVENTS[0] } else { EVENTS[random.usize(..EVENTS.len())] };
            let matching = if is_crowd { json!({ "to": 0 }) } else { matched(random) };
            scenario.send(event, matching, random);
            if scenario.with_old_senders && random.bool() {
                let number = scenario.sends.len() - 1;
                let send = &mut scenario.sends[number];
                (send.old, send.event_id) = (true, Some(format!("{OLD}{number}")));
            }
        }
        scenario
    }

    /// Has subscriptions made, and answers the events that are for them.
    pub(super) async fn subscribe(&self, stage: &Stage) -> Vec<ValidEvent> {
        if self.with_subscriptions {
            for (workflow, glob) in [
                (json!({"workflowType": "o", "kind": "run", "workflow": "script"}), "order.*"),
                (
                    json!({"workflowType": "p", "kind": "send", "event": EVENTS[0], "match": {"to": "$.to"}}),
                    "parcel.scanned",
                ),
            ] {
                let workflow: NewWorkflowType = serde_json::from_value(workflow).unwrap();
                let id = workflow.workflow_type.clone();
                let workflow = workflow.created_at(at(BEGINNING)).unwrap();
                stage.registry().register(&name(TENANT), &workflow).await.unwrap();
                let new = json!({"eventTypeGlob": glob, "workflowType": id});
                let new: NewSubscription = serde_json::from_value(new).unwrap();
                stage.registry().subscribe(&name(TENANT), new).await.unwrap();
            }
        }
        self.orders.clone()
    }

    /// How many runs the subscriptions start, and how many events they send.
    pub(super) fn ordered(&self) -> (usize, usize) {
        let runs = self.orders.iter().filter(|order| &*order.event.event_type == "order.placed").count();
        (runs, self.orders.len() - runs)
    }

    pub(super) fn send(&mut self, event: &str, matching: Value, random: &mut Rng) {
        // Ids that are drawn afresh make a history less of a repetition, so there are few.
        let event_id = (random.u8(..8) > 0).then(|| format!("evnt-{}", self.sends.len()));
        self.sends.push(Sending {
            event_id,
            event: event.to_owned(),
            matching,
            sent: false,
            old: false,
            began: None,
            old_time: None,
        });
    }

    pub(super) fn started(&mut self, run_id: &str) {
        if let Some(run) = self.wanted.get_mut(run_id) {
            run.2 = true;
        }
    }

    pub(super) fn sent(&mut self, number: usize) {
        self.sends[number].sent = true;
    }

    /// Gives runs something of what they wait for.
    pub(super) fn give(&mut self, runs: &BTreeMap<String, ObservedRun>, random: &mut Rng) {
        for known in runs.values() {
            for wait in known.history.open_waits() {
                if let WaitFor::Event { event_name, match_criteria, .. } = &wait.target {
                    let mut matching = match_criteria.clone();
                    matching["given"] = json!(random.u8(..3));
                    self.send(event_name, matching, random);
                }
            }
            let hooks = known.history.hooks().iter().filter(|hook| hook.state == HookState::Active);
            self.posts.extend(hooks.map(|hook| hook.token.clone()));
        }
    }
}

/// The tokens of all hooks, disposed ones too.
pub(super) fn tokens(runs: &BTreeMap<String, ObservedRun>) -> Vec<String> {
    let hooks = runs.values().flat_map(|known| known.history.hooks());
    hooks.map(|hook| hook.token.clone()).collect()
}

/// The runs that can be cancelled.
pub(super) fn under_way(runs: &BTreeMap<String, ObservedRun>) -> Vec<String> {
    let under_way =
        |known: &&ObservedRun| matches!(known.history.state(), Some(RunState::Pending | RunState::Running));
    runs.values().filter(under_way).map(|known| known.run_id.to_string()).collect()
}
