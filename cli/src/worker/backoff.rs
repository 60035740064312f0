//! How long to wait before the next attempt.

use std::time::Duration;

/// The first wait for another attempt at a task, and the longest.
const TASK: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(15 * 60));
/// The first time that a task is left to other workers, and the longest: they must not wait for long.
const OTHERS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The first wait for a service that does not do its part, and the longest.
const SERVICE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// How long a task waits after its attempt number `attempt`.
pub(super) fn of_task(attempt: u32) -> Duration {
    with_jitter(doubled(TASK, attempt))
}

/// How long a task is left to other workers that has come `receives` times.
pub(super) fn of_others(receives: u32) -> Duration {
    with_jitter(doubled(OTHERS, receives))
}

/// How long to leave a service alone that has failed `failures` times.
pub(super) fn of_service(failures: u32) -> Duration {
    with_jitter(doubled(SERVICE, failures))
}

/// Up to an eighth more, so that those who waited for the same do not come together.
pub(super) fn a_little_more(length: Duration) -> Duration {
    length + length.mul_f64(fastrand::f64() / 8.0)
}

fn doubled((first, longest): (Duration, Duration), attempt: u32) -> Duration {
    first.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(longest)
}

/// Between half of it and all of it.
fn with_jitter(length: Duration) -> Duration {
    length.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_quarter_of_an_hour() {
        let waits = [1, 2, 3, 8, 9, 4_000_000_000].map(|attempt| doubled(TASK, attempt).as_secs());
        assert_eq!(waits, [5, 10, 20, 640, 900, 900]);
        assert_eq!(doubled(SERVICE, 0), Duration::from_secs(1));
    }

    #[test]
    fn jitter_takes_up_to_half() {
        for _ in 0..1_000 {
            let wait = of_task(2);
            assert!((Duration::from_secs(5)..=Duration::from_secs(10)).contains(&wait), "{wait:?}");
            assert!(a_little_more(wait) <= wait.mul_f64(1.125));
        }
    }
}
