//! The real binary: started, killed, and run as one command. Cargo gives its path to the tests of `cli` alone.

use std::{
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use ledgerline_local::LocalState;
use serde_json::Value;

use ledgerline_test_support::{World, until};

/// A process that a test started; killed when dropped.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the real binary and waits until it answers.
pub(crate) async fn start(folder: &Path, also: &[&str]) -> (Running, LocalState) {
    let before = LocalState::read(folder).ok();
    let child = Command::new(env!("CARGO_BIN_EXE_ledgerline"))
        .args(["local", "--aws-port", "0", "--port", "0", "--data"])
        .arg(folder)
        .args(also)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let state = until("local mode is ready", || async {
        let state = LocalState::read(folder).ok().filter(|state| before.as_ref() != Some(state))?;
        let answer = reqwest::get(format!("{}/api/health", state.api_url)).await.ok()?;
        answer.status().is_success().then_some(state)
    })
    .await;
    (Running(child), state)
}

/// Runs one command against the local mode in a folder.
pub(crate) fn ledgerline(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ledgerline"));
    command.env_remove("LEDGERLINE_STAGE").env_remove("LEDGERLINE_DATA").env_remove("LEDGERLINE_TENANT");
    command.args(["--local", "--data"]).arg(folder).args(args).output().unwrap()
}

/// What a command that succeeded has printed.
pub(crate) fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The lines of JSON that a command that succeeded has printed.
pub(crate) fn lines(output: &Output) -> Vec<Value> {
    out(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What a command has said on its standard error.
pub(crate) fn error(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs one command against a running local mode.
pub(crate) fn run(world: &World, args: &[&str]) -> Output {
    ledgerline(world.folder.path(), args)
}

/// The one line of JSON that a command prints.
pub(crate) fn one(world: &World, args: &[&str]) -> Value {
    let mut found = lines(&run(world, &[args, &["--json"]].concat()));
    assert_eq!(found.len(), 1, "{args:?}: {found:?}");
    found.remove(0)
}

/// Whether every line has its columns where the headings are.
pub(crate) fn aligned(table: &str) -> bool {
    let mut rows = table.lines();
    let heading = rows.next().unwrap();
    let starts: Vec<usize> = heading
        .char_indices()
        .filter(|(at, _)| *at > 1 && heading[..*at].ends_with("  "))
        .map(|(at, _)| at)
        .collect();
    let columns: Vec<usize> = starts.into_iter().filter(|at| !heading[*at..].starts_with(' ')).collect();
    rows.all(|row| columns.iter().all(|at| row.chars().nth(at - 1).is_none_or(|before| before == ' ')))
}
