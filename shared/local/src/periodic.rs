//! What local mode runs by the clock, as EventBridge rules do on AWS.

use std::{fmt::Display, time::Duration};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

/// When the first call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    AtOnce,
    AfterPeriod,
}

/// Calls `work` once per period until local mode stops. A call that fails or panics is logged, and the next one is made in
/// its turn.
pub(super) async fn run_every<T, E, F>(
    period: Duration,
    first: First,
    name: &'static str,
    work: impl Fn() -> F,
    mut stopped: watch::Receiver<bool>,
) where
    F: Future<Output = Result<T, E>> + Send + 'static,
    T: Send + 'static,
    E: Display + Send + 'static,
{
    let mut ticks = interval(period);
    // After the machine has slept, one call suffices: it finds everything that is due.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    if first == First::AfterPeriod {
        ticks.tick().await;
    }
    loop {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            _ = ticks.tick() => {}
        }
        match tokio::spawn(work()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::error!(%error, "{name} failed; it runs again after its period"),
            Err(error) => tracing::error!(%error, "{name} crashed; it runs again after its period"),
        }
    }
}
