//! Invocations by a schedule, a stream or a queue, and the time that each may take.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lambda_runtime::{LambdaEvent, service_fn};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

/// One call of a function by Lambda.
pub struct Invocation {
    /// What the caller sent: records of a stream or a queue, or a tick of a schedule.
    pub event: Value,
    /// When Lambda ends the invocation, in epoch milliseconds.
    pub ends_at: u64,
}

impl Invocation {
    /// The time from which the function begins nothing more: `reserve` before the invocation ends, but a quarter of the
    /// time that is left at most.
    pub fn deadline(&self, reserve: Duration) -> Instant {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Instant::now() + usable(Duration::from_millis(self.ends_at).saturating_sub(now), reserve)
    }
}

/// Handles invocations for as long as Lambda sends some.
pub async fn serve<F, A, E>(handle: impl Fn(Invocation) -> F) -> Result<(), lambda_runtime::Error>
where
    F: Future<Output = Result<A, E>>,
    A: Serialize,
    E: Into<lambda_runtime::Error>,
{
    let handle = &handle;
    lambda_runtime::run(service_fn(|event: LambdaEvent<Value>| async move {
        let invocation = Invocation { event: event.payload, ends_at: event.context.deadline };
        // Boxed: some handlers nest futures so deeply that the compiler cannot lay out one more around them.
        Box::pin(handle(invocation)).await.map_err(Into::into)
    }))
    .await
}

fn usable(left: Duration, reserve: Duration) -> Duration {
    left.saturating_sub(reserve.min(left / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_kept_and_takes_a_quarter_at_the_most() {
        let seconds = Duration::from_secs;
        assert_eq!(usable(seconds(300), seconds(10)), seconds(290));
        assert_eq!(usable(seconds(20), seconds(10)), seconds(15));
        assert_eq!(usable(Duration::ZERO, seconds(10)), Duration::ZERO);
    }
}
