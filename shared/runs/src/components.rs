//! The components of this crate, each with the handles that it needs.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, atomic::AtomicBool},
};

use futures::FutureExt;
use ledgerline_event::{Millis, Name};
use ledgerline_ledger::{Emitter, Timeline};
use ledgerline_outbox::{Outbox, Queues, RunEffect, RunEffects};
use ledgerline_store::{
    ControlTable, HookRecords, Payloads, RunLogRecords, RunRecords, RunSweepRecords, RunnableWorkflowRecords,
    SentEventRecords, WaitRecords,
};

use crate::CompletionNotifier;

/// The logs of runs: they are read, and appended to with everything that an entry brings about.
#[derive(Clone)]
pub struct RunLogs {
    pub(crate) records: RunRecords,
    pub(crate) entries: RunLogRecords,
    pub(crate) payloads: Payloads,
    pub(crate) emitter: Emitter,
    /// The waiters for ends of runs in this process.
    pub(crate) completions: Arc<CompletionNotifier>,
}

/// Events that were sent to runs, in the order in which they were accepted.
#[derive(Clone)]
pub struct SentEvents {
    pub(crate) records: SentEventRecords,
    pub(crate) payloads: Payloads,
    pub(crate) emitter: Emitter,
    /// The floors of tenants as far as this process has raised them.
    pub(crate) floors: Arc<Mutex<HashMap<Name, Millis>>>,
    /// Whether every sender of events keeps their order.
    pub(crate) in_order: Arc<AtomicBool>,
}

/// The workflows that runners have published.
#[derive(Clone)]
pub struct WorkflowRegistry {
    pub(crate) records: RunnableWorkflowRecords,
    pub(crate) emitter: Emitter,
    pub(crate) queues: Queues,
    pub(crate) known: Arc<Mutex<BTreeSet<String>>>,
}

/// Leases on runs.
#[derive(Clone)]
pub struct RunLeases {
    pub(crate) records: RunRecords,
    pub(crate) emitter: Emitter,
}

/// Runs: they begin, are woken, are emitted to the ledger, end, and are listed.
#[derive(Clone)]
pub struct Runs {
    pub(crate) records: RunRecords,
    pub(crate) waits: WaitRecords,
    pub(crate) emitter: Emitter,
    pub(crate) queues: Queues,
    /// Their logs.
    pub logs: RunLogs,
    /// The events that were sent to them.
    pub sent: SentEvents,
    /// The leases on them.
    pub leases: RunLeases,
    /// The workflows that runners have.
    pub registry: WorkflowRegistry,
}

/// Runs that an external program drives over HTTP.
#[derive(Clone)]
pub struct ExternalRuns {
    pub(crate) runs: Runs,
}

/// Waits of runs for the ends of tasks and jobs.
#[derive(Clone)]
pub struct TaskWaits {
    pub(crate) timeline: Timeline,
    pub(crate) runs: Runs,
}

/// The sweep of runs and timers.
#[derive(Clone)]
pub struct RunSweep {
    pub(crate) due: RunSweepRecords,
    pub(crate) emitter: Emitter,
    pub(crate) runs: Runs,
    pub(crate) outbox: Outbox,
}

/// Hooks: external payloads, by token.
#[derive(Clone)]
pub struct Hooks {
    pub(crate) records: HookRecords,
    pub(crate) emitter: Emitter,
    pub(crate) runs: Runs,
    pub(crate) outbox: Outbox,
}

/// Sends events to runs, each once.
#[derive(Clone)]
pub struct EventSender {
    pub(crate) emitter: Emitter,
    pub(crate) runs: Runs,
    pub(crate) outbox: Outbox,
}

impl Runs {
    /// The runs of one stage.
    pub fn new(control: ControlTable, payloads: Payloads, emitter: Emitter, queues: Queues) -> Self {
        let records = RunRecords::new(control.clone());
        Self {
            logs: RunLogs {
                records: records.clone(),
                entries: RunLogRecords::new(control.clone()),
                payloads: payloads.clone(),
                emitter: emitter.clone(),
                completions: Arc::default(),
            },
            sent: SentEvents {
                records: SentEventRecords::new(control.clone()),
                payloads,
                emitter: emitter.clone(),
                floors: Arc::default(),
                in_order: Arc::default(),
            },
            leases: RunLeases { records: records.clone(), emitter: emitter.clone() },
            registry: WorkflowRegistry {
                records: RunnableWorkflowRecords::new(control.clone()),
                emitter: emitter.clone(),
                queues: queues.clone(),
                known: Arc::default(),
            },
            waits: WaitRecords::new(control),
            records,
            emitter,
            queues,
        }
    }

    /// What the outbox executes effects on runs by.
    pub fn effects(&self) -> RunEffects {
        let runs = Arc::new(self.clone());
        Arc::new(move |effect| {
            let runs = runs.clone();
            match effect {
                RunEffect::Begin(run) => async move { runs.begin_run(&run).await }.boxed(),
                RunEffect::Deliver(sent) => async move { runs.deliver_sent(&sent).await }.boxed(),
            }
        })
    }
}

impl ExternalRuns {
    /// The external ones of `runs`.
    pub fn new(runs: Runs) -> Self {
        Self { runs }
    }
}

impl TaskWaits {
    /// The waits of `runs`.
    pub fn new(runs: Runs, timeline: Timeline) -> Self {
        Self { timeline, runs }
    }
}

impl RunSweep {
    /// Sweeps `runs`.
    pub fn new(control: ControlTable, runs: Runs, outbox: Outbox) -> Self {
        Self { due: RunSweepRecords::new(control), emitter: runs.emitter.clone(), runs, outbox }
    }
}

impl Hooks {
    /// The hooks of `runs`.
    pub fn new(control: ControlTable, runs: Runs, outbox: Outbox) -> Self {
        Self { records: HookRecords::new(control), emitter: runs.emitter.clone(), runs, outbox }
    }
}

impl EventSender {
    /// Sends to `runs`.
    pub fn new(runs: Runs, outbox: Outbox) -> Self {
        Self { emitter: runs.emitter.clone(), runs, outbox }
    }
}
