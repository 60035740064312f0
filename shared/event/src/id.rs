//! The ids that this system makes: a prefix for the kind, `_`, and a ULID, which holds the time of creation.

use ulid::Ulid;

use crate::{Millis, Name};

/// The kind of thing that an id names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `evnt_`
    Event,
    /// `wrun_`
    Run,
    /// `step_`
    Step,
    /// `hook_`
    Hook,
    /// `wait_`
    Wait,
    /// `strm_`
    Stream,
    /// `task_`
    Task,
    /// `job_`
    Job,
    /// `sub_`
    Subscription,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Event,
        Self::Run,
        Self::Step,
        Self::Hook,
        Self::Wait,
        Self::Stream,
        Self::Task,
        Self::Job,
        Self::Subscription,
    ];

    /// The prefix, without the `_`.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Event => "evnt",
            Self::Run => "wrun",
            Self::Step => "step",
            Self::Hook => "hook",
            Self::Wait => "wait",
            Self::Stream => "strm",
            Self::Task => "task",
            Self::Job => "job",
            Self::Subscription => "sub",
        }
    }

    /// The id of this kind for `ulid`.
    pub fn id(self, ulid: Ulid) -> Name {
        let mut buffer = [0; ulid::ULID_LEN];
        let digits = ulid.array_to_str(&mut buffer);
        let mut id = String::with_capacity(31);
        id.push_str(self.prefix());
        id.push('_');
        id.push_str(digits);
        Name::trusted(id)
    }

    /// The time in an id that this system made.
    pub fn time_of(id: &str) -> Option<Millis> {
        Self::of(id)?;
        let (_, digits) = id.split_once('_')?;
        Millis::try_from(Ulid::from_string(digits).ok()?.timestamp_ms()).ok()
    }

    /// The kind of `id`, if this system made it.
    pub fn of(id: &str) -> Option<Self> {
        let (prefix, digits) = id.split_once('_')?;
        let kind = Self::ALL.into_iter().find(|kind| kind.prefix() == prefix)?;
        // `from_string` also reads lower case and the letters that Crockford maps to digits.
        let ulid = Ulid::from_string(digits).ok()?;
        (ulid.to_string() == digits).then_some(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_its_kind() {
        for kind in Kind::ALL {
            let id = kind.id(Ulid::from_parts(1_767_453_739_640, 42));
            assert_eq!(Kind::of(&id), Some(kind), "{id}");
            assert_eq!(id.len(), kind.prefix().len() + 27);
        }
        assert_eq!(Kind::Event.id(Ulid::from_parts(0, 0)).as_str(), "evnt_00000000000000000000000000");
        for foreign in
            ["ddf71f63-b036-4ac7-ad0f-77a7fdfca352", "evnt_123", "evnt_01kd1nhr0r0000000000000000", "x_"]
        {
            assert_eq!(Kind::of(foreign), None, "{foreign}");
        }
    }
}
