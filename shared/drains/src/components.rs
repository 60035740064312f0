//! The components of this crate, each with the handles that it needs.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use ledgerline_event::Name;
use ledgerline_ledger::{Emitter, Timeline, TimelineEvent, telemetry::Metrics};
use ledgerline_outbox::{ComponentError, Outbox};
use ledgerline_store::{
    BlockRecords, ControlTable, DrainStates, LateArrivals, MarkRecords, ParkedStartRecords, RoundRecords,
    SubscriptionRecords, Tenants, WorkflowTypeRecords,
};
use tokio::time::Instant;

use crate::{
    Drainers, dirty_marks::Marks, lease::Leases, matcher_cache::MatcherCache,
    recently_handled::RecentlyHandled, slow_visits::SlowVisits, start_plan::StartPlanner,
};

/// A page of events for the handler of the drainer `jobs`.
#[allow(missing_docs)]
pub struct Page<'a> {
    pub tenant: &'a Name,
    pub events: &'a [TimelineEvent],
    /// Whether an event was finished before, by its sort key.
    pub finished_before: &'a (dyn Fn(&str) -> bool + Send + Sync),
    pub deadline: Option<Instant>,
}

/// How far a page is handled.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct PageHandled {
    /// So many events from the beginning are finished.
    pub finished: usize,
    /// Why it stopped before the end of the page.
    pub stop: Option<PageStop>,
}

/// Why a page is not handled to its end.
#[derive(Debug)]
pub enum PageStop {
    /// The deadline has passed.
    OutOfTime,
    /// A service did not do its part.
    Trouble(ComponentError),
}

/// Handles the events of the drainer `jobs`. The stage passes it in, since jobs are a component of their own.
pub type JobEvents = Arc<dyn for<'a> Fn(Page<'a>) -> BoxFuture<'a, PageHandled> + Send + Sync>;

/// Subscriptions and workflow types.
#[derive(Clone)]
pub struct Registry {
    pub(crate) subscriptions: SubscriptionRecords,
    pub(crate) workflow_types: WorkflowTypeRecords,
    pub(crate) states: DrainStates,
    pub(crate) emitter: Emitter,
    pub(crate) timeline: Timeline,
    pub(crate) drainers: Drainers,
}

/// Starts that did not work.
#[derive(Clone)]
pub struct ParkedStarts {
    pub(crate) records: ParkedStartRecords,
    pub(crate) blocks: BlockRecords,
    pub(crate) emitter: Emitter,
    /// How a person names this ledger on the command line.
    pub(crate) ledger_flag: String,
    pub(crate) outbox: Outbox,
}

/// Drains: passes over the timelines of tenants, with leases, cursors and blocks. Cheap to clone.
#[derive(Clone)]
pub struct Drains {
    /// For the handles of a sweep of these drains.
    control: ControlTable,
    pub(crate) states: DrainStates,
    pub(crate) leases: Leases,
    pub(crate) blocks: BlockRecords,
    pub(crate) late_arrivals: LateArrivals,
    pub(crate) timeline: Timeline,
    pub(crate) emitter: Emitter,
    pub(crate) metrics: Metrics,
    pub(crate) ledger_flag: String,
    pub(crate) drainers: Drainers,
    pub(crate) marks: Marks,
    pub(crate) matchers: Arc<MatcherCache>,
    pub(crate) handled: Arc<RecentlyHandled>,
    pub(crate) planner: StartPlanner,
    pub(crate) job_events: JobEvents,
    pub(crate) outbox: Outbox,
    /// What tenants have registered.
    pub registry: Registry,
    /// Starts that did not work.
    pub parked: ParkedStarts,
}

/// What brings drainers to tenants: wake-ups, marks and rounds.
#[derive(Clone)]
pub struct Sweep {
    pub(crate) tenants: Tenants,
    pub(crate) rounds: RoundRecords,
    pub(crate) emitter: Emitter,
    pub(crate) metrics: Metrics,
    pub(crate) drainers: Drainers,
    pub(crate) marks: Marks,
    pub(crate) drains: Drains,
    pub(crate) outbox: Outbox,
    pub(crate) slow_visits: Arc<SlowVisits>,
}

/// What drains are made of.
#[allow(missing_docs)]
pub struct DrainParts {
    pub control: ControlTable,
    pub timeline: Timeline,
    pub emitter: Emitter,
    pub metrics: Metrics,
    /// How a person names this ledger on the command line.
    pub ledger_flag: String,
    pub drainers: Drainers,
    pub outbox: Outbox,
    pub planner: StartPlanner,
    pub job_events: JobEvents,
}

impl Drains {
    /// The drains of one stage.
    pub fn new(parts: DrainParts) -> Self {
        let DrainParts {
            control,
            timeline,
            emitter,
            metrics,
            ledger_flag,
            drainers,
            outbox,
            planner,
            job_events,
        } = parts;
        let states = DrainStates::new(control.clone());
        let subscriptions = SubscriptionRecords::new(control.clone());
        let workflow_types = WorkflowTypeRecords::new(control.clone());
        let blocks = BlockRecords::new(control.clone());
        Self {
            marks: Marks { records: MarkRecords::new(control.clone()), emitter: emitter.clone() },
            matchers: Arc::new(MatcherCache {
                subscriptions: subscriptions.clone(),
                compiled: Default::default(),
            }),
            handled: Arc::default(),
            leases: Leases { states: states.clone() },
            late_arrivals: LateArrivals::new(control.clone()),
            registry: Registry {
                subscriptions,
                workflow_types,
                states: states.clone(),
                emitter: emitter.clone(),
                timeline: timeline.clone(),
                drainers: drainers.clone(),
            },
            parked: ParkedStarts {
                records: ParkedStartRecords::new(control.clone()),
                blocks: blocks.clone(),
                emitter: emitter.clone(),
                ledger_flag: ledger_flag.clone(),
                outbox: outbox.clone(),
            },
            control,
            states,
            blocks,
            timeline,
            emitter,
            metrics,
            ledger_flag,
            drainers,
            planner,
            job_events,
            outbox,
        }
    }
}

impl Sweep {
    /// Brings `drains` to tenants.
    pub fn new(drains: Drains) -> Self {
        Self {
            tenants: Tenants::new(drains.control.clone()),
            rounds: RoundRecords::new(drains.control.clone()),
            emitter: drains.emitter.clone(),
            metrics: drains.metrics.clone(),
            drainers: drains.drainers.clone(),
            marks: drains.marks.clone(),
            outbox: drains.outbox.clone(),
            drains,
            slow_visits: Arc::default(),
        }
    }
}

impl fmt::Debug for Drains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drains").field("drainers", &self.drainers).finish_non_exhaustive()
    }
}
