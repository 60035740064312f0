//! What needs an operator's attention, for screens: starts that fail, deliveries that failed, sweeps that are late, and
//! work that nothing runs.
//!
//! Each note is one line: what is wrong, since when, and the command that shows more. The reads are bounded, so that
//! asking costs the same however much is wrong; counts say `atLeast` where counting stopped.

mod late_sweeps;
mod unserved;

use ledgerline_event::{Millis, Name};
use serde::Serialize;

use ledgerline_drains::{DrainerState, Drainers, ParkedFilter, ParkedStarts, ParkedState, Sweep};
use ledgerline_ledger::Emitter;
use ledgerline_outbox::ComponentError;
use ledgerline_store::{FailedDeliveries, FailureFilter, Rows, Sweeps};

/// Counting stops here.
const MANY: usize = 100;

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoteKind {
    /// A drainer starts nothing after an event: its subscription says halt.
    HaltedDrainer,
    /// A drainer is far behind and does not move.
    StalledDrainer,
    /// Starts fail, are retried, and hold up later starts of their entity and subscription.
    BlockedStarts,
    /// Starts that were given up.
    ParkedStarts,
    /// Events that could not be saved.
    FailedDeliveries,
    /// A sweep or a round that should have come to its end by now.
    LateSweep,
    /// Tasks that no worker takes.
    NoWorker,
    /// Runs that no runner executes.
    NoRunner,
}

impl NoteKind {
    /// As people read it.
    pub fn label(self) -> &'static str {
        match self {
            Self::HaltedDrainer => "halted drainer",
            Self::StalledDrainer => "stalled drainer",
            Self::BlockedStarts => "blocked starts",
            Self::ParkedStarts => "parked starts",
            Self::FailedDeliveries => "failed deliveries",
            Self::LateSweep => "late sweep",
            Self::NoWorker => "no worker",
            Self::NoRunner => "no runner",
        }
    }
}

/// One thing that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Note {
    pub kind: NoteKind,
    /// The drainer, the sweep, the task or the workflow.
    pub subject: String,
    pub count: usize,
    /// Counting stopped: there are more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Millis>,
    /// What is wrong, as a sentence.
    pub message: String,
    /// The command that shows more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Whether a count is complete.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Precision {
    Exact,
    /// Counting stopped: there are more.
    AtLeast,
}

impl Precision {
    const fn at_least_if(stopped: bool) -> Self {
        if stopped { Self::AtLeast } else { Self::Exact }
    }
}

impl Note {
    /// The count as people read it: exact, or the least that there are if counting stopped.
    fn counted(count: usize, precision: Precision, what: &str) -> String {
        match (count, precision) {
            (1, Precision::Exact) => format!("1 {what}"),
            (count, Precision::Exact) => format!("{count} {what}s"),
            (count, Precision::AtLeast) => format!("{count} {what}s or more"),
        }
    }
}

/// What of a stage needs attention.
#[derive(Clone)]
pub struct Attention {
    pub(crate) rows: Rows,
    pub(crate) failed_deliveries: FailedDeliveries,
    pub(crate) sweeps: Sweeps,
    pub(crate) emitter: Emitter,
    /// How a person names this ledger on the command line.
    pub(crate) ledger_flag: String,
    pub(crate) drainers: Drainers,
    pub(crate) parked: ParkedStarts,
    pub(crate) sweep: Sweep,
}

impl Attention {
    /// Everything that needs attention at a tenant, and the late sweeps of the stage.
    pub async fn attention(
        &self,
        tenant: &Name,
        drainers: &[DrainerState],
    ) -> Result<Vec<Note>, ComponentError> {
        let command =
            |rest: &str| Some(format!("ledgerline {} --tenant '{tenant}' {rest}", self.ledger_flag));
        let mut notes: Vec<Note> = drainers.iter().flat_map(|state| of_drainer(state, &command)).collect();
        notes.extend(self.parked_note(tenant, &command).await?);
        notes.extend(self.failures_note(tenant, &command).await?);
        notes.extend(self.late_sweeps().await?);
        notes.extend(self.untaken_tasks(tenant, &command).await?);
        notes.extend(self.unexecuted_runs(tenant, &command).await?);
        Ok(notes)
    }

    async fn parked_note(
        &self,
        tenant: &Name,
        command: &impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Note>, ComponentError> {
        let page = self.parked.parked(tenant, ParkedFilter::Parked, MANY, None).await?;
        let Some(newest) = page.items.iter().find(|start| start.state == ParkedState::Parked) else {
            return Ok(None);
        };
        let (count, at_least) = (page.items.len(), page.cursor.is_some());
        Ok(Some(Note {
            kind: NoteKind::ParkedStarts,
            subject: newest.drainer_id.to_string(),
            count,
            at_least,
            since: page.items.iter().filter_map(|start| start.parked_at).min(),
            message: format!(
                "{}; the newest would start `{}` for event {}: {}",
                Note::counted(count, Precision::at_least_if(at_least), "parked start"),
                newest.workflow_type,
                newest.event_id,
                newest.reason
            ),
            next: command("parked list"),
        }))
    }

    async fn failures_note(
        &self,
        tenant: &Name,
        command: &impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Note>, ComponentError> {
        let page = self.failed_deliveries.list(tenant, FailureFilter::Failed, MANY, None).await?;
        let Some(newest) = page.items.first() else { return Ok(None) };
        let (count, at_least) = (page.items.len(), page.cursor.is_some());
        Ok(Some(Note {
            kind: NoteKind::FailedDeliveries,
            subject: tenant.to_string(),
            count,
            at_least,
            since: page.items.last().map(|oldest| oldest.failed_at),
            message: format!(
                "{} not saved; the newest: {}",
                match (count, at_least) {
                    (1, false) => "1 event was".to_owned(),
                    (count, false) => format!("{count} events were"),
                    (count, true) => format!("{count} events or more were"),
                },
                newest.reason
            ),
            next: command("failed list"),
        }))
    }
}

/// What a drainer's state says.
fn of_drainer(state: &DrainerState, command: &impl Fn(&str) -> Option<String>) -> Vec<Note> {
    let mut notes = Vec::new();
    let error = state.last_error.as_deref().unwrap_or("the dispatcher's log has the reason");
    let event = state.halted_on_event_id.as_deref().unwrap_or("unknown");
    let note = |kind, count, message| Note {
        kind,
        subject: state.drainer_id.to_string(),
        count,
        at_least: false,
        since: None,
        message,
        next: command("parked list --all"),
    };
    if state.halted {
        let message =
            format!("`{}` starts nothing after event {event} (onFailure: halt): {error}", state.drainer_id);
        notes.push(note(NoteKind::HaltedDrainer, 1, message));
    }
    if state.blocks > 0 {
        let count = usize::try_from(state.blocks).unwrap_or(usize::MAX);
        let starts = match count {
            1 => format!("1 start of `{}` fails and holds up", state.drainer_id),
            count => format!("{count} starts of `{}` fail, and each holds up", state.drainer_id),
        };
        let message = format!(
            "{starts} later starts of its entity, or of its subscription; the oldest is for event {event}: {error}"
        );
        notes.push(note(NoteKind::BlockedStarts, count, message));
    }
    if state.stalled && notes.is_empty() {
        let message = format!(
            "`{}` is {} minutes behind and does not move: {error}",
            state.drainer_id,
            state.lag_ms / 60_000
        );
        notes.push(Note { next: command("drainers"), ..note(NoteKind::StalledDrainer, 1, message) });
    }
    notes
}
