//! When an invocation has to begin nothing more.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// The moment `reserve` before an invocation ends, which Lambda gives in epoch milliseconds. A short invocation keeps
/// three quarters of its time.
pub fn deadline(ends_at: u64, reserve: Duration) -> Instant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::now() + usable(Duration::from_millis(ends_at).saturating_sub(now), reserve)
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
