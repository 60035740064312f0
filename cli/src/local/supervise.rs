//! The parts of local mode that run beside each other. One that ends or panics is started again after a while, counted,
//! logged, and shown in `/api/health`: a part that is silently gone would leave a ledger that answers and does nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::abort_on_drop::AbortOnDrop;

/// How long a part rests before it is started again: doubled each time, up to a bound.
const REST: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// A part that has run this long begins with the shortest rest again, and its last end is not shown as trouble any more.
const CALM: Duration = Duration::from_secs(60);

/// Starts parts and knows how they fare. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Supervisor {
    parts: Arc<Mutex<BTreeMap<String, Part>>>,
}

/// How a part fares.
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
        self.ended.as_ref().filter(|(at, _)| at.elapsed() < CALM).map(|(_, reason)| reason.as_str())
    }
}

impl Supervisor {
    /// Runs what `start` makes until `stop` is as `is_stop` wants it.
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
            let mut rest = REST.0;
            loop {
                supervisor.change(&name, |part| part.running = true);
                let began = Instant::now();
                let ended = AbortOnDrop(tokio::spawn(start())).await;
                supervisor.change(&name, |part| part.running = false);
                // A dropped sender means that local mode is gone.
                if is_stop(&stop.borrow()) || stop.has_changed().is_err() {
                    if let Err(error) = ended {
                        tracing::error!(part = name, %error, "a part of local mode ended badly");
                    }
                    supervisor.parts.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
                    return;
                }
                if began.elapsed() >= CALM {
                    rest = REST.0;
                }
                let reason = ended.map_or_else(|error| error.to_string(), |()| "it came to its end".into());
                tracing::error!(part = name, reason, "a part of local mode ended; it is started again");
                supervisor.change(&name, |part| {
                    part.restarts += 1;
                    part.ended = Some((Instant::now(), reason));
                });
                tokio::select! {
                    _ = stop.wait_for(|stop| is_stop(stop)) => return,
                    () = sleep(rest) => {}
                }
                rest = (rest * 2).min(REST.1);
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_part_that_panics_or_ends_is_started_again_and_shown() {
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
        assert_eq!(shown.trouble(), Some("it came to its end"));
        sleep(CALM).await;
        assert_eq!(shown.trouble(), None);
        stop.send_replace(true);
        part.await.unwrap();
        assert_eq!(starts.load(Ordering::SeqCst), 3);
    }
}
