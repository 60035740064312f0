//! The examples in local mode's own process, where the clock can be moved.

#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ledgerline_event::{Name, RunState, WaitState};
use ledgerline_ledger::{Emitter, system_clock};
use ledgerline_local::{Local, LocalOptions};
use ledgerline_runs::{RunAcquisition, RunDetails, RunSubmission};
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(60);

struct World {
    local: Local,
    tenant: Name,
    ahead: Arc<AtomicU64>,
    options: LocalOptions,
}

impl World {
    async fn start(folder: &std::path::Path) -> Self {
        let ahead = Arc::new(AtomicU64::new(0));
        let clock = {
            let (ahead, system) = (ahead.clone(), system_clock());
            Arc::new(move || system().plus(ahead.load(Ordering::SeqCst)))
        };
        let options = LocalOptions {
            workflows: Some(example_workflows::workflows()),
            clock,
            ..LocalOptions::new(folder)
        };
        let local = Local::start(options.clone()).await.unwrap();
        Self { local, tenant: Name::new("tenant", "local").unwrap(), ahead, options }
    }

    async fn restart(self) -> Self {
        let Self { local, tenant, ahead, options } = self;
        local.stop().await;
        Self { local: Local::start(options.clone()).await.unwrap(), tenant, ahead, options }
    }

    async fn begin(&self, workflow: &str, input: Value) -> Name {
        let app = Name::new("app", "test").unwrap();
        let clock = self.options.clock.clone();
        let emitter =
            Emitter::with_clock(&self.local.clients, &self.local.names, self.tenant.clone(), app, clock);
        let submission = RunSubmission { workflow: workflow.into(), input, run_id: None };
        self.local.stage.runs.start_run(&emitter, submission).await.unwrap().run_id
    }

    async fn when(&self, run_id: &Name, probe: impl Fn(&RunDetails) -> bool) -> RunDetails {
        let began = Instant::now();
        loop {
            let run = self.local.stage.runs.run(&self.tenant, run_id).await.unwrap();
            if probe(&run) {
                return run;
            }
            assert!(began.elapsed() < DEADLINE, "{run:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Moves the clock forward and sweeps, so that the runs whose timers are due wake up.
    async fn advance(&self, time: Duration) {
        self.ahead.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
        self.local.stage.run_sweep.sweep_runs().await.unwrap();
    }
}

fn waits(run: &RunDetails) -> bool {
    run.view.waits.iter().any(|wait| wait.state == WaitState::Waiting)
}

fn ended(run: &RunDetails) -> bool {
    run.view.run.state.is_terminal()
}

fn steps(run: &RunDetails) -> Vec<&str> {
    run.view.steps.iter().map(|step| step.name.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unpaid_order_releases_its_reservation_after_three_days() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::start(folder.path()).await;
    let order = json!({ "orderId": "o-1", "lines": [{ "sku": "tea", "quantity": 1, "cents": 450 }] });
    let run_id = world.begin("order", order).await;
    world.when(&run_id, waits).await;

    // Two days and a restart later it still waits.
    world.advance(Duration::from_hours(48)).await;
    let world = world.restart().await;
    assert_eq!(world.when(&run_id, waits).await.view.run.state, RunState::Running);

    world.advance(Duration::from_hours(25)).await;
    let run = world.when(&run_id, ended).await;
    assert_eq!(run.view.run.output, Some(json!({ "state": "expired" })));
    assert_eq!(steps(&run), ["reserve", "release"]);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_runner_died_with_local_mode_goes_on_as_soon_as_that_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::start(folder.path()).await;
    let workflows = world.options.workflows.take();
    let mut world = world.restart().await;
    let run_id = world.begin("fan_out", json!({ "documents": ["one"] })).await;
    // This stands for a runner that acquires the run and dies: it neither renews nor releases the lease.
    let taken = world.local.stage.runs.leases.acquire_run(&world.tenant, &run_id, 600_000).await.unwrap();
    assert!(matches!(taken, RunAcquisition::Acquired(_)), "{taken:?}");
    world.options.workflows = workflows;
    let world = world.restart().await;
    // The clock has not moved: the lease was still good for ten minutes.
    let run = world.when(&run_id, ended).await;
    assert_eq!(run.view.run.state, RunState::Completed, "{run:?}");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approver_is_reminded_after_a_day_and_may_answer_for_a_week() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::start(folder.path()).await;
    let request = json!({ "document": "budget.pdf", "approver": "ada" });
    let (answered, expired) =
        (world.begin("approval", request.clone()).await, world.begin("approval", request).await);
    for run_id in [&answered, &expired] {
        world.when(run_id, waits).await;
    }
    world.advance(Duration::from_hours(25)).await;
    let reminded = |run: &RunDetails| steps(run).len() == 2 && waits(run);
    world.when(&expired, reminded).await;
    let token = world.when(&answered, reminded).await.view.hooks[0].token.clone();
    let token = Name::new("token", token).unwrap();
    let answer = json!({ "approved": false, "by": "ada" });
    world.local.stage.hooks.receive_by_hook(None, &token, answer).await.unwrap();
    let run = world.when(&answered, ended).await;
    assert_eq!(run.view.run.output, Some(json!({ "state": "rejected", "by": "ada" })));

    world.advance(Duration::from_hours(6 * 24)).await;
    let run = world.when(&expired, ended).await;
    assert_eq!(run.view.run.output, Some(json!({ "state": "expired" })));
    world.local.stop().await;
}
