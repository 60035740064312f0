//! The examples as a person runs them: local mode, and beside it the program with the workflows.

#![allow(clippy::unwrap_used)]

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use ledgerline_local::{Local, LocalOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for a loaded machine; nothing waits this long when all is well.
const DEADLINE: Duration = Duration::from_secs(60);

async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(began.elapsed() < DEADLINE, "timed out: waited {DEADLINE:?} until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_example-workflows"));
    for name in ["RUST_LOG", "LEDGERLINE_STAGE", "LEDGERLINE_DATA", "LEDGERLINE_RUN_LEASE_SECONDS"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// The program, ended by its id whatever becomes of the test.
struct Program(Child);

impl Program {
    /// Starts the program for the local mode of a folder. The lease is short, so that the runs of a killed program
    /// soon continue.
    fn start(folder: &Path) -> Self {
        let log = File::options().create(true).append(true).open(folder.join("program.log")).unwrap();
        let mut command = program();
        command.args(["--local", "--lease", "1", "--data"]).arg(folder).stderr(log).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    async fn terminate(&mut self) -> ExitStatus {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        until("the program has ended", || std::future::ready(self.0.try_wait().unwrap())).await
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Local mode, and the way to its API.
struct World {
    local: Local,
    folder: TempDir,
    http: reqwest::Client,
}

impl World {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let local = Local::start(LocalOptions::new(folder.path())).await.unwrap();
        Self { local, folder, http: reqwest::Client::new() }
    }

    /// Starts the program and waits until it has said what it can run.
    async fn program(&self) -> Program {
        let program = Program::start(self.folder.path());
        until("the program waits for runs", || async {
            let known = self.local.stage.runs.registry.runnable_workflows().await.unwrap();
            (known.len() == 4).then_some(())
        })
        .await;
        program
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("program.log")).unwrap()
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> (u16, Value) {
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let request = self.http.post(format!("{}{path}", self.local.state.api_url)).json(&body);
        self.send(request.bearer_auth(&self.local.state.api_key)).await
    }

    async fn run(&self, run_id: &str) -> Value {
        let request = self.http.get(format!("{}/api/runs/{run_id}", self.local.state.api_url));
        let (status, run) = self.send(request.bearer_auth(&self.local.state.api_key)).await;
        assert_eq!(status, 200, "{run}");
        run
    }

    async fn begin(&self, workflow: &str, input: Value) -> String {
        let (status, answer) = self.post("/api/runs", json!({ "workflow": workflow, "input": input })).await;
        assert_eq!(status, 202, "{answer}");
        answer["runId"].as_str().unwrap().to_owned()
    }

    async fn pay(&self, order_id: &str, cents: u64) {
        let paid = json!({
            "event": "payment.received", "data": { "cents": cents },
            "match": { "orderId": order_id, "currency": "EUR" },
        });
        let (status, answer) = self.post("/api/events/send", paid).await;
        assert_eq!(status, 202, "{answer}");
    }

    /// The run, once it has what `probe` finds.
    async fn when<T>(&self, run_id: &str, probe: impl Fn(&Value) -> Option<T>) -> T {
        until("the run is so far", || async { probe(&self.run(run_id).await) }).await
    }

    async fn ended(&self, run_id: &str) -> Value {
        self.when(run_id, |run| (!is(run, "pending") && !is(run, "running")).then(|| run.clone())).await
    }

    /// The address that takes the answer of the approver, once the run waits for it.
    async fn address(&self, run_id: &str) -> String {
        let asked = |run: &Value| {
            let waits = run["waits"].as_array()?.iter().any(|wait| wait["state"] == "waiting");
            waits.then(|| format!("/api/hooks/{}", run["hooks"][0]["token"].as_str().unwrap()))
        };
        self.when(run_id, asked).await
    }

    /// Sends an answer to the hook without an API key, and gives the status of the response.
    async fn answer(&self, address: &str, answer: Value) -> u16 {
        let request = self.http.post(format!("{}{address}", self.local.state.api_url)).json(&answer);
        self.send(request).await.0
    }
}

fn is(run: &Value, state: &str) -> bool {
    run["state"] == state
}

fn steps(run: &Value) -> Vec<&str> {
    run["steps"].as_array().unwrap().iter().map(|step| step["stepName"].as_str().unwrap()).collect()
}

fn tea(order_id: &str) -> Value {
    json!({ "orderId": order_id, "lines": [{ "sku": "tea", "quantity": 2, "cents": 450 }] })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_example_goes_to_its_end_in_a_program_of_its_own() {
    let world = World::start().await;
    let mut program = world.program().await;

    let order = world.begin("order", tea("o-1")).await;
    // The payment for o-1 comes while its run waits, the payment for o-2 before its run starts.
    world.when(&order, |run| (run["waits"][0]["state"] == "waiting").then_some(())).await;
    world.pay("o-2", 1_000).await;
    world.pay("o-1", 900).await;
    let early = world.begin("order", tea("o-2")).await;
    for run_id in [order, early] {
        let run = world.ended(&run_id).await;
        assert!(is(&run, "completed"), "{run}");
        assert_eq!(
            (&run["output"]["state"], &run["output"]["chargedCents"]),
            (&json!("shipped"), &json!(900))
        );
        assert_eq!(steps(&run), ["reserve", "charge", "ship"]);
    }
    let underpaid = world.begin("order", tea("o-3")).await;
    world.pay("o-3", 1).await;
    let run = world.ended(&underpaid).await;
    assert_eq!((&run["state"], &run["errorCode"]), (&json!("failed"), &json!("underpaid")), "{run}");

    let asked = json!({ "document": "budget.pdf", "approver": "ada" });
    let approval = world.begin("approval", asked.clone()).await;
    let address = world.address(&approval).await;
    assert_eq!(world.answer(&address, json!({ "approved": true, "by": "ada" })).await, 202);
    let run = world.ended(&approval).await;
    assert_eq!(run["output"], json!({ "state": "approved", "by": "ada" }), "{run}");
    assert_eq!(run["waits"][0]["outcome"], "abandoned", "the approver gets no more reminders: {run}");
    assert_eq!(world.answer(&address, json!({ "approved": false, "by": "eve" })).await, 410);
    let soon = json!({ "document": "budget.pdf", "approver": "ada", "remindAfterSeconds": 1, "expireAfterSeconds": 2 });
    let run = world.ended(&world.begin("approval", soon).await).await;
    assert_eq!(run["output"], json!({ "state": "expired" }), "{run}");
    assert_eq!(steps(&run), ["tell the approver", "remind the approver"]);

    let documents = json!({ "documents": ["one two", "two three three", ""] });
    let run = world.ended(&world.begin("fan_out", documents).await).await;
    assert_eq!(run["output"]["words"], json!({ "one": 1, "two": 2, "three": 2 }), "{run}");
    assert_eq!(steps(&run), ["count"; 3]);

    let run = world.ended(&world.begin("saga", json!({ "traveller": "ada", "to": "Turin" })).await).await;
    assert_eq!(run["output"].as_array().unwrap().len(), 3, "{run}");
    let run = world.ended(&world.begin("saga", json!({ "traveller": "ada", "to": "Venice" })).await).await;
    assert_eq!((&run["state"], &run["errorCode"]), (&json!("failed"), &json!("not_available")), "{run}");
    assert_eq!(steps(&run), ["book flight", "book hotel", "book car", "cancel hotel", "cancel flight"]);

    // The API refuses a workflow that no runner has. An input that does not fit fails the run once it begins.
    let (status, answer) = world.post("/api/runs", json!({ "workflow": "oder" })).await;
    assert_eq!(status, 400);
    assert!(answer["detail"].as_str().unwrap().contains("approval, fan_out, order, saga"), "{answer}");
    let run = world.ended(&world.begin("order", json!({ "orderId": 7, "lines": [] })).await).await;
    assert_eq!((&run["state"], &run["errorCode"]), (&json!("failed"), &json!("bad_input")), "{run}");
    assert!(run["error"].as_str().unwrap().contains("orderId"), "{run}");

    assert!(program.terminate().await.success());
    let log = world.log();
    assert!(
        log.contains("4 workflows: approval, fan_out, order, saga; waiting for runs of local mode"),
        "{log}"
    );
    assert!(log.contains("stopping"), "{log}");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_program_loses_nothing_and_the_next_one_goes_on() {
    let world = World::start().await;
    let mut program = world.program().await;
    let asked = json!({ "document": "budget.pdf", "approver": "ada" });
    let approval = world.begin("approval", asked).await;
    let address = world.address(&approval).await;
    program.kill();

    let order = world.begin("order", tea("o-1")).await;
    assert_eq!(world.answer(&address, json!({ "approved": false, "by": "ada" })).await, 202);
    world.pay("o-1", 900).await;
    let _next = Program::start(world.folder.path());
    let run = world.ended(&approval).await;
    assert_eq!(run["output"], json!({ "state": "rejected", "by": "ada" }), "{run}");
    assert_eq!(run["steps"][0]["attempt"], 1, "what was recorded did not run again: {run}");
    let run = world.ended(&order).await;
    assert_eq!(run["output"]["state"], "shipped", "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn local_mode_restarted_under_a_program_finds_it_still_there() {
    let folder = tempfile::tempdir().unwrap();
    let options = LocalOptions::new(folder.path());
    let first = Local::start(options.clone()).await.unwrap();
    let port: u16 = first.state.aws_endpoint.rsplit(':').next().unwrap().parse().unwrap();
    let world = World { local: first, folder, http: reqwest::Client::new() };
    let _program = world.program().await;
    let approval = world.begin("approval", json!({ "document": "budget.pdf", "approver": "ada" })).await;
    let address = world.address(&approval).await;
    let World { local, folder, http } = world;
    local.stop().await;

    // On the same port as before, as `ledgerline local` has after a restart.
    let local = Local::start(LocalOptions { aws_port: port, ..options }).await.unwrap();
    let world = World { local, folder, http };
    assert_eq!(world.answer(&address, json!({ "approved": true, "by": "ada" })).await, 202);
    let run = world.ended(&approval).await;
    assert_eq!(run["output"]["state"], "approved", "{run}");
}

#[test]
fn a_program_says_what_it_wants_to_know() {
    let told = |arguments: &[&str]| {
        let ended = program().args(arguments).current_dir(std::env::temp_dir()).output().unwrap();
        let text = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (ended.status.success(), text)
    };
    let (fine, help) = told(&["--help"]);
    assert!(fine);
    for option in ["--local", "--data", "--stage", "--concurrency", "--lease", "LEDGERLINE_RUN_LEASE_SECONDS"]
    {
        assert!(help.contains(option), "{option} in {help}");
    }
    let (fine, error) = told(&[]);
    assert!(!fine && error.contains("--local") && error.contains("--stage"), "{error}");
    let (fine, error) = told(&["--local", "--data", "/nowhere/at/all"]);
    assert!(!fine && error.contains("/nowhere/at/all/local.json"), "{error}");
    let (fine, error) = told(&["--local", "--concurrency", "none"]);
    assert!(!fine && error.contains("--concurrency"), "{error}");
}
