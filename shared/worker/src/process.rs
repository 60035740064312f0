//! The process of a task: started in a group of its own, fed its input, timed, and ended with all processes that it
//! started.
//!
//! A separate tokio task watches it, so that a slow store never delays a timeout.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use ledgerline_event::catalogue::Signal;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, Command},
    sync::oneshot,
    task::JoinSet,
    time::Instant,
};
use tracing::Level;

use super::process_group::ProcessGroup;

/// The environment variables that the worker sets; the last three are paths of files to write to.
pub(super) const VARIABLES: [&str; 9] = [
    "LEDGERLINE_REQUEST_ID",
    "LEDGERLINE_JOB_ID",
    "LEDGERLINE_TASK_NAME",
    "LEDGERLINE_TENANT",
    "LEDGERLINE_ATTEMPT",
    "LEDGERLINE_GENERATION",
    "LEDGERLINE_OUTPUT",
    "LEDGERLINE_ACTIVITY",
    "LEDGERLINE_ERROR",
];
/// How long after SIGTERM the worker sends SIGKILL.
pub(super) const KILL_AFTER: Duration = Duration::from_secs(5);
/// How much of the end of standard error is kept.
const TAIL_BYTES: usize = 2048;
/// Longer lines of output are logged in pieces.
const LINE_BYTES: usize = 4096;
/// How long to read what is left in the pipes after the process has exited. It is there at once, unless a process
/// outside of the group holds the pipes open.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);

/// What to run.
#[derive(Debug)]
#[allow(missing_docs)]
pub(super) struct Launch<'a> {
    /// For the log.
    pub(super) request_id: &'a str,
    pub(super) program: &'a str,
    pub(super) arguments: &'a [String],
    pub(super) directory: &'a Path,
    pub(super) environment: &'a BTreeMap<String, String>,
    /// Those of [`VARIABLES`] that are set.
    pub(super) variables: Vec<(&'static str, String)>,
    /// Written to standard input.
    pub(super) input: Vec<u8>,
    pub(super) timeout: Duration,
    pub(super) kill_after: Duration,
}

/// Why a process ended.
#[derive(Debug)]
pub(super) enum EndReason {
    /// It exited, or a signal ended it that the worker did not send.
    Exited(ExitStatus),
    /// It exceeded its timeout; this signal ended it.
    TimedOut(Signal),
    /// The worker stopped it.
    Stopped,
    /// The system did not report how it ended.
    Unknown(io::Error),
}

/// A process that has ended.
#[derive(Debug)]
pub(super) struct ProcessEnd {
    pub(super) reason: EndReason,
    pub(super) ran: Duration,
    /// The end of what it wrote to standard error.
    pub(super) stderr: String,
}

/// A running process. Dropping this kills its group.
#[derive(Debug)]
pub(super) struct TaskProcess {
    pid: u32,
    stop: Option<oneshot::Sender<()>>,
    watching: JoinSet<ProcessEnd>,
}

impl TaskProcess {
    /// Starts the process.
    pub(super) fn start(launch: Launch<'_>) -> io::Result<Self> {
        let mut command = Command::new(launch.program);
        command
            .args(launch.arguments)
            .current_dir(launch.directory)
            .envs(launch.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for name in VARIABLES {
            // A worker may itself be a task: its own variables are not for its children.
            command.env_remove(name);
        }
        command.envs(launch.variables);
        ProcessGroup::lead_new(&mut command);
        let mut child = command.spawn()?;
        let began = Instant::now();
        let pid = child.id().unwrap_or_default();
        let tail = Arc::new(Mutex::new(Tail::default()));
        let mut pipes = JoinSet::new();
        let mut feeding = JoinSet::new();
        if let Some(stdin) = child.stdin.take() {
            feeding.spawn(feed(stdin, launch.input));
        }
        if let Some(stdout) = child.stdout.take() {
            pipes.spawn(follow(stdout, "stdout", launch.request_id.to_owned(), None));
        }
        if let Some(stderr) = child.stderr.take() {
            pipes.spawn(follow(stderr, "stderr", launch.request_id.to_owned(), Some(tail.clone())));
        }
        let (stop, stopped) = oneshot::channel();
        let watched = ProcessWatcher {
            group: ProcessGroup::of(pid),
            child,
            began,
            _feeding: feeding,
            pipes,
            tail,
            stopped,
            timeout: launch.timeout,
            kill_after: launch.kill_after,
        };
        let mut watching = JoinSet::new();
        watching.spawn(watched.watch());
        Ok(Self { pid, stop: Some(stop), watching })
    }

    /// The id of the process, which is also that of its group.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends the process; [`TaskProcess::ended`] returns when it has exited.
    pub(super) fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It may have exited by itself.
            let _ = stop.send(());
        }
    }

    /// Waits for its end. Cancel-safe.
    pub(super) async fn ended(&mut self) -> ProcessEnd {
        match self.watching.join_next().await {
            Some(Ok(ended)) => ended,
            Some(Err(error)) => ProcessEnd::unknown(io::Error::other(error)),
            None => ProcessEnd::unknown(io::Error::other("its end was returned before")),
        }
    }
}

impl ProcessEnd {
    fn unknown(error: io::Error) -> Self {
        Self { reason: EndReason::Unknown(error), ran: Duration::ZERO, stderr: String::new() }
    }
}

/// `group` is the first field: when this is dropped, the whole group is killed before the child is.
struct ProcessWatcher {
    group: ProcessGroup,
    child: Child,
    began: Instant,
    /// Writes the child's input. A child need not read it, so the writing is aborted when the child has ended.
    _feeding: JoinSet<()>,
    pipes: JoinSet<()>,
    tail: Arc<Mutex<Tail>>,
    stopped: oneshot::Receiver<()>,
    timeout: Duration,
    kill_after: Duration,
}

impl ProcessWatcher {
    async fn watch(mut self) -> ProcessEnd {
        let reason = tokio::select! {
            // If the child exits at the moment at which it would be stopped, its own exit counts.
            biased;
            status = self.child.wait() => status.map_or_else(EndReason::Unknown, EndReason::Exited),
            () = tokio::time::sleep(self.timeout) => EndReason::TimedOut(self.terminate().await),
            _ = &mut self.stopped => {
                self.terminate().await;
                EndReason::Stopped
            }
        };
        let ran = self.began.elapsed();
        // Kills what the child left running, and at once: the system may reuse the number for another group.
        self.group.kill();
        let drained = async { while self.pipes.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(DRAIN_WITHIN, drained).await;
        let stderr = self.tail.lock().map(|tail| tail.text()).unwrap_or_default();
        ProcessEnd { reason, ran, stderr }
    }

    /// Sends SIGTERM to the whole group, and SIGKILL if any process outlives `kill_after`. A shell often exits at
    /// once while its children need time, so this waits for the whole group.
    async fn terminate(&mut self) -> Signal {
        self.group.terminate();
        let (child, group) = (&mut self.child, &self.group);
        let exited = async {
            let _ = child.wait().await;
            group.exited().await;
        };
        if tokio::time::timeout(self.kill_after, exited).await.is_ok() {
            return Signal::Sigterm;
        }
        self.group.kill();
        let _ = self.child.wait().await;
        Signal::Sigkill
    }
}

async fn feed(mut stdin: ChildStdin, input: Vec<u8>) {
    // A process that does not read its input, or not all of it, does nothing wrong.
    if stdin.write_all(&input).await.is_ok() {
        let _ = stdin.shutdown().await;
    }
}

/// Reads a pipe to its end, so that its writer never blocks. Keeps the last bytes in `tail`, and logs lines at level
/// DEBUG.
async fn follow(
    mut pipe: impl AsyncRead + Unpin,
    stream: &'static str,
    task: String,
    tail: Option<Arc<Mutex<Tail>>>,
) {
    let mut chunk = vec![0; 8192];
    let mut line = Vec::new();
    let log = |line: &mut Vec<u8>| {
        tracing::debug!(task, stream, "{}", String::from_utf8_lossy(line));
        line.clear();
    };
    while let Ok(count) = pipe.read(&mut chunk).await
        && count > 0
    {
        if let Some(tail) = &tail
            && let Ok(mut tail) = tail.lock()
        {
            tail.push(&chunk[..count]);
        }
        if tracing::enabled!(Level::DEBUG) {
            for byte in &chunk[..count] {
                match byte {
                    b'\n' => log(&mut line),
                    byte => line.push(*byte),
                }
                if line.len() >= LINE_BYTES {
                    log(&mut line);
                }
            }
        }
    }
    if !line.is_empty() {
        log(&mut line);
    }
}

/// The end of a stream.
#[derive(Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
    cut: bool,
}

impl Tail {
    fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
        let over = self.bytes.len().saturating_sub(TAIL_BYTES);
        self.cut |= over > 0;
        self.bytes.drain(..over);
    }

    /// Whole lines, if there are any.
    fn text(&self) -> String {
        let whole = match self.bytes.iter().position(|byte| *byte == b'\n') {
            Some(end) if self.cut && end + 1 < self.bytes.len() => &self.bytes[end + 1..],
            _ => &self.bytes[..],
        };
        String::from_utf8_lossy(whole).trim().to_owned()
    }
}

#[cfg(test)]
mod tests;
