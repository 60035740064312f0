//! Which drainers a stage has: configuration, not code.

use std::{fmt, time::Duration};

use ledgerline_event::{Invalid, Name};

/// The drainer that subscriptions belong to unless they say otherwise.
pub const DEFAULT_DRAINER: &str = "workflow_runner";
/// Built in; subscriptions cannot belong to it.
pub const JOBS_DRAINER: &str = "jobs";
/// A drainer without a period visits every tenant this often, besides the visits that wake-ups and marks lead to.
const DEFAULT_ROUND: Duration = Duration::from_secs(3_600);

/// One drainer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drainer {
    /// Its name.
    pub id: Name,
    /// Its period. `None`: it runs whenever there is something to do.
    pub every: Option<Duration>,
}

impl Drainer {
    /// The period of its round over all tenants.
    pub fn round(&self) -> Duration {
        self.every.unwrap_or(DEFAULT_ROUND)
    }
}

/// All drainers of a stage, as `workflow_runner,timeline=1h,anomalies=15m`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drainers(Vec<Drainer>);

impl Drainers {
    /// Reads a list of names, each with `=` and a period (`90s`, `15m`, `1h`, `1d`) or without.
    /// `jobs` and `workflow_runner` are always there.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let mut drainers: Vec<Drainer> = Vec::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (id, every) = match entry.split_once('=') {
                None => (entry, None),
                Some((id, period)) => (id.trim(), Some(self::period(id, period.trim())?)),
            };
            let id = Name::new("drainers", id)?;
            if id.as_str() == JOBS_DRAINER {
                return Err(Invalid::new("drainers", "`jobs` is built in and cannot be configured"));
            }
            if drainers.iter().any(|known| known.id == id) {
                return Err(Invalid::new("drainers", format!("`{id}` is there twice")));
            }
            drainers.push(Drainer { id, every });
        }
        if drainers.iter().all(|drainer| drainer.id.as_str() != DEFAULT_DRAINER) {
            drainers.insert(0, Drainer { id: Name::new("drainers", DEFAULT_DRAINER)?, every: None });
        }
        drainers.insert(0, Drainer { id: Name::new("drainers", JOBS_DRAINER)?, every: None });
        Ok(Self(drainers))
    }

    /// Every drainer.
    pub fn iter(&self) -> impl Iterator<Item = &Drainer> {
        self.0.iter()
    }

    /// The drainers without a period: they run as soon as there is something to do.
    pub fn prompt(&self) -> impl Iterator<Item = &Drainer> {
        self.0.iter().filter(|drainer| drainer.every.is_none())
    }

    /// The drainer called `id`, if subscriptions may belong to it.
    pub fn for_subscriptions(&self, field: &'static str, id: &str) -> Result<&Drainer, Invalid> {
        match id {
            JOBS_DRAINER => Err(Invalid::new(field, "`jobs` is built in and takes no subscriptions")),
            _ => self.get(field, id),
        }
    }

    /// The drainer called `id`; the error lists those that there are.
    pub fn get(&self, field: &'static str, id: &str) -> Result<&Drainer, Invalid> {
        self.0
            .iter()
            .find(|drainer| drainer.id.as_str() == id)
            .ok_or_else(|| Invalid::new(field, format!("there is no drainer `{id}`; this stage has {self}")))
    }
}

impl fmt::Display for Drainers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, drainer) in self.0.iter().enumerate() {
            let comma = if position > 0 { ", " } else { "" };
            write!(f, "{comma}`{}`", drainer.id)?;
        }
        Ok(())
    }
}

fn period(id: &str, text: &str) -> Result<Duration, Invalid> {
    let wrong =
        || Invalid::new("drainers", format!("{id}: `{text}` is not a period like 90s, 15m, 1h or 1d"));
    let unit = text.chars().last().ok_or_else(wrong)?;
    let number: u64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| wrong())?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    match number.checked_mul(seconds) {
        Some(seconds @ 1..=31_536_000) => Ok(Duration::from_secs(seconds)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drainers_are_read_from_a_list_and_the_default_is_always_there() {
        let drainers = Drainers::parse("timeline=1h, anomalies = 15m").unwrap();
        let shown: Vec<_> =
            drainers.iter().map(|drainer| (drainer.id.as_str(), drainer.round().as_secs())).collect();
        assert_eq!(
            shown,
            [("jobs", 3_600), ("workflow_runner", 3_600), ("timeline", 3_600), ("anomalies", 900)]
        );
        assert_eq!(drainers.prompt().count(), 2);
        assert_eq!(Drainers::parse("").unwrap().iter().count(), 2);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("a=5", "a: `5` is not a period"),
            ("a=", "is not a period"),
            ("a=0m", "is not a period"),
            ("a,a", "`a` is there twice"),
            ("jobs", "`jobs` is built in"),
            ("a#b", "contains '#'"),
            ("a=99999999999999999999h", "is not a period"),
        ] {
            let error = Drainers::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = Drainers::parse("a").unwrap().get("drainerId", "b").unwrap_err();
        assert_eq!(
            error.to_string(),
            "drainerId: there is no drainer `b`; this stage has `jobs`, `workflow_runner`, `a`"
        );
    }
}
