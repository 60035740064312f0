//! Up to where a drainer has announced that it reads.
//!
//! A drainer announces a watermark before it reads, and a saver reads the watermarks after it has written an event: so
//! every event is read by the pass that crosses it, or its saver sees the watermark and puts a pointer among the late
//! arrivals.

use ledgerline_event::{Millis, keys::moment};
use serde::{Deserialize, Serialize};

/// The watermarks of one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// The pass may read past any event with a sort key up to this one.
    pub events: String,
    /// The pass may read past any pointer with a stamp up to this one.
    pub late_arrivals: Millis,
}

/// The watermarks in the row of a drainer and tenant: none before its first pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnnouncedWatermarks {
    /// A pass may have read past any event with a sort key up to this one.
    #[serde(rename = "horizon")]
    pub events: Option<String>,
    /// A pass may have read past any pointer with a stamp up to this one.
    #[serde(rename = "laneHorizon")]
    pub late_arrivals: Option<Millis>,
}

impl Watermarks {
    /// Watermarks for events and late arrivals at the same time.
    pub fn at(time: Millis) -> Self {
        Self { events: moment(time), late_arrivals: time }
    }

    /// These watermarks, or the announced ones where those are higher: a watermark never falls, whatever the clock
    /// says.
    pub fn not_below(self, announced: &AnnouncedWatermarks) -> Self {
        Self {
            events: announced.events.clone().map_or(self.events.clone(), |before| before.max(self.events)),
            late_arrivals: announced
                .late_arrivals
                .map_or(self.late_arrivals, |before| before.max(self.late_arrivals)),
        }
    }
}

impl AnnouncedWatermarks {
    /// Whether a pass may have read past this event.
    pub fn has_reached(&self, sk: &str) -> bool {
        self.events.as_deref().is_some_and(|watermark| sk <= watermark)
    }

    /// Whether a pass may have read past a pointer with this stamp.
    pub fn has_reached_pointer(&self, stamp: Millis) -> bool {
        self.late_arrivals.is_some_and(|watermark| watermark >= stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Millis {
        Millis::try_from(1_767_453_739_000 + ms).unwrap()
    }

    #[test]
    fn a_watermark_never_falls_even_if_the_clock_does() {
        let announced = AnnouncedWatermarks { events: Some(moment(at(5))), late_arrivals: Some(at(9)) };
        let behind = Watermarks::at(at(1)).not_below(&announced);
        assert_eq!(behind, Watermarks { events: moment(at(5)), late_arrivals: at(9) });
        let ahead = Watermarks::at(at(20)).not_below(&announced);
        assert_eq!(ahead, Watermarks::at(at(20)));
        assert_eq!(Watermarks::at(at(1)).not_below(&AnnouncedWatermarks::default()), Watermarks::at(at(1)));
    }

    #[test]
    fn a_watermark_reaches_what_lies_at_it() {
        let none = AnnouncedWatermarks::default();
        assert!(!none.has_reached("a") && !none.has_reached_pointer(at(0)));
        let some = AnnouncedWatermarks { events: Some("b".into()), late_arrivals: Some(at(5)) };
        assert_eq!(["a", "b", "c"].map(|sk| some.has_reached(sk)), [true, true, false]);
        assert_eq!([4, 5, 6].map(|ms| some.has_reached_pointer(at(ms))), [true, true, false]);
    }
}
