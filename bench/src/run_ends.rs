//! When runs end, as the services of a running local mode see it, so that the bench need not poll the runs.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use futures::FutureExt;
use ledgerline_embedded::{Call, Interceptor, Moment, Service, Verdict};
use ledgerline_store::keys;
use serde_json::Value;
use tokio::sync::oneshot;

type Waiting = HashMap<String, oneshot::Sender<Instant>>;

/// The runs whose end the bench waits for.
#[derive(Clone, Default)]
pub(crate) struct RunEnds(Arc<Mutex<Waiting>>);

impl RunEnds {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies the waiting receiver as soon as the end of a run is in its log, before the runner gets its answer.
    pub(crate) fn interceptor(&self) -> Interceptor {
        let ends = self.clone();
        Arc::new(move |call: Call, moment| {
            if moment == (Moment::After { status: 200 })
                && let Some(run_id) = ended(&call)
                && let Some(waiting) = ends.waiting().remove(&run_id)
            {
                // The receiver may have given up.
                let _ = waiting.send(Instant::now());
            }
            async { Verdict::Proceed }.boxed()
        })
    }

    /// Receives the time at which this run ends. Call it before the run starts.
    pub(crate) fn of(&self, run_id: &str) -> oneshot::Receiver<Instant> {
        let (sender, receiver) = oneshot::channel();
        self.waiting().insert(run_id.to_owned(), sender);
        receiver
    }
}

/// The run that a transaction completes.
fn ended(call: &Call) -> Option<String> {
    const MARK: &[u8] = b"run_completed";
    let is_transaction = call.service == Service::DynamoDb && call.operation == "TransactWriteItems";
    if !is_transaction || !call.body.windows(MARK.len()).any(|window| window == MARK) {
        return None;
    }
    let body: Value = serde_json::from_slice(&call.body).ok()?;
    let entry = &body["TransactItems"][0]["Put"]["Item"];
    let (_, run_id) = keys::parse_run_partition(entry["PK"]["S"].as_str()?)?;
    Some(run_id.to_owned())
}
