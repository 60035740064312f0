//! The loop: one long poll at a time for as many messages as there are free slots.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use ledgerline_dispatch::Dispatch;
use ledgerline_ledger::{Clock, StoreError};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::{JoinError, JoinSet},
};

use super::{
    backoff,
    child::KILL_AFTER,
    config::Config,
    delivery::{Delivery, TaskQueue},
};

/// The longest that SQS waits for a message: an idle worker asks three times a minute.
const LONG_POLL: Duration = Duration::from_secs(20);
/// How long a worker that ends when nothing waits looks for more.
const SHORT_POLL: Duration = Duration::from_secs(2);
/// What one receive answers at most.
const RECEIVE_MAX: usize = 10;
/// How long giving tasks back may take once their processes are gone.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(10);

/// Whether a worker goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It does.
    No,
    /// It takes no more tasks, and finishes what it has within its grace.
    Gently,
    /// It gives back what it has.
    Now,
}

/// What a worker needs.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct WorkerOptions {
    pub dispatch: Dispatch,
    pub sqs: aws_sdk_sqs::Client,
    /// The queue of tasks.
    pub queue_url: String,
    pub config: Config,
    /// How long running tasks may go on once the worker is asked to stop.
    pub grace: Duration,
    /// Ends when no task waits or runs.
    pub once: bool,
    pub clock: Clock,
}

/// A worker.
pub struct Worker {
    pub(super) dispatch: Dispatch,
    pub(super) config: Config,
    pub(super) clock: Clock,
    /// Its unique name in leases and events.
    pub(super) id: String,
    /// Names of tasks that this worker leaves to others, and has logged once.
    pub(super) not_ours: Mutex<BTreeSet<String>>,
    queue: TaskQueue,
    grace: Duration,
    once: bool,
}

/// Runs a worker until it is asked to stop.
pub async fn run(options: WorkerOptions, stop: watch::Receiver<Stop>) {
    let worker = Worker::new(options);
    tracing::info!(worker = worker.id, concurrency = worker.config.concurrency, "waiting for tasks");
    Arc::new(worker).work_until(stop).await;
}

impl Worker {
    /// A worker with a name of its own.
    pub fn new(options: WorkerOptions) -> Self {
        Self {
            dispatch: options.dispatch,
            config: options.config,
            clock: options.clock,
            id: new_id(),
            not_ours: Mutex::default(),
            queue: TaskQueue::new(options.sqs, options.queue_url),
            grace: options.grace,
            once: options.once,
        }
    }

    /// Takes tasks until it is asked to stop; then finishes or gives back what it has.
    async fn work_until(self: Arc<Self>, mut stop: watch::Receiver<Stop>) {
        let (give_up, given_up) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let slots = Arc::new(Semaphore::new(self.config.concurrency));
        let mut failures = 0;
        loop {
            forget_ended(&mut tasks);
            // A poll that is given up may have been answered: such a message comes again when it is not
            // hidden any more.
            let polled = tokio::select! {
                biased;
                () = asked(&mut stop, |stop| stop != Stop::No) => break,
                polled = self.poll(&slots) => polled,
            };
            match polled {
                Ok((received, _)) if received.is_empty() && self.once && all_ended_by_now(&mut tasks) => {
                    break;
                }
                Ok((received, mut free)) => {
                    failures = 0;
                    for delivery in received {
                        let (worker, given_up, slot) = (self.clone(), given_up.clone(), free.split(1));
                        tasks.spawn(async move {
                            Box::pin(worker.handle(delivery, given_up)).await;
                            drop(slot);
                        });
                    }
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, "the task queue does not answer; asking again soon");
                    tokio::select! {
                        () = asked(&mut stop, |stop| stop != Stop::No) => break,
                        () = tokio::time::sleep(backoff::of_service(failures)) => {}
                    }
                }
            }
        }
        self.wind_up(tasks, &give_up, stop).await;
    }

    /// Waits for a free slot, and then for messages: as many as there are slots.
    async fn poll(
        &self,
        slots: &Arc<Semaphore>,
    ) -> Result<(Vec<Delivery>, OwnedSemaphorePermit), StoreError> {
        let closed = |_| StoreError::unreadable("ReceiveMessage", "there are no slots any more");
        let mut free = slots.clone().acquire_owned().await.map_err(closed)?;
        let more = u32::try_from(slots.available_permits().min(RECEIVE_MAX - 1)).unwrap_or(0);
        if let Ok(more) = slots.clone().try_acquire_many_owned(more) {
            free.merge(more);
        }
        let wait = if self.once { SHORT_POLL } else { LONG_POLL };
        let received = self.queue.receive(free.num_permits(), self.config.extension(), wait).await?;
        Ok((received, free))
    }

    async fn wind_up(
        &self,
        mut tasks: JoinSet<()>,
        give_up: &watch::Sender<bool>,
        mut stop: watch::Receiver<Stop>,
    ) {
        forget_ended(&mut tasks);
        if !tasks.is_empty() {
            let (running, grace) = (tasks.len(), self.grace.as_secs());
            tracing::info!(
                "taking no more tasks; {running} may finish within {grace} s and are given back then"
            );
        }
        tokio::select! {
            () = all_ended(&mut tasks) => return,
            () = tokio::time::sleep(self.grace) => {}
            () = asked(&mut stop, |stop| stop == Stop::Now) => {}
        }
        give_up.send_replace(true);
        if tokio::time::timeout(KILL_AFTER + GIVE_BACK_WITHIN, all_ended(&mut tasks)).await.is_err() {
            let left = tasks.len();
            tracing::warn!("{left} tasks could not be given back; they run again when their leases end");
        }
    }
}

async fn asked(stop: &mut watch::Receiver<Stop>, what: impl Fn(Stop) -> bool) {
    // An error means that the sender is gone; that counts as a request to stop.
    let _ = stop.wait_for(|stop| what(*stop)).await;
}

fn forget_ended(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.try_join_next() {
        note_panic(ended);
    }
}

fn all_ended_by_now(tasks: &mut JoinSet<()>) -> bool {
    forget_ended(tasks);
    tasks.is_empty()
}

async fn all_ended(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        note_panic(ended);
    }
}

/// A task that panics is left to its lease, as one whose worker died.
fn note_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "handling a task crashed; it runs again when its lease ends");
    }
}

fn new_id() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    format!("worker-{host}-{}-{:08x}", std::process::id(), fastrand::u32(..))
}
