//! Handles a message of the task queue. If a service fails, the message stays on the queue and is redelivered.

use std::time::Duration;

use ledgerline_dispatch::{DispatchError, EndAnswer, Taken, TaskEnd, TaskLease, TaskMessage};
use ledgerline_event::catalogue::ErrorCategory;
use tokio::{sync::watch, time::Instant};

use super::{Worker, attempt::Verdict, backoff, delivery::Delivery};

/// How long the worker tries to write the end of a task. While the store does not answer, no other worker can take
/// the task; if one does take it, the store refuses the end.
const PATIENCE: Duration = Duration::from_secs(10 * 60);
/// How many names of other workers' tasks the worker remembers as logged.
const NAMES_REMEMBERED: usize = 1_000;

impl Worker {
    /// Runs the task of a message if it is to be run here and now, and settles the message.
    pub(super) async fn handle(&self, delivery: Delivery, give_up: watch::Receiver<bool>) {
        let message = match TaskMessage::parse(&delivery.body) {
            Ok(message) => message,
            Err(error) => {
                tracing::error!(%error, "a message on the task queue is no task; after some deliveries it is a dead letter");
                return delivery.hide(backoff::of_task(delivery.receives)).await;
            }
        };
        let Some(entry) = self.config.entry(&message.name) else {
            self.note_not_ours(&message.name);
            return delivery.hide(backoff::of_others(delivery.receives)).await;
        };
        let (extension, most) = (self.config.extension(), message.max_attempts.unwrap_or(entry.attempts));
        match self.dispatch.take(&message, &delivery.body, &self.id, extension, most).await {
            Ok(Taken::Mine(mut lease)) => {
                let verdict = self.attempt(&mut lease, entry, &delivery, give_up).await;
                self.settle(&lease, verdict, &delivery).await;
            }
            Ok(Taken::Ended) => delivery.delete().await,
            Ok(Taken::Held { until }) => {
                let left = Duration::from_millis(until.get().saturating_sub((self.clock)().get()));
                tracing::debug!(task = %message.request_id, "somebody runs it");
                delivery.hide(backoff::a_little_more(left)).await;
            }
            Ok(Taken::Exhausted { attempts }) => {
                tracing::warn!(task = %message.request_id, attempts, "no attempts are left");
                self.bury(&message, &delivery).await;
            }
            Err(error) => {
                tracing::warn!(task = %message.request_id, %error, "the task could not be taken; it comes again");
                delivery.hide(backoff::of_task(delivery.receives)).await;
            }
        }
    }

    fn note_not_ours(&self, name: &str) {
        let Ok(mut told) = self.not_ours.lock() else { return };
        if told.len() < NAMES_REMEMBERED && told.insert(name.to_owned()) {
            tracing::warn!(
                "tasks named `{name}` are left for other workers: to run them here, add [tasks.\"{name}\"] or \
                 [tasks.\"*\"] to the task file and start the worker again"
            );
        }
    }

    async fn settle(&self, lease: &TaskLease, verdict: Verdict, delivery: &Delivery) {
        let task = &lease.message.request_id;
        match verdict {
            Verdict::End(end) => self.end(lease, end, delivery).await,
            Verdict::Retry { error, category } => {
                let let_go = || self.dispatch.retry_later(lease, &error, category);
                match self.insist(Some(lease), delivery, let_go).await {
                    Ok(true) if lease.is_last => {
                        tracing::warn!(%task, attempt = lease.attempt, category = name_of(category), error, "failed, and was the last attempt");
                        self.bury(&lease.message, delivery).await;
                    }
                    Ok(true) => {
                        let wait = backoff::of_task(lease.attempt);
                        let again = format!("{} s", wait.as_secs());
                        tracing::warn!(%task, attempt = lease.attempt, category = name_of(category), again, error, "failed, and is tried again");
                        delivery.hide(wait).await;
                    }
                    Ok(false) => self.tell_lost(lease).await,
                    Err(trouble) => note_left(lease, &trouble),
                }
            }
            Verdict::GiveBack { after } => {
                match self.insist(Some(lease), delivery, || self.dispatch.give_back(lease)).await {
                    Ok(true) => {
                        tracing::info!(%task, attempt = lease.attempt, "given back");
                        delivery.hide(after).await;
                    }
                    Ok(false) => note_lost(lease),
                    Err(trouble) => note_left(lease, &trouble),
                }
            }
            Verdict::Lost => self.tell_lost(lease).await,
        }
    }

    /// Emits that the attempt does not count.
    async fn tell_lost(&self, lease: &TaskLease) {
        note_lost(lease);
        if let Err(error) = self.dispatch.tell_lost(lease).await {
            tracing::warn!(task = %lease.message.request_id, %error, "the ledger does not know that the task was lost");
        }
    }

    async fn end(&self, lease: &TaskLease, end: TaskEnd, delivery: &Delivery) {
        let mut end = end;
        let mut answer = self.insist(Some(lease), delivery, || self.dispatch.end(lease, end.clone())).await;
        if let (Err(DispatchError::Invalid(invalid)), TaskEnd::Completed { .. }) = (&answer, &end) {
            // The ledger cannot hold the output: the task has failed, and another attempt would fail, too.
            let error = format!("the output cannot be kept: {invalid}");
            end = TaskEnd::Failed { error, category: ErrorCategory::Validation };
            answer = self.insist(Some(lease), delivery, || self.dispatch.end(lease, end.clone())).await;
        }
        match answer {
            Ok(EndAnswer::Done) => {
                note_end(lease, &end);
                delivery.delete().await;
            }
            // The worker that holds the task now deletes the message.
            Ok(EndAnswer::Refused) => note_lost(lease),
            Err(trouble) => note_left(lease, &trouble),
        }
    }

    /// Moves the message of a task without attempts left to the dead-letter queue.
    async fn bury(&self, message: &TaskMessage, delivery: &Delivery) {
        match self.insist(None, delivery, || self.dispatch.bury(message, &delivery.body)).await {
            Ok(()) => delivery.delete().await,
            Err(error) => {
                tracing::error!(task = %message.request_id, %error, "it could not be moved to the dead letters; it comes again");
            }
        }
    }

    /// Retries `act` until it succeeds, cannot succeed, or `PATIENCE` ends; meanwhile the message stays hidden.
    async fn insist<T, F>(
        &self,
        lease: Option<&TaskLease>,
        delivery: &Delivery,
        mut act: impl FnMut() -> F,
    ) -> Result<T, DispatchError>
    where
        F: Future<Output = Result<T, DispatchError>>,
    {
        let mut lease = lease.cloned();
        let began = Instant::now();
        let mut failures = 0;
        loop {
            let error = match act().await {
                Err(error) if may_pass(&error) && began.elapsed() < PATIENCE => error,
                other => return other,
            };
            failures += 1;
            tracing::warn!(%error, failures, "what became of a task could not be written; trying again");
            tokio::time::sleep(backoff::of_service(failures)).await;
            delivery.hide(self.config.extension()).await;
            // Renewal keeps other workers from taking the task meanwhile. If one did, the store refuses `act`.
            if let Some(lease) = &mut lease
                && let Err(error) = self.dispatch.renew(lease, self.config.extension()).await
            {
                tracing::warn!(%error, "the lease could not be renewed");
            }
        }
    }
}

/// Whether the same may succeed later.
fn may_pass(error: &DispatchError) -> bool {
    match error {
        DispatchError::Store(_)
        | DispatchError::NotCalled(_)
        | DispatchError::Emit(_)
        | DispatchError::Alert(_) => true,
        DispatchError::Invalid(_)
        | DispatchError::Unknown { .. }
        | DispatchError::Illegal(_)
        | DispatchError::Refused(_) => false,
    }
}

fn note_end(lease: &TaskLease, end: &TaskEnd) {
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

/// As it is in the ledger.
fn name_of(word: impl serde::Serialize) -> String {
    serde_json::to_value(word).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

fn note_lost(lease: &TaskLease) {
    let (task, attempt) = (&lease.message.request_id, lease.attempt);
    tracing::warn!(%task, attempt, "the task is somebody else's by now; what was done here does not count");
}

fn note_left(lease: &TaskLease, trouble: &DispatchError) {
    let (task, attempt) = (&lease.message.request_id, lease.attempt);
    tracing::error!(%task, attempt, error = %trouble, "what became of the task could not be written; it runs again");
}
