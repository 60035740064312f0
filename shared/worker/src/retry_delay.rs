//! How long the worker waits before it tries again: exponential backoff with jitter.

use std::time::Duration;

/// Between attempts at a task: the first delay, and the longest.
const ATTEMPT: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(15 * 60));
/// While a task is left to other workers: the first delay, and the longest. Other workers must get it soon.
const OTHER_WORKERS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// After calls to a service that failed: the first delay, and the longest.
const SERVICE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// How long a task waits after its attempt number `attempt` has failed.
pub(super) fn after_attempt(attempt: u32) -> Duration {
    with_jitter(exponential(ATTEMPT, attempt))
}

/// How long a message stays hidden that this worker leaves to others and has received `receives` times.
pub(super) fn for_other_workers(receives: u32) -> Duration {
    with_jitter(exponential(OTHER_WORKERS, receives))
}

/// How long to wait before calling a service again that has failed `failures` times in a row.
pub(super) fn after_service_failures(failures: u32) -> Duration {
    with_jitter(exponential(SERVICE, failures))
}

/// Up to an eighth more, so that workers that wait for the same lease do not all ask at the same moment.
pub(super) fn with_spread(length: Duration) -> Duration {
    length + length.mul_f64(fastrand::f64() / 8.0)
}

fn exponential((first, longest): (Duration, Duration), attempt: u32) -> Duration {
    first.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(longest)
}

/// Between half of `length` and all of it.
fn with_jitter(length: Duration) -> Duration {
    length.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_between_attempts_doubles_up_to_a_quarter_of_an_hour() {
        let waits = [1, 2, 3, 8, 9, 4_000_000_000].map(|attempt| exponential(ATTEMPT, attempt).as_secs());
        assert_eq!(waits, [5, 10, 20, 640, 900, 900]);
        assert_eq!(exponential(SERVICE, 0), Duration::from_secs(1));
    }

    #[test]
    fn jitter_takes_away_up_to_half_and_spread_adds_up_to_an_eighth() {
        for _ in 0..1_000 {
            let wait = after_attempt(2);
            assert!((Duration::from_secs(5)..=Duration::from_secs(10)).contains(&wait), "{wait:?}");
            assert!(with_spread(wait) <= wait.mul_f64(1.125));
        }
    }
}
