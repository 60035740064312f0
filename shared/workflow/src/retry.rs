//! How often a step is tried, and how long it rests in between.

use std::time::Duration;

use crate::Error;

/// How often a step is tried, and how long it rests in between.
///
/// The default is three attempts, one second apart, then two, four, … up to a minute.
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
    /// At most so many attempts in all; 0 means 1.
    pub const fn times(attempts: u32) -> Self {
        let attempts = if attempts == 0 { 1 } else { attempts };
        Self { attempts, first: Duration::from_secs(1), factor: 2.0, longest: Duration::from_secs(60) }
    }

    /// One attempt.
    pub const fn never() -> Self {
        Self::times(1)
    }

    /// A rest of `first` after the first failure, then `factor` times the one before, never over `longest`.
    pub const fn backoff(mut self, first: Duration, factor: f64, longest: Duration) -> Self {
        self.first = first;
        self.factor = factor;
        self.longest = longest;
        self
    }

    /// How long to rest after the failure number `failures`; `None`: it was the last.
    pub(crate) fn rest(&self, failures: u32, error: &Error) -> Option<Duration> {
        if error.fatal || failures >= self.attempts {
            return None;
        }
        Some(error.retry_after.unwrap_or_else(|| self.delay(failures)))
    }

    fn delay(&self, failures: u32) -> Duration {
        let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.first.as_secs_f64() * self.factor.powi(exponent);
        // A factor that is no sensible number must not make a step spin.
        Duration::try_from_secs_f64(seconds).map_or(self.longest, |delay| delay.min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_up_to_the_longest_and_end_with_the_attempts() {
        let error = Error::retryable("later");
        let retry = Retry::times(5).backoff(Duration::from_secs(1), 3.0, Duration::from_secs(5));
        let rests: Vec<_> = (1..=5).map(|failures| retry.rest(failures, &error)).collect();
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(rests, [seconds(1), seconds(3), seconds(5), seconds(5), None]);
        assert_eq!(Retry::never().rest(1, &error), None);
        assert_eq!(Retry::times(0).rest(1, &error), None);
    }

    #[test]
    fn what_an_error_says_about_itself_goes_before_the_policy() {
        let retry = Retry::default();
        assert_eq!(retry.rest(1, &Error::fatal("no")), None);
        let later = Error::retryable("busy").retry_after(Duration::from_secs(600));
        assert_eq!(retry.rest(1, &later), Some(Duration::from_secs(600)));
        assert_eq!(retry.rest(3, &later), None);
    }

    #[test]
    fn no_factor_makes_a_rest_endless_or_absurd() {
        for factor in [f64::NAN, f64::INFINITY, -1.0, 1e300, 0.0] {
            let retry = Retry::times(9).backoff(Duration::from_secs(1), factor, Duration::from_secs(7));
            for failures in 1..9 {
                let rest = retry.rest(failures, &Error::retryable("later")).unwrap();
                assert!(rest <= Duration::from_secs(7), "{factor} {failures} {rest:?}");
            }
        }
    }
}
