//! Handles one message of the task queue: acquires the task, runs an attempt, and writes its result. This is where a
//! task's way through the worker begins and ends. If a service fails, the message stays on the queue and is redelivered.

use std::time::Duration;

use ledgerline_event::catalogue::ErrorCategory;
use ledgerline_jobs::{Acquisition, EndAnswer, TaskEnd, TaskLease, TaskMessage};
use ledgerline_outbox::ComponentError;
use tokio::{sync::watch, time::Instant};

use super::{Worker, attempt_result::AttemptResult, retry_delay, task_queue::Delivery};

/// How long the worker retries to write the result of an attempt. While the store does not answer, no other worker can
/// acquire the task; if one does acquire it, the store refuses the result.
const WRITE_WITHIN: Duration = Duration::from_secs(10 * 60);
/// For how many names of other workers' tasks the worker remembers that it has logged them.
const NAMES_REMEMBERED: usize = 1_000;

impl Worker {
    /// Runs the task of a message if this worker has a command for it and acquires it; then deletes the message or hides it
    /// until the next attempt.
    pub(super) async fn handle_message(&self, delivery: Delivery, abandon: watch::Receiver<bool>) {
        let message = match TaskMessage::parse(&delivery.body) {
            Ok(message) => message,
            Err(error) => {
                tracing::error!(%error, "a message on the task queue is no task; after too many deliveries SQS dead-letters it");
                return delivery.hide(retry_delay::after_attempt(delivery.receives)).await;
            }
        };
        let Some(entry) = self.config.entry(&message.name) else {
            self.log_ignored_name(&message.name);
            return delivery.hide(retry_delay::for_other_workers(delivery.receives)).await;
        };
        let extension = self.config.visibility_extension();
        let max_attempts = message.max_attempts.unwrap_or(entry.attempts);
        match self.tasks.acquire(&message, &delivery.body, &self.id, extension, max_attempts).await {
            Ok(Acquisition::Acquired(mut lease)) => {
                let result = self.attempt(&mut lease, entry, &delivery, abandon).await;
                self.write_result(&lease, result, &delivery).await;
            }
            Ok(Acquisition::Ended) => delivery.delete().await,
            Ok(Acquisition::Held { until }) => {
                let left = Duration::from_millis(until.get().saturating_sub((self.clock)().get()));
                tracing::debug!(task = %message.request_id, "another worker holds the task");
                delivery.hide(retry_delay::with_spread(left)).await;
            }
            Ok(Acquisition::Exhausted { attempts }) => {
                tracing::warn!(task = %message.request_id, attempts, "no attempts are left");
                self.dead_letter(&message, &delivery).await;
            }
            Err(error) => {
                tracing::warn!(task = %message.request_id, %error, "could not acquire the task; its message will be redelivered");
                delivery.hide(retry_delay::after_attempt(delivery.receives)).await;
            }
        }
    }

    fn log_ignored_name(&self, name: &str) {
        let Ok(mut logged) = self.ignored_names.lock() else { return };
        if logged.len() < NAMES_REMEMBERED && logged.insert(name.to_owned()) {
            tracing::warn!(
                "tasks named `{name}` are left for other workers: to run them here, add [tasks.\"{name}\"] or \
                 [tasks.\"*\"] to the task file and start the worker again"
            );
        }
    }

    async fn write_result(&self, lease: &TaskLease, result: AttemptResult, delivery: &Delivery) {
        match result {
            AttemptResult::Ended(end) => self.end(lease, end, delivery).await,
            AttemptResult::Retry { error, category } => self.retry(lease, error, category, delivery).await,
            AttemptResult::Abandoned { retry_after } => self.give_back(lease, retry_after, delivery).await,
            AttemptResult::LeaseLost => self.emit_lost(lease).await,
        }
    }

    async fn end(&self, lease: &TaskLease, end: TaskEnd, delivery: &Delivery) {
        let mut end = end;
        let mut answer =
            self.retry_until_written(Some(lease), delivery, || self.tasks.end(lease, end.clone())).await;
        if let (Err(ComponentError::Invalid(invalid)), TaskEnd::Completed { .. }) = (&answer, &end) {
            // The ledger cannot hold the output: the task has failed, and another attempt would fail, too.
            let error = format!("the output cannot be kept: {invalid}");
            end = TaskEnd::Failed { error, category: ErrorCategory::Validation };
            answer =
                self.retry_until_written(Some(lease), delivery, || self.tasks.end(lease, end.clone())).await;
        }
        match answer {
            Ok(EndAnswer::Done) => {
                log_end(lease, &end);
                delivery.delete().await;
            }
            // The worker that holds the task now deletes the message.
            Ok(EndAnswer::Refused) => log_lost(lease),
            Err(error) => log_unwritten(lease, &error),
        }
    }

    /// Releases a task whose attempt failed. Its message is redelivered after a delay, or dead-lettered after the last attempt.
    async fn retry(&self, lease: &TaskLease, error: String, category: ErrorCategory, delivery: &Delivery) {
        let (task, attempt) = (&lease.message.request_id, lease.attempt);
        let release = || self.tasks.release(lease, &error, category);
        match self.retry_until_written(Some(lease), delivery, release).await {
            Ok(true) if lease.is_last => {
                tracing::warn!(%task, attempt, category = name_of(category), error, "failed, and was the last attempt");
                self.dead_letter(&lease.message, delivery).await;
            }
            Ok(true) => {
                let delay = retry_delay::after_attempt(attempt);
                let again = format!("{} s", delay.as_secs());
                tracing::warn!(%task, attempt, category = name_of(category), again, error, "failed, and is tried again");
                delivery.hide(delay).await;
            }
            Ok(false) => self.emit_lost(lease).await,
            Err(trouble) => log_unwritten(lease, &trouble),
        }
    }

    /// Releases a task that this worker abandons; the attempt does not count.
    async fn give_back(&self, lease: &TaskLease, retry_after: Duration, delivery: &Delivery) {
        let release = || self.tasks.abandon(lease);
        match self.retry_until_written(Some(lease), delivery, release).await {
            Ok(true) => {
                tracing::info!(task = %lease.message.request_id, attempt = lease.attempt, "given back");
                delivery.hide(retry_after).await;
            }
            Ok(false) => log_lost(lease),
            Err(error) => log_unwritten(lease, &error),
        }
    }

    /// Emits that this worker lost the lease, so that the attempt does not count.
    async fn emit_lost(&self, lease: &TaskLease) {
        log_lost(lease);
        if let Err(error) = self.tasks.emit_lease_lost(lease).await {
            tracing::warn!(task = %lease.message.request_id, %error, "could not emit that the lease was lost");
        }
    }

    /// Moves the message of a task without attempts left to the dead-letter queue.
    async fn dead_letter(&self, message: &TaskMessage, delivery: &Delivery) {
        let send = || self.tasks.dead_letter(message, &delivery.body);
        match self.retry_until_written(None, delivery, send).await {
            Ok(()) => delivery.delete().await,
            Err(error) => {
                tracing::error!(task = %message.request_id, %error, "could not dead-letter the message; it will be redelivered");
            }
        }
    }

    /// Retries `write` until it succeeds, fails for good, or [`WRITE_WITHIN`] is over; meanwhile the message stays hidden
    /// and the lease is renewed.
    async fn retry_until_written<T, F>(
        &self,
        lease: Option<&TaskLease>,
        delivery: &Delivery,
        mut write: impl FnMut() -> F,
    ) -> Result<T, ComponentError>
    where
        F: Future<Output = Result<T, ComponentError>>,
    {
        let mut lease = lease.cloned();
        let began = Instant::now();
        let mut failures = 0;
        loop {
            let error = match write().await {
                Err(error) if is_transient(&error) && began.elapsed() < WRITE_WITHIN => error,
                other => return other,
            };
            failures += 1;
            tracing::warn!(%error, failures, "could not write the result of an attempt; trying again");
            tokio::time::sleep(retry_delay::after_service_failures(failures)).await;
            delivery.hide(self.config.visibility_extension()).await;
            // Renewal keeps other workers from acquiring the task meanwhile. If one did, the store refuses `write`.
            if let Some(lease) = &mut lease
                && let Err(error) = self.tasks.renew(lease, self.config.visibility_extension()).await
            {
                tracing::warn!(%error, "could not renew the lease");
            }
        }
    }
}

/// Whether the same call may succeed later.
fn is_transient(error: &ComponentError) -> bool {
    match error {
        ComponentError::Store(_)
        | ComponentError::NotNotified(_)
        | ComponentError::Emit(_)
        | ComponentError::Alert(_) => true,
        ComponentError::Invalid(_)
        | ComponentError::Unknown { .. }
        | ComponentError::Illegal(_)
        | ComponentError::Refused(_) => false,
    }
}

fn log_end(lease: &TaskLease, end: &TaskEnd) {
    let (task, name, attempt) = (&lease.message.request_id, &lease.message.name, lease.attempt);
    match end {
        TaskEnd::Completed { duration_ms: ms, .. } => tracing::info!(%task, name, attempt, ms, "completed"),
        TaskEnd::Failed { error, category } => {
            tracing::warn!(%task, name, attempt, category = name_of(category), error, "failed for good")
        }
        TaskEnd::TimedOut { timeout_ms, elapsed_ms: ms, signal } => {
            tracing::warn!(%task, name, attempt, ms, timeout_ms, signal = name_of(signal), "timed out");
        }
    }
}

/// The name that the word has in events.
fn name_of(word: impl serde::Serialize) -> String {
    serde_json::to_value(word).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

fn log_lost(lease: &TaskLease) {
    let (task, attempt) = (&lease.message.request_id, lease.attempt);
    tracing::warn!(%task, attempt, "this worker lost the lease; the attempt does not count");
}

fn log_unwritten(lease: &TaskLease, error: &ComponentError) {
    let (task, attempt) = (&lease.message.request_id, lease.attempt);
    tracing::error!(%task, attempt, %error, "could not write the result of the attempt; the task runs again when its lease expires");
}
