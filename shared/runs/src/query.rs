//! Runs as people see them.

use std::{borrow::Cow, collections::BTreeSet, fmt, str::FromStr};

use ledgerline_event::{Invalid, LogEvent, Name, RunState, RunView};
use ledgerline_store::{ListCursor, NewestSent, StoreError, keys};
use serde::Serialize;

use super::{RunRecord, SentEvent};
use crate::{RunLogs, Runs};
use ledgerline_outbox::ComponentError;

/// Sent events of one answer at most.
const SENT_MAX: usize = 100;

/// The place of an event in a log: its entry, and where in it. As text, `sequence.index`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPlace {
    sequence: u64,
    index: usize,
}

impl fmt::Display for LogPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.sequence, self.index)
    }
}

impl FromStr for LogPlace {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let wrong = || Invalid::new("cursor", "is not one that a list gave");
        // `+3` is a number to Rust.
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (sequence, index) =
            text.split_once('.').filter(|(a, b)| digits(a) && digits(b)).ok_or_else(wrong)?;
        let (sequence, index): (u64, u32) =
            (sequence.parse().map_err(|_| wrong())?, index.parse().map_err(|_| wrong())?);
        Ok(Self { sequence, index: index as usize })
    }
}

/// Some runs of a list.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct RunPage {
    pub items: Vec<RunSummary>,
    pub cursor: Option<String>,
}

/// The part of a run's record that the API shows.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct RunSummary {
    pub run_id: Name,
    pub workflow_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_version: Option<String>,
    pub state: RunState,
    pub app_name: Name,
    pub external: bool,
    pub created_at: ledgerline_event::Millis,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<ledgerline_event::Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<ledgerline_event::Millis>,
    /// Why the last visit of a runner failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// A run with its steps, hooks and waits.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct RunDetails {
    #[serde(flatten)]
    pub view: RunView<'static>,
    pub app_name: Name,
    pub external: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// Some events that were sent.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct SentEventPage {
    pub items: Vec<SentEventView>,
    pub cursor: Option<String>,
}

/// A sent event, and how many runs it has woken.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct SentEventView {
    #[serde(flatten)]
    pub event: SentEvent,
    pub consumed_count: u64,
}

impl From<RunRecord> for RunSummary {
    fn from(run: RunRecord) -> Self {
        Self {
            run_id: run.run_id,
            workflow_name: run.workflow_name,
            workflow_version: run.workflow_version,
            state: run.state,
            app_name: run.app_name,
            external: run.external,
            created_at: run.created_at,
            started_at: run.started_at,
            ended_at: run.ended_at,
            last_error: run.last_error,
        }
    }
}

impl RunLogs {
    /// The record of a run; an error if there is none.
    pub async fn known_run(&self, tenant: &Name, run_id: &str) -> Result<RunRecord, ComponentError> {
        self.records.get(tenant, run_id).await?.ok_or_else(|| ComponentError::Unknown {
            what: "runs",
            id: run_id.to_owned(),
            hint: String::new(),
        })
    }
}

impl Runs {
    /// Runs of one state, the newest first; or of all, by state: running, pending, failed, cancelled, completed.
    pub async fn runs(
        &self,
        tenant: &Name,
        state: Option<RunState>,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<RunPage, ComponentError> {
        let states = [
            RunState::Running,
            RunState::Pending,
            RunState::Failed,
            RunState::Cancelled,
            RunState::Completed,
        ];
        let states: Vec<RunState> =
            states.into_iter().filter(|one| state.is_none_or(|wanted| wanted == *one)).collect();
        let cursor = ListCursor::decode(cursor)?;
        let (runs, next) = self.records.list(tenant, &states, limit, cursor).await?;
        Ok(RunPage { items: runs.into_iter().map(RunSummary::from).collect(), cursor: next })
    }

    /// A run with its steps, hooks and waits.
    pub async fn run(&self, tenant: &Name, run_id: &str) -> Result<RunDetails, ComponentError> {
        let run = self.logs.known_run(tenant, run_id).await?;
        self.run_details(tenant, run).await
    }

    /// The steps, hooks and waits of a run.
    pub async fn run_details(&self, tenant: &Name, run: RunRecord) -> Result<RunDetails, ComponentError> {
        let (log, _) = self.logs.read_log(&run, tenant).await?;
        let view =
            log.history.view().ok_or_else(|| StoreError::unreadable("reading a log", "it is empty"))?;
        Ok(RunDetails {
            view: RunView {
                run: Cow::Owned(view.run.into_owned()),
                steps: Cow::Owned(view.steps.into_owned()),
                hooks: Cow::Owned(view.hooks.into_owned()),
                waits: Cow::Owned(view.waits.into_owned()),
            },
            app_name: run.app_name,
            external: run.external,
            last_error: run.last_error,
        })
    }

    /// Events of a name that were sent, the newest first.
    pub async fn sent_events(
        &self,
        tenant: &Name,
        event_name: &str,
        limit: usize,
        before: Option<&str>,
    ) -> Result<SentEventPage, ComponentError> {
        let limit = limit.clamp(1, SENT_MAX);
        let NewestSent { events, more } = self.sent.records.newest(tenant, event_name, before, limit).await?;
        let mut items = Vec::new();
        let mut last = None;
        let mut listed = BTreeSet::new();
        for row in events {
            last = Some(keys::sent_place(row.timestamp, &row.event_id));
            // If its sender died, an event may have rows at more than one place.
            if !listed.insert(row.event_id.clone()) {
                continue;
            }
            let Some(event) = self.sent.sent_event(tenant, event_name, row).await? else { continue };
            let consumed_count = self.sent.records.consumed_count(tenant, &event.event_id).await?;
            items.push(SentEventView { event, consumed_count });
        }
        Ok(SentEventPage { items, cursor: last.filter(|_| more) })
    }

    /// Every event of a run's log, in its order.
    pub async fn run_events(&self, tenant: &Name, run_id: &str) -> Result<Vec<LogEvent>, ComponentError> {
        self.logs.known_run(tenant, run_id).await?;
        let entries = self.logs.log_entries(tenant, run_id, 0).await?;
        Ok(entries.into_iter().flat_map(|entry| entry.events).collect())
    }

    /// Some events of a run's log, and where the next ones begin.
    pub async fn run_events_from(
        &self,
        tenant: &Name,
        run_id: &str,
        from: LogPlace,
        limit: usize,
    ) -> Result<(Vec<LogEvent>, Option<LogPlace>), ComponentError> {
        self.logs.known_run(tenant, run_id).await?;
        // Each has an event at least. The first may have none that are asked for, and the last says whether there are more.
        let most = limit.saturating_add(2);
        let entries = self.logs.some_entries(tenant, run_id, from.sequence.saturating_sub(1), most).await?;
        let places = entries.into_iter().flat_map(|entry| {
            let sequence = entry.sequence;
            let place = move |(index, event)| (LogPlace { sequence, index }, event);
            entry.events.into_iter().enumerate().map(place)
        });
        let mut places = places.skip_while(|(place, _)| *place < from);
        let events = places.by_ref().take(limit).map(|(_, event)| event).collect();
        Ok((events, places.next().map(|(place, _)| place)))
    }
}
