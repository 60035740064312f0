//! Supervises the parts of local mode that run concurrently. It restarts a part that ends or panics, after a delay, counts and
//! logs that, and shows it in `/api/health`: without a part that silently ended, the ledger would answer and do nothing.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::watch,
    task::{JoinError, JoinHandle},
    time::{Instant, sleep},
};

/// The delay before a part is restarted: the first, and the longest; it doubles each time.
const RESTART_DELAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// After a part has run this long, its next restart has the shortest delay, and its last end is not shown as trouble.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// Starts parts and knows their state. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Supervisor {
    parts: Arc<Mutex<BTreeMap<String, Part>>>,
}

/// The state of a part.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    /// Whether it runs now.
    pub(crate) running: bool,
    /// How often it was started again.
    pub(crate) restarts: u64,
    /// When it last ended by itself, and why.
    pub(super) ended: Option<(Instant, String)>,
}

impl Part {
    /// Why it last ended, if that was a short while ago.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.ended.as_ref().filter(|(at, _)| at.elapsed() < STABLE_AFTER).map(|(_, reason)| reason.as_str())
    }
}

impl Supervisor {
    /// Runs the future that `start` returns, again and again until `is_stop` holds for the value of `stop`.
    pub(crate) fn run<S, F>(
        &self,
        name: impl Into<String>,
        mut stop: watch::Receiver<S>,
        is_stop: impl Fn(&S) -> bool + Send + Sync + 'static,
        start: impl Fn() -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        S: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (supervisor, name) = (self.clone(), name.into());
        tokio::spawn(async move {
            let mut delay = RESTART_DELAY.0;
            loop {
                supervisor.change(&name, |part| part.running = true);
                let began = Instant::now();
                let ended = AbortOnDrop(tokio::spawn(start())).await;
                supervisor.change(&name, |part| part.running = false);
                // A dropped sender means that local mode is gone.
                if is_stop(&stop.borrow()) || stop.has_changed().is_err() {
                    if let Err(error) = ended {
                        tracing::error!(part = name, %error, "a part of local mode panicked");
                    }
                    supervisor.parts.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
                    return;
                }
                if began.elapsed() >= STABLE_AFTER {
                    delay = RESTART_DELAY.0;
                }
                let reason = ended.map_or_else(|error| error.to_string(), |()| "it ended by itself".into());
                tracing::error!(part = name, reason, "a part of local mode ended; restarting it");
                supervisor.change(&name, |part| {
                    part.restarts += 1;
                    part.ended = Some((Instant::now(), reason));
                });
                tokio::select! {
                    _ = stop.wait_for(|stop| is_stop(stop)) => return,
                    () = sleep(delay) => {}
                }
                delay = (delay * 2).min(RESTART_DELAY.1);
            }
        })
    }

    /// All parts by name.
    pub(crate) fn parts(&self) -> BTreeMap<String, Part> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Part)) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        change(parts.entry(name.to_owned()).or_default());
    }
}

/// A handle that aborts its tokio task when it is dropped: stopping a part stops the tasks that it has spawned.
pub(super) struct AbortOnDrop<T>(pub(super) JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_part_that_panics_or_ends_is_restarted_and_shown() {
        let (stop, stopped) = watch::channel(false);
        let supervisor = Supervisor::default();
        let starts = Arc::new(AtomicU32::new(0));
        let counted = starts.clone();
        let up = stopped.clone();
        let part = supervisor.run(
            "saver",
            stopped,
            |stop| *stop,
            move || {
                let (count, mut up) = (counted.fetch_add(1, Ordering::SeqCst), up.clone());
                async move {
                    match count {
                        0 => panic!("no paper"),
                        1 => {}
                        _ => _ = up.wait_for(|stop| *stop).await,
                    }
                }
            },
        );
        while starts.load(Ordering::SeqCst) < 3 {
            sleep(Duration::from_millis(10)).await;
        }
        let shown = supervisor.parts()["saver"].clone();
        assert_eq!((shown.running, shown.restarts), (true, 2));
        assert_eq!(shown.trouble(), Some("it ended by itself"));
        sleep(STABLE_AFTER).await;
        assert_eq!(shown.trouble(), None);
        stop.send_replace(true);
        part.await.unwrap();
        assert_eq!(starts.load(Ordering::SeqCst), 3);
    }
}
