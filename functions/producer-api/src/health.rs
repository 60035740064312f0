//! Whether work can be done: a record of the control table is written and read again, and what the wiring adds is asked. The
//! answer holds for a while, since anybody may ask as often as they like.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ledgerline_event::Millis;
use ledgerline_ledger::{
    StoreError,
    control::{ControlTable, keys},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Mutex;

/// How long an answer holds.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// A store that takes longer does no work either.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How much a finding hurts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Work is done; an operator should know.
    Note,
    /// Work is done, but late or not all of it.
    Degraded,
    /// No work is done.
    Down,
}

/// Something that is wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// How much it hurts.
    pub level: Level,
    /// Where it is wrong.
    pub part: String,
    /// What is wrong.
    pub reason: String,
}

impl Finding {
    /// A finding about a part.
    pub fn new(level: Level, part: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { level, part: part.into(), reason: reason.into() }
    }
}

/// What a process knows about itself: what is wrong, and figures to show.
pub type Vitals = Arc<dyn Fn() -> (Vec<Finding>, Value) + Send + Sync>;

/// Asks, and remembers the answer. Clones share it.
#[derive(Clone, Default)]
pub struct HealthProbe {
    vitals: Option<Vitals>,
    last: Arc<Mutex<Option<(Instant, Report)>>>,
}

/// What a probe found.
#[derive(Clone, Default)]
pub struct Report {
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// Figures of the process.
    pub process: Option<Value>,
}

impl Report {
    /// The worst of the findings.
    pub(crate) fn level(&self) -> Option<Level> {
        self.findings.iter().map(|finding| finding.level).max()
    }
}

#[derive(Serialize, Deserialize)]
struct Probe {
    at: Millis,
}

impl HealthProbe {
    /// A probe that also asks the process it runs in.
    pub fn with(vitals: Vitals) -> Self {
        Self { vitals: Some(vitals), ..Self::default() }
    }

    /// What is wrong now, or was a few seconds ago. One caller asks at a time; the others get its answer.
    pub async fn report(&self, control: &ControlTable, now: Millis) -> Report {
        let mut last = self.last.lock().await;
        if let Some((at, report)) = last.as_ref()
            && at.elapsed() < KEPT_FOR
        {
            return report.clone();
        }
        let mut report = Report::default();
        let probed = tokio::time::timeout(ANSWER_WITHIN, probe(control, now)).await;
        let trouble = match probed {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {} s", ANSWER_WITHIN.as_secs())),
        };
        report.findings.extend(trouble.map(|reason| Finding::new(Level::Down, "controlTable", reason)));
        if let Some(vitals) = &self.vitals {
            let (findings, process) = vitals();
            report.findings.extend(findings);
            report.process = Some(process);
        }
        *last = Some((Instant::now(), report.clone()));
        report
    }
}

async fn probe(control: &ControlTable, now: Millis) -> Result<(), StoreError> {
    let key = keys::health_probe();
    let put = control.put(&key, &Probe { at: now })?.send().await;
    put.map_err(|error| StoreError::new("PutItem", error))?;
    match control.get::<Probe>(&key).await? {
        Some(_) => Ok(()),
        None => Err(StoreError::unreadable("GetItem", "a record that was written is not there")),
    }
}
