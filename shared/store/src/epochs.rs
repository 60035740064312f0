//! Which epoch an event belongs to: that of the last rewind at or before its place.
//!
//! A start is claimed once per epoch, so only what lies after the point of a rewind starts
//! again. A later rewind to an earlier point covers everything after it, so the points that
//! still count rise together with their epochs.

use serde::{Deserialize, Serialize};

/// A rewind that still counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewound {
    /// The first place that it covers.
    pub from: String,
    /// The epoch that began there.
    pub epoch: u64,
}

/// The rewinds of one drainer and tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epochs(Vec<Rewound>);

impl Epochs {
    /// More than this is not a series of rewinds but a mistake, and would grow the record without end.
    pub const MAX: usize = 500;

    /// The epoch of the event at `sk`.
    pub fn of(&self, sk: &str) -> u64 {
        let covering = self.0.partition_point(|rewound| rewound.from.as_str() <= sk);
        covering.checked_sub(1).map_or(0, |last| self.0[last].epoch)
    }

    /// The epoch that the next event at the end of the ledger has.
    pub fn latest(&self) -> u64 {
        self.0.last().map_or(0, |rewound| rewound.epoch)
    }

    /// The rewinds that still count.
    pub fn iter(&self) -> impl Iterator<Item = &Rewound> {
        self.0.iter()
    }

    /// After one more rewind. `None` if there were too many.
    pub fn rewind(&self, from: &str) -> Option<Self> {
        let mut rewinds: Vec<_> =
            self.0.iter().filter(|rewound| rewound.from.as_str() < from).cloned().collect();
        rewinds.push(Rewound { from: from.to_owned(), epoch: self.latest() + 1 });
        (rewinds.len() <= Self::MAX).then_some(Self(rewinds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_epoch_of_the_last_rewind_at_or_before_it() {
        let epochs = Epochs::default().rewind("c").and_then(|epochs| epochs.rewind("f")).unwrap();
        assert_eq!(["a", "c", "d", "f", "z"].map(|sk| epochs.of(sk)), [0, 1, 1, 2, 2]);
        let back = epochs.rewind("b").unwrap();
        assert_eq!(["a", "b", "d", "z"].map(|sk| back.of(sk)), [0, 3, 3, 3]);
        assert_eq!(back.latest(), 3);
    }

    #[test]
    fn an_epoch_never_falls_along_the_time_line_and_every_rewind_makes_a_new_one() {
        let mut random = 7_u64;
        let mut epochs = Epochs::default();
        for rewinds in 1..200 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let from = format!("{:03}", random >> 55);
            let before: Vec<u64> = (0..512).map(|place| epochs.of(&format!("{place:03}"))).collect();
            epochs = epochs.rewind(&from).unwrap();
            let after: Vec<u64> = (0..512).map(|place| epochs.of(&format!("{place:03}"))).collect();
            assert!(after.is_sorted());
            assert_eq!(epochs.latest(), rewinds);
            for place in 0..512 {
                let covered = format!("{place:03}") >= from;
                assert_eq!(after[place], if covered { rewinds } else { before[place] });
            }
        }
    }
}
