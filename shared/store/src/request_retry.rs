//! How long a caller waits before it sends the same request again, by what was in the way.
//!
//! A conflict is over in a moment and says that others want the same record: a few retries, then the caller hears of it.
//! A throttled table needs time and fewer requests: long pauses, for as long as a caller of the API waits.
//! Every pause is chosen evenly between nothing and its ceiling, so that callers that met once do not meet again.

use std::time::Duration;

use crate::{Fault, StoreError};

/// What was in the way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryCause {
    /// A transaction on the same record was under way.
    Conflict,
    /// Another writer was first. The caller reads again and retries; of many such callers one succeeds each time.
    LostRace,
    /// The service takes fewer requests than it gets.
    Throttled,
}

/// How often a request is retried after a conflict, with the ceiling of the first pause and the highest ceiling.
const CONFLICT: Backoff = Backoff { retries: 10, first_ms: 10, most_ms: 500 };
/// The same after a lost race: each round lets one writer through, so it is better to ask often.
const LOST_RACE: Backoff = Backoff { retries: 60, first_ms: 10, most_ms: 150 };
/// The same while a service throttles: 20 s at the most, which API Gateway outlasts.
const THROTTLED: Backoff = Backoff { retries: 10, first_ms: 50, most_ms: 4_000 };

struct Backoff {
    retries: u32,
    first_ms: u64,
    most_ms: u64,
}

impl RetryCause {
    /// The cause that a fault gives for a retry; `None` if waiting does not help against it.
    pub fn of(fault: Fault) -> Option<Self> {
        match fault {
            Fault::Conflict => Some(Self::Conflict),
            Fault::Throttled => Some(Self::Throttled),
            Fault::ConditionFailed
            | Fault::Missing
            | Fault::Rejected
            | Fault::Denied
            | Fault::Unavailable => None,
        }
    }

    /// The longest pause before a retry, counted from 0; `None` if there is no retry any more.
    pub fn ceiling(self, retry: u32) -> Option<Duration> {
        let steps = match self {
            Self::Conflict => CONFLICT,
            Self::LostRace => LOST_RACE,
            Self::Throttled => THROTTLED,
        };
        let ms = (steps.first_ms << retry.min(20)).min(steps.most_ms);
        (retry < steps.retries).then(|| Duration::from_millis(ms))
    }

    const fn fault(self) -> Fault {
        match self {
            Self::Conflict | Self::LostRace => Fault::Conflict,
            Self::Throttled => Fault::Throttled,
        }
    }
}

/// Retries of a [brief](RequestRetry::brief) policy while a service throttles: 2 s at the most.
const BRIEF_RETRIES: u32 = 5;

/// How often one request was retried so far, by cause. Conflicts do not use up the retries for throttling.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestRetry {
    conflicts: u32,
    lost_races: u32,
    throttled: u32,
    is_brief: bool,
}

impl RequestRetry {
    /// For a caller behind a queue, which brings the request again: other requests wait for this one meanwhile.
    pub fn brief() -> Self {
        Self { is_brief: true, ..Self::default() }
    }

    /// The pause before the next retry; `None` if there is none. `chance` lies between 0 and 1.
    pub fn pause(&mut self, cause: RetryCause, chance: f64) -> Option<Duration> {
        let retries = match cause {
            RetryCause::Conflict => &mut self.conflicts,
            RetryCause::LostRace => &mut self.lost_races,
            RetryCause::Throttled => &mut self.throttled,
        };
        if self.is_brief && cause == RetryCause::Throttled && *retries >= BRIEF_RETRIES {
            return None;
        }
        let ceiling = cause.ceiling(*retries)?;
        *retries += 1;
        Some(ceiling.mul_f64(chance.clamp(0.0, 1.0)))
    }

    /// Waits before the next retry. An error if there is none.
    pub async fn wait(&mut self, operation: &'static str, cause: RetryCause) -> Result<(), StoreError> {
        let Some(pause) = self.pause(cause, fastrand::f64()) else {
            let (code, message) = match cause {
                RetryCause::Conflict | RetryCause::LostRace => {
                    ("TransactionConflict", "other writers change the record all the time")
                }
                RetryCause::Throttled => ("Throttling", "the service throttles for longer than this waits"),
            };
            return Err(StoreError::told(operation, cause.fault(), code, message));
        };
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Waits if waiting helps against `error`, else gives it back.
    pub async fn wait_after(&mut self, error: StoreError) -> Result<(), StoreError> {
        let Some(cause) = RetryCause::of(error.fault) else { return Err(error) };
        match self.pause(cause, fastrand::f64()) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pauses until a caller gives up, all of them as long as they get.
    fn pauses(cause: RetryCause) -> Vec<Duration> {
        let mut retry = RequestRetry::default();
        std::iter::from_fn(|| retry.pause(cause, 1.0)).collect()
    }

    #[test]
    fn a_conflict_gets_few_short_retries_and_throttling_gets_many_long_ones() {
        let (conflict, throttled) = (pauses(RetryCause::Conflict), pauses(RetryCause::Throttled));
        assert_eq!(conflict[..3], [10, 20, 40].map(Duration::from_millis));
        assert_eq!(throttled[..3], [50, 100, 200].map(Duration::from_millis));
        let (conflict, throttled) = (conflict.iter().sum::<Duration>(), throttled.iter().sum::<Duration>());
        assert!(conflict < Duration::from_secs(4), "{conflict:?}");
        assert!((Duration::from_secs(10)..Duration::from_secs(20)).contains(&throttled), "{throttled:?}");
    }

    #[test]
    fn a_caller_behind_a_queue_waits_for_two_seconds_while_a_service_throttles() {
        let mut brief = RequestRetry::brief();
        let throttled: Duration = std::iter::from_fn(|| brief.pause(RetryCause::Throttled, 1.0)).sum();
        assert!((Duration::from_secs(1)..Duration::from_secs(2)).contains(&throttled), "{throttled:?}");
        let conflicts = std::iter::from_fn(|| brief.pause(RetryCause::Conflict, 1.0)).count();
        assert_eq!(conflicts, pauses(RetryCause::Conflict).len());
    }

    #[test]
    fn a_pause_is_anything_between_nothing_and_its_ceiling() {
        for cause in [RetryCause::Conflict, RetryCause::LostRace, RetryCause::Throttled] {
            let ceiling = cause.ceiling(0).unwrap();
            for (chance, expected) in [(0.0, Duration::ZERO), (0.5, ceiling / 2), (1.0, ceiling)] {
                assert_eq!(RequestRetry::default().pause(cause, chance), Some(expected));
            }
        }
    }

    #[test]
    fn conflicts_do_not_use_up_the_retries_for_throttling() {
        let mut retry = RequestRetry::default();
        while retry.pause(RetryCause::Conflict, 0.5).is_some() {}
        assert_eq!(retry.pause(RetryCause::Throttled, 1.0), RetryCause::Throttled.ceiling(0));
    }

    #[test]
    fn waiting_helps_against_conflicts_and_throttling_alone() {
        assert_eq!(RetryCause::of(Fault::Conflict), Some(RetryCause::Conflict));
        assert_eq!(RetryCause::of(Fault::Throttled), Some(RetryCause::Throttled));
        for fault in
            [Fault::ConditionFailed, Fault::Missing, Fault::Rejected, Fault::Denied, Fault::Unavailable]
        {
            assert_eq!(RetryCause::of(fault), None);
        }
    }
}
