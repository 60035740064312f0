//! When the first start of a block is tried again, and when it is parked instead.
//!
//! The starts of the same subscription and entity wait behind it; where the workflow type is not registered, all starts of the
//! subscription do. The functions here read and write nothing.

use ledgerline_event::Millis;
use ledgerline_ledger::EmitError;
use ledgerline_store::{Block, Cause, Fault, Member};

use crate::park_start::MAX_ATTEMPTS;
use ledgerline_outbox::ComponentError;

const FIRST_PAUSE_MS: u64 = 10_000;
const LONGEST_PAUSE_MS: u64 = 15 * 60_000;

/// The pause after the `attempts`th attempt.
pub(crate) fn pause(attempts: u32) -> u64 {
    FIRST_PAUSE_MS.saturating_mul(3_u64.saturating_pow(attempts.saturating_sub(1))).min(LONGEST_PAUSE_MS)
}

/// Why a start did not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setback {
    pub(crate) class: Class,
    pub(crate) reason: String,
}

/// Whether the same attempt may work later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The same event fails in the same way each time.
    Permanent,
    /// It may pass by itself.
    Transient(Cause),
}

/// Why claimed effects were not sent.
pub(crate) fn cause_of_send(error: &ComponentError) -> Cause {
    let refused = match error {
        ComponentError::Store(error) => error.fault == Fault::Rejected,
        ComponentError::Emit(EmitError::NotAccepted { code, .. }) => {
            matches!(code.as_str(), "MalformedDetail" | "InvalidArgument" | "ValidationException")
        }
        ComponentError::Emit(EmitError::Overflow(error)) => error.fault == Fault::Rejected,
        ComponentError::Emit(EmitError::Invalid(_)) | ComponentError::Invalid(_) => true,
        _ => false,
    };
    if refused { Cause::Refused } else { Cause::Unavailable }
}

/// Whether a start is parked after [`MAX_ATTEMPTS`]. Not during an outage: nothing is wrong with the start, and it works as soon
/// as the service is back.
const fn parks_after_attempts(cause: Cause) -> bool {
    match cause {
        Cause::Unregistered | Cause::Refused => true,
        Cause::Unavailable => false,
    }
}

/// Whether only the starts of one entity wait for it; otherwise all starts of the subscription do.
pub(crate) const fn is_of_entity(cause: Cause) -> bool {
    match cause {
        Cause::Refused | Cause::Unavailable => true,
        Cause::Unregistered => false,
    }
}

impl Setback {
    pub(crate) fn permanent(reason: impl Into<String>) -> Self {
        Self { class: Class::Permanent, reason: reason.into() }
    }

    pub(crate) fn transient(cause: Cause, reason: impl Into<String>) -> Self {
        Self { class: Class::Transient(cause), reason: reason.into() }
    }
}

/// What a failure of the first member leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// It was tried before it was due: the attempt does not count.
    Early,
    /// It is tried again; the new record of the block.
    Retry(Box<Block>),
    /// It has failed this many times and is parked.
    Park(u32),
}

/// What follows when `member`, which is now the first of the block, has failed for `cause`. `asked`: an operator asked for the
/// attempt.
pub(crate) fn after_failure(
    block: &Block,
    member: &Member,
    cause: Cause,
    reason: &str,
    parks: bool,
    (now, asked): (Millis, bool),
) -> Failed {
    let same = block.head.start_id == member.start_id;
    if same && block.next_attempt_at > now && !asked {
        return Failed::Early;
    }
    // A member that has only now become the first has had one attempt.
    let attempts = if same { block.attempts + 1 } else { 1 };
    if parks && parks_after_attempts(cause) && attempts >= MAX_ATTEMPTS {
        return Failed::Park(attempts);
    }
    Failed::Retry(Box::new(Block {
        cause,
        reason: reason.to_owned(),
        attempts,
        next_attempt_at: now.plus(pause(attempts)),
        first_failed_at: if same { block.first_failed_at } else { now },
        head: member.clone(),
        ..block.clone()
    }))
}

/// When a block is tried next. One that is due and that this pass did not reach is tried after a pause.
pub(crate) fn next_retry_at(block: &Block, now: Millis) -> Millis {
    if block.next_attempt_at > now { block.next_attempt_at } else { now.plus(FIRST_PAUSE_MS) }
}

#[cfg(test)]
mod tests {
    use ledgerline_event::Name;

    use super::*;

    fn at(ms: u64) -> Millis {
        Millis::try_from(1_767_453_739_000 + ms).unwrap()
    }

    fn member(place: u64) -> Member {
        let name = Name::new("eventId", format!("e{place}")).unwrap();
        Member {
            place,
            start_id: format!("start-{place}"),
            epoch: 0,
            event_place: format!("TIMESTAMP#{place}"),
            event_time: at(0),
            event_id: name,
        }
    }

    fn block(attempts: u32) -> Block {
        Block {
            name: "sub_1".into(),
            drainer_id: Name::new("drainerId", "d").unwrap(),
            subscription_id: Name::new("subscriptionId", "sub_1").unwrap(),
            whole_subscription: true,
            cause: Cause::Unregistered,
            reason: "not registered".into(),
            attempts,
            next_attempt_at: at(10_000),
            first_failed_at: at(0),
            head: member(0),
            next: 2,
            rewinds: 0,
            version: 0,
        }
    }

    #[test]
    fn pauses_grow_and_end_at_a_quarter_of_an_hour() {
        assert_eq!(
            [1, 2, 3, 4, 5, 6, 50].map(pause),
            [10_000, 30_000, 90_000, 270_000, 810_000, 900_000, 900_000]
        );
    }

    #[test]
    fn an_attempt_counts_when_it_is_due_or_asked_for() {
        let failed = |block: &Block, now, asked| {
            after_failure(block, &member(0), Cause::Unregistered, "still", true, (at(now), asked))
        };
        assert_eq!(failed(&block(1), 9_999, false), Failed::Early);
        for (now, asked) in [(10_000, false), (1, true)] {
            let Failed::Retry(next) = failed(&block(1), now, asked) else { panic!() };
            assert_eq!((next.attempts, next.reason.as_str()), (2, "still"));
            assert_eq!(next.next_attempt_at, at(now).plus(30_000));
            assert_eq!(next.first_failed_at, at(0));
        }
        assert_eq!(failed(&block(4), 10_000, false), Failed::Park(5));
    }

    #[test]
    fn an_outage_parks_nothing_and_neither_does_halt() {
        let due = (at(10_000), false);
        let outage = after_failure(&block(9), &member(0), Cause::Unavailable, "down", true, due);
        assert!(matches!(outage, Failed::Retry(next) if next.attempts == 10));
        let halt = after_failure(&block(9), &member(0), Cause::Unregistered, "no", false, due);
        assert!(matches!(halt, Failed::Retry(_)));
    }

    #[test]
    fn a_follower_that_fails_becomes_the_head_with_attempts_of_its_own() {
        let early = (at(1), false);
        let Failed::Retry(next) =
            after_failure(&block(4), &member(1), Cause::Refused, "too large", true, early)
        else {
            panic!()
        };
        assert_eq!((next.attempts, next.head.place, next.first_failed_at), (1, 1, at(1)));
    }
}
