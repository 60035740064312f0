//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

/// Long enough for a loaded machine; nothing waits this long when all is well.
const DEADLINE: Duration = Duration::from_secs(120);

/// Waits until `probe` answers, looking again and again; a probe that takes long is made less often, for what it waits
/// for needs the machine too.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        let looked = Instant::now();
        if let Some(found) = probe().await {
            return found;
        }
        assert!(began.elapsed() < DEADLINE, "waited in vain until {what}");
        tokio::time::sleep(looked.elapsed().clamp(Duration::from_millis(5), Duration::from_secs(1))).await;
    }
}
