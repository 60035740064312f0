//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

/// Long enough for a loaded machine; nothing waits this long when all is well.
const DEADLINE: Duration = Duration::from_secs(120);

/// Calls `probe` again and again until it returns a value. A slow probe is called less often, so that it does not take
/// the processors from what it waits for.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        let looked = Instant::now();
        if let Some(found) = probe().await {
            return found;
        }
        assert!(began.elapsed() < DEADLINE, "timed out: waited {DEADLINE:?} until {what}");
        tokio::time::sleep(looked.elapsed().clamp(Duration::from_millis(5), Duration::from_secs(1))).await;
    }
}
