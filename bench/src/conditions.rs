use std::fmt;

use serde::Serialize;

/// What a figure depends on besides the code.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Conditions {
    build: &'static str,
    cores: usize,
    /// Over one, five and fifteen minutes, where the system tells.
    #[serde(rename = "loadAverage")]
    load_average: Option<[f64; 3]>,
}

impl Conditions {
    /// As they are now.
    pub(crate) fn now() -> Self {
        Self {
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            load_average: load_average(),
        }
    }
}

fn load_average() -> Option<[f64; 3]> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let mut numbers = text.split_whitespace().map_while(|number| number.parse().ok());
    Some([numbers.next()?, numbers.next()?, numbers.next()?])
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} build, {} cores, ", self.build, self.cores)?;
        match self.load_average {
            Some([one, five, fifteen]) => write!(f, "load average {one:.2} {five:.2} {fifteen:.2}"),
            None => write!(f, "load average unknown"),
        }
    }
}
