//! A ledger for tests of runs, whose runner works only when the test calls it.

use ledgerline_embedded::{Receive, Received};
use ledgerline_event::{Event, LogEvent, Name, RunState};
use ledgerline_runs::{RunDetails, RunMessage, RunSubmission};
use ledgerline_workflow::{Runner, RunnerOptions, Visited, Workflows};
use serde_json::{Value, json};

use crate::{Ledger, name};

/// The tenant of these runs.
pub const TENANT: &str = "t";

impl Ledger {
    /// A runner of these workflows.
    pub fn runner(&self, workflows: Workflows) -> Runner {
        Runner::new(
            self.stage.clone(),
            workflows,
            RunnerOptions { wait_in_place_ms: 0, ..RunnerOptions::default() },
        )
    }

    /// Starts a run and returns its id.
    pub async fn start_run(&self, workflow: &str, input: Value) -> Name {
        let run: RunSubmission =
            serde_json::from_value(json!({ "workflow": workflow, "input": input })).unwrap();
        self.stage.runs.start_run(&self.emitter(TENANT), run).await.unwrap().run_id
    }

    /// The next message for a runner.
    pub fn next_run(&self) -> Option<Received> {
        let receive = Receive { max: 1, wait: None, visibility_seconds: None };
        self.store.embedded.queues().receive_now(&self.store.names.run_queue, &receive).unwrap().pop()
    }

    /// Has `runner` visit every run that has a message.
    pub async fn run_all(&self, runner: &Runner) -> Vec<Visited> {
        let mut visited = Vec::new();
        while let Some(received) = self.next_run() {
            let message = RunMessage::parse(&received.body).unwrap();
            visited.push(runner.visit(&message, None).await.unwrap());
            self.store.embedded.queues().delete(&self.store.names.run_queue, &received.receipt).unwrap();
        }
        visited
    }

    /// A run as the API shows it.
    pub async fn run(&self, run_id: &str) -> RunDetails {
        self.stage.runs.run(&name(TENANT), run_id).await.unwrap()
    }

    /// The state of a run.
    pub async fn run_state(&self, run_id: &str) -> RunState {
        self.run(run_id).await.view.run.state
    }

    /// The log of a run.
    pub async fn log(&self, run_id: &str) -> Vec<LogEvent> {
        self.stage.runs.run_events(&name(TENANT), run_id).await.unwrap()
    }

    /// The events of a run in the ledger, as the time line has them: an event that is there twice is returned twice.
    pub async fn told(&self, run_id: &str) -> Vec<Event> {
        self.deliver().await;
        let mut told = Vec::new();
        for entity in ["RUN", "STEP", "HOOK", "WAIT"] {
            for kind in ledgerline_event::RunEventType::ALL {
                if kind.entity().entity_type() == entity {
                    let events = self.events(TENANT, kind.as_str()).await;
                    told.extend(
                        events.into_iter().filter(|event| event.workflow_run_id.as_deref() == Some(run_id)),
                    );
                }
            }
        }
        told
    }

    /// Checks that the ledger has each event of the run's log once, and no other event of the run.
    pub async fn assert_told(&self, run_id: &str) {
        let mut log: Vec<(String, String)> = self
            .log(run_id)
            .await
            .into_iter()
            .map(|event| (event.event_id.to_string(), event.event_type.to_string()))
            .collect();
        let mut told: Vec<(String, String)> = self
            .told(run_id)
            .await
            .into_iter()
            .map(|event| (event.event_id.to_string(), event.event_type.to_string()))
            .collect();
        log.sort();
        told.sort();
        assert_eq!(told, log);
    }

    /// Visits and sweeps, a minute at a time, until the run has ended.
    pub async fn finish(&self, runner: &Runner, run_id: &str) -> RunState {
        for _ in 0..50 {
            self.run_all(runner).await;
            let state = self.run_state(run_id).await;
            if state.is_terminal() {
                return state;
            }
            self.advance(61_000);
            self.stage.run_sweep.sweep_runs().await.unwrap();
        }
        panic!("{run_id} has not ended: {:?}", self.run(run_id).await);
    }
}
