use std::{fs, os::unix::process::ExitStatusExt, path::Path};

use super::*;

struct Script {
    timeout: Duration,
    kill_after: Duration,
    input: Vec<u8>,
    variables: Vec<(&'static str, String)>,
}

impl Default for Script {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { timeout: minute, kill_after: minute, input: Vec::new(), variables: Vec::new() }
    }
}

impl Script {
    fn start(self, line: &str) -> TaskProcess {
        TaskProcess::start(Launch {
            request_id: "req-1",
            program: "sh",
            arguments: &["-c".to_owned(), line.to_owned()],
            directory: Path::new("."),
            environment: &BTreeMap::from([("COLOUR".to_owned(), "red".to_owned())]),
            variables: self.variables,
            input: self.input,
            timeout: self.timeout,
            kill_after: self.kill_after,
        })
        .unwrap()
    }

    async fn run(self, line: &str) -> ProcessEnd {
        self.start(line).ended().await
    }
}

fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie is dead, and waits only for init.
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

async fn until(what: &str, probe: impl Fn() -> bool) {
    let began = Instant::now();
    while !probe() {
        assert!(began.elapsed() < Duration::from_secs(30), "timed out: waited 30 s until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn written(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().filter(|text| text.ends_with('\n')).map(|text| text.trim().to_owned())
}

#[tokio::test]
async fn a_process_gets_its_input_and_environment_and_its_exit_status_is_known() {
    let script = Script {
        input: br#"{"storeId":"s-1"}"#.to_vec(),
        variables: vec![("LEDGERLINE_ATTEMPT", "2".into())],
        ..Script::default()
    };
    let ended = script.run("cat >&2; echo >&2; echo $COLOUR $LEDGERLINE_ATTEMPT >&2; exit 3").await;
    assert!(matches!(ended.reason, EndReason::Exited(status) if status.code() == Some(3)), "{ended:?}");
    assert_eq!(ended.stderr, "{\"storeId\":\"s-1\"}\nred 2");
}

#[tokio::test]
async fn a_process_may_leave_its_input_unread_and_write_more_than_a_pipe_holds() {
    let script = Script { input: vec![b' '; 3_000_000], ..Script::default() };
    let ended = script.run("head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; echo end >&2").await;
    assert!(matches!(ended.reason, EndReason::Exited(status) if status.success()), "{ended:?}");
    assert!(ended.stderr.ends_with("end") && ended.stderr.len() <= 2048);
}

#[tokio::test]
async fn a_process_that_exceeds_its_timeout_gets_sigterm() {
    let script = Script { timeout: Duration::from_millis(50), ..Script::default() };
    let ended = script.run("sleep 600").await;
    assert!(matches!(ended.reason, EndReason::TimedOut(Signal::Sigterm)), "{ended:?}");
    assert!(ended.ran >= Duration::from_millis(50) && ended.ran < Duration::from_secs(30));
}

#[tokio::test]
async fn a_process_that_ignores_sigterm_is_killed_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let moment = Duration::from_millis(100);
    let script = Script { timeout: moment, kill_after: moment, ..Script::default() };
    // Both the shell and what it began ignore SIGTERM.
    let line = format!("trap '' TERM; sleep 600 & echo $! > {}; wait; wait", pid_file.display());
    let ended = script.run(&line).await;
    assert!(matches!(ended.reason, EndReason::TimedOut(Signal::Sigkill)), "{ended:?}");
    let pid = written(&pid_file).unwrap();
    until("the grandchild is gone", || !is_alive(&pid)).await;
}

#[tokio::test]
async fn children_that_outlive_a_process_are_killed_and_do_not_delay_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let ended = Script::default().run(&format!("sleep 600 & echo $! > {}", pid_file.display())).await;
    assert!(matches!(ended.reason, EndReason::Exited(status) if status.success()), "{ended:?}");
    let pid = written(&pid_file).unwrap();
    until("the grandchild is gone", || !is_alive(&pid)).await;
}

#[tokio::test]
async fn a_process_that_is_stopped_ends() {
    let mut running = Script::default().start("sleep 600");
    running.stop();
    assert!(matches!(running.ended().await.reason, EndReason::Stopped));
}

#[tokio::test]
async fn dropping_a_process_kills_its_group() {
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let running =
        Script::default().start(&format!("trap '' TERM; sleep 600 & echo $! > {}; wait", pid_file.display()));
    until("it runs", || written(&pid_file).is_some()).await;
    let (leader, pid) = (running.pid().to_string(), written(&pid_file).unwrap());
    assert!(is_alive(&leader) && is_alive(&pid));
    drop(running);
    until("both are gone", || !is_alive(&leader) && !is_alive(&pid)).await;
}

#[tokio::test]
async fn a_signal_that_the_worker_did_not_send_is_in_the_exit_status() {
    let ended = Script::default().run("kill -9 $$").await;
    assert!(matches!(ended.reason, EndReason::Exited(status) if status.signal() == Some(9)), "{ended:?}");
}

#[test]
fn a_tail_begins_with_a_whole_line() {
    let mut tail = Tail::default();
    tail.push("ü".repeat(1_500).as_bytes());
    assert!(tail.text().len() <= TAIL_BYTES + 2);
    tail.push(b"\nlast words\n");
    assert_eq!(tail.text(), "last words");
}
