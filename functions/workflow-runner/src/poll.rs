//! Taking runs from a queue, outside of Lambda: one poll at a time for as many as there are free slots.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::{JoinError, JoinSet},
};

use crate::{Handler, Inbox, Letter};

/// What one receive answers at most.
const RECEIVE_MAX: usize = 10;
/// The first rest after a queue that does not answer, and the longest.
const REST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// How long a stopping poller waits for the answer to its last receive. Messages of an answer that it misses stay
/// hidden from other runners for a long time.
const LAST_LETTERS: Duration = Duration::from_millis(300);

/// How to take runs.
#[derive(Clone, Copy, Debug)]
pub struct Polling {
    /// Runs at the same time.
    pub concurrency: usize,
    /// How long what is in flight may take to finish once stopping.
    pub grace: Duration,
}

/// Takes runs until `stop` says so; then finishes what is in flight.
pub async fn poll(handler: Handler, inbox: impl Inbox, polling: Polling, mut stop: watch::Receiver<bool>) {
    let (handler, inbox) = (Arc::new(handler), Arc::new(inbox));
    let slots = Arc::new(Semaphore::new(polling.concurrency.max(1)));
    let mut visits = JoinSet::new();
    let mut failures = 0;
    loop {
        while let Some(ended) = visits.try_join_next() {
            note_panic(ended);
        }
        let mut free = tokio::select! {
            biased;
            () = asked(&mut stop) => break,
            free = free_slots(&slots) => match free {
                Some(free) => free,
                None => break,
            },
        };
        let polled = {
            let mut receiving = pin!(inbox.receive(free.num_permits()));
            tokio::select! {
                biased;
                () = asked(&mut stop) => tokio::time::timeout(LAST_LETTERS, receiving).await.ok(),
                polled = &mut receiving => Some(polled),
            }
        };
        // The queue may still have answered an abandoned receive. The sweep sends the runs of those messages again.
        let Some(polled) = polled else { break };
        match polled {
            Ok(letters) => {
                failures = 0;
                for letter in letters {
                    let (handler, inbox, slot) = (handler.clone(), inbox.clone(), free.split(1));
                    visits.spawn(async move {
                        visit(&handler, &*inbox, letter).await;
                        drop(slot);
                    });
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the run queue does not answer; asking again soon");
                let rest = REST.0.saturating_mul(1 << failures.min(5)).min(REST.1);
                failures += 1;
                tokio::select! {
                    () = asked(&mut stop) => break,
                    () = tokio::time::sleep(rest) => {}
                }
            }
        }
    }
    wind_up(visits, polling.grace).await;
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

async fn visit<I: Inbox>(handler: &Handler, inbox: &I, letter: Letter) {
    if !Box::pin(handler.visit(&letter.body, None)).await.is_done() {
        return;
    }
    if let Err(error) = inbox.delete(&letter.receipt).await {
        tracing::warn!(%error, "the message of a run that was looked after will come again");
    }
}

async fn wind_up(mut visits: JoinSet<()>, grace: Duration) {
    let all = async {
        while let Some(ended) = visits.join_next().await {
            note_panic(ended);
        }
    };
    if tokio::time::timeout(grace, all).await.is_err() {
        let left = visits.len();
        tracing::warn!(
            "{left} runs did not come to a halt in time; others go on with them when their leases end"
        );
    }
}

async fn asked(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone; that counts as a request to stop.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// A visit that panics leaves its run as one whose runner died.
fn note_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a visit crashed; others go on with its run when the lease ends");
    }
}
