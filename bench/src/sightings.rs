//! When the services of a running local mode had carried out the requests that a bench waits for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use futures::FutureExt;
use ledgerline_embedded::{Call, Interceptor, Moment, Verdict};
use tokio::sync::Notify;

/// What was seen first when.
#[derive(Clone, Default)]
pub(crate) struct Sightings {
    seen: Arc<Mutex<HashMap<String, Instant>>>,
    news: Arc<Notify>,
}

impl Sightings {
    fn seen(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes requests once they are carried out; `names` says what they are called, if anything.
    pub(crate) fn interceptor(
        &self,
        names: impl Fn(&Call) -> Vec<String> + Send + Sync + 'static,
    ) -> Interceptor {
        let sightings = self.clone();
        Arc::new(move |call: Call, moment| {
            if moment == (Moment::After { status: 200 }) {
                let now = Instant::now();
                let names = names(&call);
                if !names.is_empty() {
                    let mut seen = sightings.seen();
                    for name in names {
                        seen.entry(name).or_insert(now);
                    }
                    drop(seen);
                    sightings.news.notify_one();
                }
            }
            async { Verdict::Proceed }.boxed()
        })
    }

    /// When it was seen, if it was.
    pub(crate) fn at(&self, name: &str) -> Option<Instant> {
        self.seen().get(name).copied()
    }

    /// Waits until it is seen.
    pub(crate) async fn until(&self, name: &str) -> Instant {
        loop {
            if let Some(at) = self.at(name) {
                return at;
            }
            self.news.notified().await;
        }
    }
}
