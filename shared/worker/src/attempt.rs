//! One attempt at a task: the worker starts its process, sends heartbeats while it runs, and reads its result.

use std::{io, time::Duration};

use ledgerline_event::catalogue::{ErrorCategory, TaskProcessingStarted};
use ledgerline_jobs::TaskLease;
use ledgerline_outbox::ComponentError;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{
    Worker,
    attempt_result::AttemptResult,
    config::Entry,
    heartbeat::Heartbeat,
    process::{KILL_AFTER, Launch, TaskProcess},
    retry_delay,
    task_files::TaskFiles,
    task_queue::Delivery,
};

/// The longest timeout: a longer one would overflow a clock, and no task runs that long.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Worker {
    /// Runs a task on which this worker holds the lease.
    pub(super) async fn attempt(
        &self,
        lease: &mut TaskLease,
        entry: &Entry,
        delivery: &Delivery,
        mut abandon: watch::Receiver<bool>,
    ) -> AttemptResult {
        let input = match self.tasks.input_of(&lease.message).await {
            Ok(input) => input,
            Err(ComponentError::Invalid(invalid)) => {
                let error = format!("the task cannot be run: {invalid}");
                return AttemptResult::failed(error, ErrorCategory::Validation);
            }
            Err(error) => {
                tracing::warn!(task = %lease.message.request_id, %error, "could not read the input; giving the task back");
                return AttemptResult::Abandoned {
                    retry_after: retry_delay::after_attempt(delivery.receives),
                };
            }
        };
        let mut files = match TaskFiles::new() {
            Ok(files) => files,
            Err(error) => {
                let error = format!("the worker has no folder for the task's files: {error}");
                return AttemptResult::Retry { error, category: ErrorCategory::ServerError };
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
            variables: variables(lease, &files),
            input: serde_json::to_vec(&input).unwrap_or_default(),
            timeout,
            kill_after: KILL_AFTER,
        };
        let mut process = match TaskProcess::start(launch) {
            Ok(process) => process,
            Err(error) => return cannot_start(entry, &error),
        };
        let began = Instant::now();
        self.emit_started(lease, process.pid()).await;

        let mut ticks = interval_at(began + self.config.heartbeat, self.config.heartbeat);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut number = 0;
        let end = loop {
            tokio::select! {
                biased;
                end = process.ended() => break end,
                () = abandon_requested(&mut abandon) => {
                    process.stop();
                    break process.ended().await;
                }
                _ = ticks.tick() => {}
            }
            // Not concurrently with the wait above: no heartbeat is in flight when the end is emitted.
            number += 1;
            let heartbeat = Heartbeat { number, elapsed: began.elapsed(), pid: process.pid() };
            let sending = self.send_heartbeat(lease, delivery, &mut files, heartbeat);
            let holds_lease = tokio::time::timeout(self.config.visibility_extension(), sending).await;
            if holds_lease.is_ok_and(|holds_lease| !holds_lease) {
                process.stop();
                process.ended().await;
                return AttemptResult::LeaseLost;
            }
        };
        let read = move || AttemptResult::of_process(end, &files, timeout);
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| AttemptResult::Retry {
            error: format!("the result of the task could not be read: {error}"),
            category: ErrorCategory::ServerError,
        })
    }

    async fn emit_started(&self, lease: &TaskLease, pid: u32) {
        let message = &lease.message;
        tracing::info!(task = %message.request_id, name = message.name, attempt = lease.attempt, pid, "started");
        let started = TaskProcessingStarted {
            request_id: message.request_id.to_string(),
            job_id: message.job_id.as_ref().map(ToString::to_string),
            effective_until: lease.until.seconds(),
            worker_id: lease.worker_id.clone(),
            process_id: pid,
        };
        let emitter = self.tasks.task_emitter(lease);
        let emitting = emitter.catalogued(message.request_id.as_str(), started).emit();
        // The task runs in any case; its heartbeats and its end show that it has started.
        match tokio::time::timeout(self.config.heartbeat, emitting).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(task = %message.request_id, %error, "could not emit the start")
            }
            Err(_) => {
                tracing::warn!(task = %message.request_id, "emitting the start took too long; the event may be missing")
            }
        }
    }
}

async fn abandon_requested(abandon: &mut watch::Receiver<bool>) {
    // An error means that the worker is gone; that counts as a request.
    let _ = abandon.wait_for(|abandon| *abandon).await;
}

fn variables(lease: &TaskLease, files: &TaskFiles) -> Vec<(&'static str, String)> {
    let message = &lease.message;
    let mut variables = vec![
        ("LEDGERLINE_REQUEST_ID", message.request_id.to_string()),
        ("LEDGERLINE_TASK_NAME", message.name.clone()),
        ("LEDGERLINE_TENANT", message.tenant_id.to_string()),
        ("LEDGERLINE_ATTEMPT", lease.attempt.to_string()),
        ("LEDGERLINE_GENERATION", message.generation.to_string()),
        ("LEDGERLINE_OUTPUT", files.output_file().display().to_string()),
        ("LEDGERLINE_ACTIVITY", files.activity_file().display().to_string()),
        ("LEDGERLINE_ERROR", files.error_file().display().to_string()),
    ];
    variables.extend(message.job_id.as_ref().map(|job| ("LEDGERLINE_JOB_ID", job.to_string())));
    variables
}

/// A command that does not exist will not exist at the next attempt; a system without room for a process may have room
/// then.
fn cannot_start(entry: &Entry, error: &io::Error) -> AttemptResult {
    let (program, folder) = (&entry.program, entry.directory.display());
    let error_text =
        format!("`{program}` cannot be started in {folder}: {error}; see the worker's task file");
    match error.kind() {
        io::ErrorKind::NotFound
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::InvalidInput => AttemptResult::failed(error_text, ErrorCategory::Programming),
        _ => AttemptResult::Retry { error: error_text, category: ErrorCategory::ServerError },
    }
}
