//! Whether the ledger can work: the probe writes and reads a record of the control table, and asks the process for its
//! findings. It keeps the answer for ten seconds, since a caller without a key may ask as often as it likes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ledgerline_event::Millis;
use ledgerline_store::ControlTable;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Mutex;

/// How long the probe repeats an answer.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// A store that takes longer counts as down.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How severe a finding is.
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
    /// How severe it is.
    pub level: Level,
    /// The part of the system.
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

/// Asks a process for its findings, and for figures to show.
pub type Vitals = Arc<dyn Fn() -> (Vec<Finding>, Value) + Send + Sync>;

/// Probes, and keeps the answer. Clones share it.
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

impl HealthProbe {
    /// A probe that also asks the process that it runs in.
    pub fn with(vitals: Vitals) -> Self {
        Self { vitals: Some(vitals), ..Self::default() }
    }

    /// The findings of now or of a few seconds ago. One caller probes at a time; the others wait and get its answer.
    pub async fn report(&self, control: &ControlTable, now: Millis) -> Report {
        let mut last = self.last.lock().await;
        if let Some((at, report)) = last.as_ref()
            && at.elapsed() < KEPT_FOR
        {
            return report.clone();
        }
        let mut report = Report::default();
        let probed = tokio::time::timeout(ANSWER_WITHIN, control.probe(now)).await;
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
