//! The order in which a sweep reads the shards of due records, and the cursor from which the next sweep resumes.

use crate::keys::DUE_SHARDS;
use ledgerline_event::Millis;
use serde::{Deserialize, Serialize};

/// Where a sweep stopped. The next sweep begins there: so even sweeps that never have the time for everything reach
/// everything in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SweepCursor {
    /// The shard.
    pub shard: u8,
    /// Everything in the shard that was due before this time is done.
    pub due_at: Millis,
}

/// A part of what is due: one shard, from a time to a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The shard.
    pub shard: u8,
    /// The earliest time.
    pub from: Millis,
    /// The latest time.
    pub until: Millis,
}

/// Everything that is due at `until`, as parts: from `cursor` on, then around to `cursor` again.
pub fn parts(cursor: Option<SweepCursor>, until: Millis) -> Vec<Part> {
    let begin = cursor.unwrap_or(SweepCursor { shard: 0, due_at: Millis::MIN });
    let first = begin.shard % DUE_SHARDS;
    let all = (0..DUE_SHARDS).map(|n| (first + n) % DUE_SHARDS);
    let mut parts: Vec<Part> = all.map(|shard| Part { shard, from: Millis::MIN, until }).collect();
    if begin.due_at > Millis::MIN {
        parts[0].from = begin.due_at.min(until);
        parts.push(Part { shard: first, from: Millis::MIN, until: parts[0].from });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Millis {
        Millis::try_from(ms).unwrap()
    }

    #[test]
    fn a_sweep_goes_around_from_where_the_last_one_stopped() {
        let until = at(1_767_453_739_640);
        let whole = parts(None, until);
        assert_eq!(whole.len(), usize::from(DUE_SHARDS));
        assert!(whole.iter().all(|part| part.from == Millis::MIN && part.until == until));

        let stopped = SweepCursor { shard: DUE_SHARDS - 1, due_at: at(1_767_453_000_000) };
        let around = parts(Some(stopped), until);
        let shards: Vec<u8> = around.iter().map(|part| part.shard).collect();
        assert_eq!(shards[0], stopped.shard);
        assert_eq!((shards[1], shards[shards.len() - 1]), (0, stopped.shard));
        assert_eq!(around[0].from, stopped.due_at);
        assert_eq!(
            around[around.len() - 1],
            Part { shard: stopped.shard, from: Millis::MIN, until: stopped.due_at }
        );

        // A clock that was ahead has stopped in the future.
        let ahead = parts(Some(SweepCursor { shard: 0, due_at: at(1_767_453_999_999) }), until);
        assert_eq!((ahead[0].from, ahead[ahead.len() - 1].until), (until, until));
    }
}
