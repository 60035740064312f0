//! Takes runs from a queue, outside of Lambda: one poll at a time, for as many messages as there are free slots.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::{JoinError, JoinSet},
};

use crate::{Handler, QueueMessage, RunQueue};

/// The maximum number of messages that one receive returns.
const RECEIVE_MAX: usize = 10;
/// The first pause after a poll that failed, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// How long a stopping poller waits for the answer to its last receive. Messages of an answer that it misses stay
/// hidden from other runners for a long time.
const LAST_MESSAGES: Duration = Duration::from_millis(300);

/// How many runs to take, and how to stop.
#[derive(Clone, Copy, Debug)]
pub struct Polling {
    /// Runs at the same time.
    pub concurrency: usize,
    /// How long runs in flight may take to finish after a stop.
    pub grace: Duration,
}

/// Takes runs until `stop` is true, then finishes those in flight.
pub async fn poll(handler: Handler, queue: impl RunQueue, polling: Polling, mut stop: watch::Receiver<bool>) {
    let (handler, queue) = (Arc::new(handler), Arc::new(queue));
    let slots = Arc::new(Semaphore::new(polling.concurrency.max(1)));
    let mut visits = JoinSet::new();
    let mut failures = 0;
    loop {
        while let Some(ended) = visits.try_join_next() {
            note_panic(ended);
        }
        let mut free = tokio::select! {
            biased;
            () = stop_requested(&mut stop) => break,
            free = free_slots(&slots) => match free {
                Some(free) => free,
                None => break,
            },
        };
        let polled = {
            let mut receiving = pin!(queue.receive(free.num_permits()));
            tokio::select! {
                biased;
                () = stop_requested(&mut stop) => tokio::time::timeout(LAST_MESSAGES, receiving).await.ok(),
                polled = &mut receiving => Some(polled),
            }
        };
        // The queue may still have answered an abandoned receive. The sweep enqueues the runs of those messages again.
        let Some(polled) = polled else { break };
        match polled {
            Ok(messages) => {
                failures = 0;
                for message in messages {
                    let (handler, queue, slot) = (handler.clone(), queue.clone(), free.split(1));
                    visits.spawn(async move {
                        visit(&handler, &*queue, message).await;
                        drop(slot);
                    });
                }
            }
            Err(error) => {
                tracing::warn!(%error, "polling the run queue failed; retrying soon");
                let backoff = BACKOFF.0.saturating_mul(1 << failures.min(5)).min(BACKOFF.1);
                failures += 1;
                tokio::select! {
                    () = stop_requested(&mut stop) => break,
                    () = tokio::time::sleep(backoff) => {}
                }
            }
        }
    }
    finish(visits, polling.grace).await;
}

/// Waits for a free slot, and takes as many as there are.
async fn free_slots(slots: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    let mut free = slots.clone().acquire_owned().await.ok()?;
    let more = u32::try_from(slots.available_permits().min(RECEIVE_MAX - 1)).unwrap_or(0);
    if let Ok(more) = slots.clone().try_acquire_many_owned(more) {
        free.merge(more);
    }
    Some(free)
}

async fn visit<I: RunQueue>(handler: &Handler, queue: &I, message: QueueMessage) {
    if !Box::pin(handler.visit(&message.body, None)).await.is_done() {
        return;
    }
    if let Err(error) = queue.delete(&message.receipt).await {
        tracing::warn!(%error, "the message of an executed run was not deleted; SQS will deliver it again");
    }
}

async fn finish(mut visits: JoinSet<()>, grace: Duration) {
    let all = async {
        while let Some(ended) = visits.join_next().await {
            note_panic(ended);
        }
    };
    if tokio::time::timeout(grace, all).await.is_err() {
        let left = visits.len();
        tracing::warn!(
            "{left} runs did not stop in time; other runners continue them when their leases expire"
        );
    }
}

async fn stop_requested(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone; that counts as a request to stop.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// A visit that panics leaves its run like a runner that died: another one continues it when the lease expires.
fn note_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a visit panicked; another runner continues its run when the lease expires");
    }
}
