//! One attempt at a task: its process runs, the ledger and the queue hear that it lives, and it ends.

use std::time::Duration;

use ledgerline_dispatch::{DispatchError, TaskEnd, TaskLease};
use ledgerline_event::catalogue::{ErrorCategory, MemoryUsage, TaskHeartbeat, TaskProcessingStarted};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{
    Worker, backoff,
    child::{KILL_AFTER, Launch, Running},
    config::Entry,
    delivery::Delivery,
    exchange::Exchange,
    outcome::{Outcome, judge},
    processes,
};

/// Longer timeouts are as good as none, and fit into no clock.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What the worker does with a task after an attempt.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It has ended.
    End(TaskEnd),
    /// Another attempt may succeed.
    Retry { error: String, category: ErrorCategory },
    /// Nothing is wrong with it, but it cannot run here and now.
    GiveBack { after: Duration },
    /// The worker has lost the lease.
    Lost,
}

impl Worker {
    /// Runs a task that is ours.
    pub(super) async fn attempt(
        &self,
        lease: &mut TaskLease,
        entry: &Entry,
        delivery: &Delivery,
        mut give_up: watch::Receiver<bool>,
    ) -> Verdict {
        let input = match self.dispatch.input_of(&lease.message).await {
            Ok(input) => input,
            Err(DispatchError::Invalid(invalid)) => {
                return fatal(format!("the task cannot be run: {invalid}"), ErrorCategory::Validation);
            }
            Err(error) => {
                tracing::warn!(task = %lease.message.request_id, %error, "the input does not come; giving the task back");
                return Verdict::GiveBack { after: backoff::of_task(delivery.receives) };
            }
        };
        let mut exchange = match Exchange::new() {
            Ok(exchange) => exchange,
            Err(error) => {
                return Verdict::Retry {
                    error: format!("the worker has no folder for the task's files: {error}"),
                    category: ErrorCategory::ServerError,
                };
            }
        };
        let timeout =
            lease.message.timeout_ms.map_or(entry.timeout, Duration::from_millis).min(LONGEST_TIMEOUT);
        let launch = Launch {
            request_id: &lease.message.request_id,
            program: &entry.program,
            arguments: &entry.arguments,
            directory: &entry.directory,
            environment: &entry.environment,
            variables: variables(lease, &exchange),
            input: serde_json::to_vec(&input).unwrap_or_default(),
            timeout,
            kill_after: KILL_AFTER,
        };
        let mut running = match Running::start(launch) {
            Ok(running) => running,
            Err(error) => return cannot_start(entry, &error),
        };
        let began = Instant::now();
        self.tell_start(lease, running.pid()).await;

        let mut beats = interval_at(began + self.config.heartbeat, self.config.heartbeat);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut number = 0;
        let ended = loop {
            tokio::select! {
                biased;
                ended = running.ended() => break ended,
                () = given_up(&mut give_up) => {
                    running.stop();
                    break running.ended().await;
                }
                _ = beats.tick() => {}
            }
            // Not beside the waiting above: no heartbeat is on its way when the end is told.
            number += 1;
            let beat = Beat { number, elapsed: began.elapsed(), pid: running.pid() };
            let beating = self.beat(lease, delivery, &mut exchange, beat);
            let still_ours = tokio::time::timeout(self.config.extension(), beating).await;
            if still_ours.is_ok_and(|ours| !ours) {
                running.stop();
                running.ended().await;
                return Verdict::Lost;
            }
        };
        let judged = tokio::task::spawn_blocking(move || judge(ended, &exchange)).await;
        match judged {
            Ok(outcome) => verdict(outcome, timeout),
            Err(error) => Verdict::Retry {
                error: format!("the end of the task could not be judged: {error}"),
                category: ErrorCategory::ServerError,
            },
        }
    }

    async fn tell_start(&self, lease: &TaskLease, pid: u32) {
        let message = &lease.message;
        tracing::info!(task = %message.request_id, name = message.name, attempt = lease.attempt, pid, "started");
        let started = TaskProcessingStarted {
            request_id: message.request_id.to_string(),
            job_id: message.job_id.as_ref().map(ToString::to_string),
            effective_until: lease.until.seconds(),
            worker_id: lease.worker_id.clone(),
            process_id: pid,
        };
        let emitter = self.dispatch.task_emitter(lease);
        let told = emitter.catalogued(message.request_id.as_str(), started).emit();
        // The task runs all the same; its heartbeats and its end tell of it too.
        match tokio::time::timeout(self.config.heartbeat, told).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(task = %message.request_id, %error, "the ledger did not hear of the start")
            }
            Err(_) => {
                tracing::warn!(task = %message.request_id, "the ledger may not have heard of the start")
            }
        }
    }

    /// Tells the queue, the lease and the ledger that the task still runs; `false` if it is not ours any more.
    async fn beat(
        &self,
        lease: &mut TaskLease,
        delivery: &Delivery,
        exchange: &mut Exchange,
        beat: Beat,
    ) -> bool {
        let extension = self.config.extension();
        delivery.hide(extension).await;
        match self.dispatch.renew(lease, extension).await {
            Ok(true) => {}
            Ok(false) => return false,
            // A later renewal is as good, as long as no other worker has taken the task.
            Err(error) => {
                tracing::warn!(task = %lease.message.request_id, %error, "the lease could not be renewed")
            }
        }
        let rss = tokio::task::spawn_blocking(move || processes::rss(beat.pid)).await.unwrap_or_default();
        let heartbeat = TaskHeartbeat {
            request_id: lease.message.request_id.to_string(),
            effective_until: lease.until.seconds(),
            heartbeat_number: beat.number,
            elapsed_ms: millis(beat.elapsed),
            worker_id: lease.worker_id.clone(),
            process_id: beat.pid,
            memory_usage: MemoryUsage { rss },
            last_activity: exchange.activity(),
        };
        let emitter = self.dispatch.task_emitter(lease);
        if let Err(error) = emitter.catalogued(lease.message.request_id.as_str(), heartbeat).emit().await {
            tracing::warn!(task = %lease.message.request_id, %error, "the ledger did not hear of a heartbeat");
        }
        true
    }
}

async fn given_up(give_up: &mut watch::Receiver<bool>) {
    // An error means that the worker is gone; that counts as giving up.
    let _ = give_up.wait_for(|give_up| *give_up).await;
}

/// What a heartbeat tells.
#[derive(Clone, Copy)]
struct Beat {
    number: u32,
    elapsed: Duration,
    pid: u32,
}

fn variables(lease: &TaskLease, exchange: &Exchange) -> Vec<(&'static str, String)> {
    let message = &lease.message;
    let mut variables = vec![
        ("LEDGERLINE_REQUEST_ID", message.request_id.to_string()),
        ("LEDGERLINE_TASK_NAME", message.name.clone()),
        ("LEDGERLINE_TENANT", message.tenant_id.to_string()),
        ("LEDGERLINE_ATTEMPT", lease.attempt.to_string()),
        ("LEDGERLINE_GENERATION", message.generation.to_string()),
        ("LEDGERLINE_OUTPUT", exchange.output_file().display().to_string()),
        ("LEDGERLINE_ACTIVITY", exchange.activity_file().display().to_string()),
        ("LEDGERLINE_ERROR", exchange.error_file().display().to_string()),
    ];
    variables.extend(message.job_id.as_ref().map(|job| ("LEDGERLINE_JOB_ID", job.to_string())));
    variables
}

/// A command that is not there stays away; a system that is full may have room later.
fn cannot_start(entry: &Entry, error: &std::io::Error) -> Verdict {
    let (program, folder) = (&entry.program, entry.directory.display());
    let error_text =
        format!("`{program}` cannot be started in {folder}: {error}; see the worker's task file");
    match error.kind() {
        std::io::ErrorKind::NotFound
        | std::io::ErrorKind::PermissionDenied
        | std::io::ErrorKind::NotADirectory
        | std::io::ErrorKind::InvalidInput => fatal(error_text, ErrorCategory::Programming),
        _ => Verdict::Retry { error: error_text, category: ErrorCategory::ServerError },
    }
}

fn fatal(error: String, category: ErrorCategory) -> Verdict {
    Verdict::End(TaskEnd::Failed { error, category })
}

fn verdict(outcome: Outcome, timeout: Duration) -> Verdict {
    match outcome {
        Outcome::Completed { output, usage, ran } => {
            Verdict::End(TaskEnd::Completed { output, duration_ms: millis(ran), exit_code: 0, usage })
        }
        Outcome::Failed { error, category } if category.is_retryable() => Verdict::Retry { error, category },
        Outcome::Failed { error, category } => fatal(error, category),
        Outcome::TimedOut { ran, signal } => {
            Verdict::End(TaskEnd::TimedOut { timeout_ms: millis(timeout), elapsed_ms: millis(ran), signal })
        }
        Outcome::Stopped => Verdict::GiveBack { after: Duration::ZERO },
    }
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
