//! The worker and its loop: one long poll at a time, for as many messages as there are free slots, until the worker is
//! asked to stop or, if it runs until idle, no task waits or runs.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use ledgerline_jobs::Tasks;
use ledgerline_ledger::Clock;
use ledgerline_store::StoreError;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::{JoinError, JoinSet},
};

use super::{
    config::Config,
    process::KILL_AFTER,
    retry_delay,
    task_queue::{Delivery, TaskQueue},
};

/// The longest that SQS waits for a message: an idle worker polls three times a minute.
const LONG_POLL: Duration = Duration::from_secs(20);
/// The same for a worker that ends when no task waits or runs.
const SHORT_POLL: Duration = Duration::from_secs(2);
/// The most messages that SQS returns at once.
const RECEIVE_MAX: usize = 10;
/// How long it may take to give tasks back once their processes have exited.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(10);

/// Whether a worker is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It is not.
    No,
    /// It takes no more tasks, and lets running ones finish within the grace period.
    Gently,
    /// It ends running tasks and gives them back.
    Now,
}

/// What a worker needs.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct WorkerOptions {
    pub tasks: Arc<Tasks>,
    pub sqs: aws_sdk_sqs::Client,
    /// The queue of tasks.
    pub queue_url: String,
    pub config: Config,
    /// How long running tasks may go on after [`Stop::Gently`].
    pub grace: Duration,
    /// Whether the worker ends when no task waits or runs.
    pub until_idle: bool,
    pub clock: Clock,
}

/// A worker.
pub struct Worker {
    pub(super) tasks: Arc<Tasks>,
    pub(super) config: Config,
    pub(super) clock: Clock,
    /// Its unique name in leases and events.
    pub(super) id: String,
    /// Names of tasks for which this worker has no command; each is logged once.
    pub(super) ignored_names: Mutex<BTreeSet<String>>,
    queue: TaskQueue,
    grace: Duration,
    until_idle: bool,
}

/// Runs a worker until it is asked to stop or, with `until_idle`, until no task waits or runs.
pub async fn run(options: WorkerOptions, stop: watch::Receiver<Stop>) {
    let worker = Worker::new(options);
    tracing::info!(worker = worker.id, concurrency = worker.config.concurrency, "waiting for tasks");
    Arc::new(worker).run_until(stop).await;
}

impl Worker {
    /// A worker with a new unique name.
    pub fn new(options: WorkerOptions) -> Self {
        Self {
            tasks: options.tasks,
            config: options.config,
            clock: options.clock,
            id: new_id(),
            ignored_names: Mutex::default(),
            queue: TaskQueue::new(options.sqs, options.queue_url),
            grace: options.grace,
            until_idle: options.until_idle,
        }
    }

    /// Runs tasks until the worker ends; lets running ones finish, or gives them back.
    async fn run_until(self: Arc<Self>, mut stop: watch::Receiver<Stop>) {
        let (abandon, abandoned) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let slots = Arc::new(Semaphore::new(self.config.concurrency));
        let mut failures = 0;
        loop {
            reap_ended(&mut tasks);
            // SQS may have answered a poll that is cancelled here; it redelivers such a message when the message
            // becomes visible again.
            let polled = tokio::select! {
                biased;
                () = stop_requested(&mut stop, |stop| stop != Stop::No) => break,
                polled = self.poll(&slots) => polled,
            };
            match polled {
                Ok((received, _)) if received.is_empty() && self.until_idle && has_no_tasks(&mut tasks) => {
                    break;
                }
                Ok((received, mut free)) => {
                    failures = 0;
                    for delivery in received {
                        let (worker, abandoned, slot) = (self.clone(), abandoned.clone(), free.split(1));
                        tasks.spawn(async move {
                            Box::pin(worker.handle_message(delivery, abandoned)).await;
                            drop(slot);
                        });
                    }
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, "could not receive from the task queue; trying again soon");
                    tokio::select! {
                        () = stop_requested(&mut stop, |stop| stop != Stop::No) => break,
                        () = tokio::time::sleep(retry_delay::after_service_failures(failures)) => {}
                    }
                }
            }
        }
        self.shut_down(tasks, &abandon, stop).await;
    }

    /// Waits for a free slot, and then for messages: as many as there are slots.
    async fn poll(
        &self,
        slots: &Arc<Semaphore>,
    ) -> Result<(Vec<Delivery>, OwnedSemaphorePermit), StoreError> {
        let closed = |_| StoreError::unreadable("ReceiveMessage", "the slots are closed");
        let mut free = slots.clone().acquire_owned().await.map_err(closed)?;
        let more = u32::try_from(slots.available_permits().min(RECEIVE_MAX - 1)).unwrap_or(0);
        if let Ok(more) = slots.clone().try_acquire_many_owned(more) {
            free.merge(more);
        }
        let wait = if self.until_idle { SHORT_POLL } else { LONG_POLL };
        let received =
            self.queue.receive(free.num_permits(), self.config.visibility_extension(), wait).await?;
        Ok((received, free))
    }

    async fn shut_down(
        &self,
        mut tasks: JoinSet<()>,
        abandon: &watch::Sender<bool>,
        mut stop: watch::Receiver<Stop>,
    ) {
        reap_ended(&mut tasks);
        if !tasks.is_empty() {
            let (running, grace) = (tasks.len(), self.grace.as_secs());
            tracing::info!(
                "taking no more tasks; those that run ({running}) have {grace} s to finish, and are given back then"
            );
        }
        tokio::select! {
            () = all_ended(&mut tasks) => return,
            () = tokio::time::sleep(self.grace) => {}
            () = stop_requested(&mut stop, |stop| stop == Stop::Now) => {}
        }
        abandon.send_replace(true);
        if tokio::time::timeout(KILL_AFTER + GIVE_BACK_WITHIN, all_ended(&mut tasks)).await.is_err() {
            let left = tasks.len();
            tracing::warn!("{left} tasks could not be given back; they run again when their leases expire");
        }
    }
}

async fn stop_requested(stop: &mut watch::Receiver<Stop>, is_requested: impl Fn(Stop) -> bool) {
    // An error means that the sender is gone; that counts as a request to stop.
    let _ = stop.wait_for(|stop| is_requested(*stop)).await;
}

fn reap_ended(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.try_join_next() {
        log_panic(ended);
    }
}

fn has_no_tasks(tasks: &mut JoinSet<()>) -> bool {
    reap_ended(tasks);
    tasks.is_empty()
}

async fn all_ended(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        log_panic(ended);
    }
}

/// A task whose handling panics keeps its lease until that expires, as if its worker had died.
fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "handling a task crashed; it runs again when its lease expires");
    }
}

fn new_id() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    format!("worker-{host}-{}-{:08x}", std::process::id(), fastrand::u32(..))
}
