use std::str::FromStr;

use anyhow::bail;

/// What `bench/rivals/run` has every product do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Ten steps, one after the other; one caller.
    Sequence1,
    /// The same by eight callers at once.
    Sequence8,
    /// A hundred steps at once; one caller.
    FanOut100,
    /// No steps; one caller.
    Empty,
}

impl Workload {
    pub(crate) const ALL: [Self; 4] = [Self::Sequence1, Self::Sequence8, Self::FanOut100, Self::Empty];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sequence1 => "sequence-1",
            Self::Sequence8 => "sequence-8",
            Self::FanOut100 => "fan-out-100",
            Self::Empty => "empty",
        }
    }

    /// Which workflow is run.
    pub(crate) const fn workflow(self) -> &'static str {
        match self {
            Self::Sequence1 | Self::Sequence8 => "sequence",
            Self::FanOut100 => "fan-out",
            Self::Empty => "empty",
        }
    }

    /// How many steps a run has, which is also its input.
    pub(crate) const fn steps(self) -> u64 {
        match self {
            Self::Sequence1 | Self::Sequence8 => 10,
            Self::FanOut100 => 100,
            Self::Empty => 0,
        }
    }

    /// What a run answers.
    pub(crate) const fn expected(self) -> u64 {
        match self {
            Self::Sequence1 | Self::Sequence8 => 45,
            Self::FanOut100 => 4950,
            Self::Empty => 0,
        }
    }

    /// How many call at once.
    pub(crate) const fn callers(self) -> usize {
        match self {
            Self::Sequence8 => 8,
            Self::Sequence1 | Self::FanOut100 | Self::Empty => 1,
        }
    }
}

impl FromStr for Workload {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        match Self::ALL.into_iter().find(|workload| workload.name() == name) {
            Some(workload) => Ok(workload),
            None => bail!("there are {}", Self::ALL.map(Self::name).join(", ")),
        }
    }
}
