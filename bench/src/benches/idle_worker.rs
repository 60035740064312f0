//! What `ledgerline worker` costs while there is nothing to do: the binary, in a process of its own, against a local
//! mode in this one. How often it polls, what other requests there are, and how much memory it holds, at rest and after
//! work.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use ledgerline_embedded::{Call, Interceptor, Moment};
use ledgerline_event::Name;
use ledgerline_local::{Local, LocalOptions, TENANT};

use crate::{
    local_jobs,
    report::{Goal, Report},
    shapes::Shape,
    sightings::Sightings,
};

/// A long poll without an answer lasts twenty seconds.
const POLL_SECONDS: f64 = 20.0;
const POLL: &str = "ReceiveMessage";
/// Polls after the first.
const POLLS: usize = if cfg!(debug_assertions) { 1 } else { 3 };
/// How much longer than expected the polls may take, all together; the first one waits for the start of the worker.
const PATIENCE: Duration = Duration::from_secs(30);
/// Tasks of the job that the worker runs after its rest.
const TASKS: usize = 100;
const KB_PER_MB: f64 = 1024.0;

/// Measures the worker at rest, and then after a job.
pub(crate) fn run() -> anyhow::Result<Report> {
    let binary = binary()?;
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let sightings = Sightings::default();
    let polls = Polls::default();
    let interceptor = polls.interceptor(sightings.interceptor(local_jobs::job_completed()));
    let data = folder.path().join("data");
    let mut report = Report::of_figures();
    runtime.block_on(async {
        let local = Box::pin(Local::start(LocalOptions {
            interceptor: Some(interceptor),
            ..LocalOptions::new(&data)
        }))
        .await?;
        let worker = Worker::start(&binary, &data, &local_jobs::task_file(&folder, "true")?)?;
        polls.wait_for(1).await?;
        local.embedded.reset_requests();
        let times = polls.wait_for(1 + POLLS).await?;
        let idle = worker.memory()?;
        let seconds = times[POLLS].saturating_duration_since(times[0]).as_secs_f64();
        let all = local.embedded.requests();
        let others =
            all.iter().filter(|((_, operation), _)| operation != POLL).map(|(_, count)| count).sum::<u64>();
        let per_poll = seconds / POLLS as f64;
        report.figure("idle: polls per 20 s", POLL_SECONDS / per_poll, "", Goal::AtMost(1.0));
        report.figure("idle: seconds watched", seconds, "s", Goal::None);
        report.figure("idle: other requests, local mode's own included", others as f64, "", Goal::None);
        report.figure("idle: memory, peak", idle.peak_kb / KB_PER_MB, "MB", Goal::Under(40.0));
        report.figure("idle: memory", idle.now_kb / KB_PER_MB, "MB", Goal::Under(40.0));

        let tasks = Shape::FanOut.tasks(TASKS);
        let job_id = local_jobs::submit(&local, &Name::new("tenantId", TENANT)?, tasks).await?;
        sightings.until(&local_jobs::completed(&job_id)).await;
        let worked = worker.memory()?;
        report.figure(
            "after 100 tasks, 8 at a time: memory, peak",
            worked.peak_kb / KB_PER_MB,
            "MB",
            Goal::None,
        );
        report.figure("after 100 tasks, 8 at a time: memory", worked.now_kb / KB_PER_MB, "MB", Goal::None);
        drop(worker);
        local.stop().await;
        anyhow::Ok(())
    })?;
    Ok(report)
}

/// When the task queue was asked for messages. Local mode's own functions ask in this process, without requests.
#[derive(Clone, Default)]
struct Polls(Arc<Mutex<Vec<Instant>>>);

impl Polls {
    /// Notes polls when they come in; `inner` is asked too.
    fn interceptor(&self, inner: Interceptor) -> Interceptor {
        let polls = self.clone();
        Arc::new(move |call: Call, moment| {
            if moment == Moment::Before && call.operation == POLL {
                polls.0.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
            }
            inner(call, moment)
        })
    }

    /// Waits until the worker has polled `count` times.
    async fn wait_for(&self, count: usize) -> anyhow::Result<Vec<Instant>> {
        let patience = PATIENCE + Duration::from_secs_f64(POLL_SECONDS) * u32::try_from(count)?;
        let began = Instant::now();
        loop {
            let times = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if times.len() >= count {
                return Ok(times);
            }
            ensure!(began.elapsed() < patience, "the worker polled {} times and no more", times.len());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The command-line tool beside this binary.
fn binary() -> anyhow::Result<PathBuf> {
    let binary = env::current_exe()?.with_file_name("ledgerline");
    ensure!(
        binary.exists(),
        "{} is not there: build it with `cargo build -p ledgerline` and the same profile",
        binary.display()
    );
    Ok(binary)
}

/// The worker's process; ended when dropped.
struct Worker {
    child: Child,
}

struct Memory {
    peak_kb: f64,
    now_kb: f64,
}

impl Worker {
    fn start(binary: &Path, data: &Path, task_file: &Path) -> anyhow::Result<Self> {
        let child = Command::new(binary)
            .args(["--local", "--data"])
            .arg(data)
            .args(["worker", "--config"])
            .arg(task_file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", binary.display()))?;
        Ok(Self { child })
    }

    fn memory(&self) -> anyhow::Result<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let kilobytes = |name: &str| -> anyhow::Result<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let line = line.with_context(|| format!("the system does not say {name}"))?;
            Ok(line.trim().trim_end_matches("kB").trim().parse()?)
        };
        Ok(Memory { peak_kb: kilobytes("VmHWM:")?, now_kb: kilobytes("VmRSS:")? })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing else to do about it here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
