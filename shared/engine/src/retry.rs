//! How often a step is tried, and how long it pauses between two attempts.

use std::time::Duration;

use crate::Error;

/// How often a step is tried, and how long it pauses between two attempts.
///
/// The default is three attempts. The first pause is one second and each pause is twice the one before, up to a minute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    attempts: u32,
    first: Duration,
    factor: f64,
    longest: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self::times(3)
    }
}

impl Retry {
    /// The maximum number of attempts in all; 0 means 1.
    pub const fn times(attempts: u32) -> Self {
        let attempts = if attempts == 0 { 1 } else { attempts };
        Self { attempts, first: Duration::from_secs(1), factor: 2.0, longest: Duration::from_secs(60) }
    }

    /// One attempt.
    pub const fn never() -> Self {
        Self::times(1)
    }

    /// A pause of `first` after the first failure, then `factor` times the one before, never over `longest`.
    pub const fn backoff(mut self, first: Duration, factor: f64, longest: Duration) -> Self {
        self.first = first;
        self.factor = factor;
        self.longest = longest;
        self
    }

    /// How long to pause after the failure number `failures`; `None` if no attempt follows.
    pub(crate) fn pause(&self, failures: u32, error: &Error) -> Option<Duration> {
        if error.fatal || failures >= self.attempts {
            return None;
        }
        Some(error.retry_after.unwrap_or_else(|| self.delay(failures)))
    }

    fn delay(&self, failures: u32) -> Duration {
        let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.first.as_secs_f64() * self.factor.powi(exponent);
        // A factor such as NaN must not make a step retry without a pause.
        Duration::try_from_secs_f64(seconds).map_or(self.longest, |delay| delay.min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest_and_end_with_the_attempts() {
        let error = Error::retryable("later");
        let retry = Retry::times(5).backoff(Duration::from_secs(1), 3.0, Duration::from_secs(5));
        let pauses: Vec<_> = (1..=5).map(|failures| retry.pause(failures, &error)).collect();
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(pauses, [seconds(1), seconds(3), seconds(5), seconds(5), None]);
        assert_eq!(Retry::never().pause(1, &error), None);
        assert_eq!(Retry::times(0).pause(1, &error), None);
    }

    #[test]
    fn an_error_may_overrule_the_policy() {
        let retry = Retry::default();
        assert_eq!(retry.pause(1, &Error::fatal("no")), None);
        let later = Error::retryable("busy").retry_after(Duration::from_secs(600));
        assert_eq!(retry.pause(1, &later), Some(Duration::from_secs(600)));
        assert_eq!(retry.pause(3, &later), None);
    }

    #[test]
    fn no_factor_makes_a_pause_longer_than_the_longest() {
        for factor in [f64::NAN, f64::INFINITY, -1.0, 1e300, 0.0] {
            let retry = Retry::times(9).backoff(Duration::from_secs(1), factor, Duration::from_secs(7));
            for failures in 1..9 {
                let pause = retry.pause(failures, &Error::retryable("later")).unwrap();
                assert!(pause <= Duration::from_secs(7), "{factor} {failures} {pause:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn pauses_never_shrink_and_never_pass_the_longest(
            attempts in 0_u32..50, first in 0_u64..10_000, factor in 1.0_f64..100.0, longest in 0_u64..100_000,
        ) {
            let (first, longest) = (Duration::from_millis(first), Duration::from_millis(longest));
            let retry = Retry::times(attempts).backoff(first, factor, longest);
            let error = Error::retryable("later");
            let pauses: Vec<_> = (1..60).map_while(|failures| retry.pause(failures, &error)).collect();
            prop_assert_eq!(pauses.len() as u32, attempts.max(1) - 1);
            prop_assert!(pauses.is_sorted() && pauses.iter().all(|pause| *pause <= longest));
        }
    }
}
