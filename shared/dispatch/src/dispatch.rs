//! What draining needs: the tables, the bus, the queues, a clock, and a name of its own.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Deref,
    sync::{Arc, Mutex, atomic::AtomicBool},
};

use ledgerline_alert::{AlertError, Slack};
use ledgerline_event::{Illegal, Invalid, Kind, Millis, Name};
use ledgerline_ledger::{
    Clients, Clock, EmitError, Emitter, Names, Payloads, StoreError, Timeline, control::ControlTable,
    telemetry::Metrics,
};

use crate::{
    Drainers, QueueUrls, compiled::Compiled, memory::Memory, record::DrainRecords, runs::Ends,
    slow_visits::SlowVisits,
};

/// The app that the dispatcher's own events have.
pub(crate) const APP: &str = "ledgerline";

/// Drains, and everything around it. Cheap to clone.
#[derive(Clone)]
pub struct Dispatch {
    parts: Arc<Parts>,
}

/// What is shared by all clones.
pub struct Parts {
    pub(crate) control: ControlTable,
    pub(crate) records: DrainRecords,
    pub(crate) timeline: Timeline,
    pub(crate) payloads: Payloads,
    pub(crate) emitter: Emitter,
    pub(crate) sqs: aws_sdk_sqs::Client,
    pub(crate) queues: QueueUrls,
    pub(crate) slack: Option<Slack>,
    pub(crate) drainers: Drainers,
    pub(crate) metrics: Metrics,
    pub(crate) ledger_flag: String,
    clock: Clock,
    pub(crate) compiled: Mutex<HashMap<(Name, Name), Compiled>>,
    pub(crate) memory: Mutex<HashMap<(Name, Name), Memory>>,
    pub(crate) slow_visits: SlowVisits,
    pub(crate) runnable: Mutex<BTreeSet<String>>,
    pub(crate) run_ends: Ends,
    /// The floors of tenants as far as this process has raised them.
    pub(crate) sent_floors: Mutex<HashMap<Name, Millis>>,
    /// Whether every sender of events keeps their order.
    pub(crate) sent_in_order: AtomicBool,
}

/// How to make a [`Dispatch`].
#[allow(missing_docs)]
pub struct DispatchOptions {
    pub queues: QueueUrls,
    pub drainers: Drainers,
    /// Sends alerts. Without it, alerts wait for a dispatcher that has one.
    pub slack: Option<Slack>,
    pub metrics: Metrics,
    /// How a person names this ledger on the command line: `--stage dev`, `--local`.
    pub ledger_flag: String,
    pub clock: Clock,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// A service did not do its part; the same call may succeed later.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A sent event is accepted, and some of the runs that wait for it are not called yet. The sweep calls them.
    #[error("the event is accepted, but some runs are not called yet: {0}")]
    NotCalled(#[source] StoreError),
    /// The bus did not take an event.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// An alert was not sent.
    #[error(transparent)]
    Alert(#[from] AlertError),
    /// The request is wrong, and where.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// There is no such thing.
    #[error("{what}: there is no `{id}`{hint}")]
    Unknown {
        /// What was asked for.
        what: &'static str,
        /// By which name.
        id: String,
        /// What to do about it.
        hint: String,
    },
    /// The run is not in a state for it.
    #[error(transparent)]
    Illegal(#[from] Illegal),
    /// It cannot be done as things stand.
    #[error("{0}")]
    Refused(String),
}

impl Dispatch {
    /// For one stage.
    pub fn new(clients: &Clients, names: &Names, options: DispatchOptions) -> Result<Self, Invalid> {
        let control = ControlTable::new(clients.dynamo.clone(), &names.control_table);
        let payloads = Payloads::new(clients.s3.clone(), &names.payload_bucket);
        let app = Name::new("appName", APP)?;
        let emitter =
            Emitter::with_clock(clients, names, app.clone(), app, options.clock.clone()).within(|origin| {
                origin.context.source = Some("system".into());
                origin.context.origin = Some("dispatcher".into());
            });
        Ok(Self {
            parts: Arc::new(Parts {
                records: DrainRecords { control: control.clone() },
                control,
                timeline: Timeline::new(clients.dynamo.clone(), &names.events_table, payloads.clone()),
                payloads,
                emitter,
                sqs: clients.sqs.clone(),
                queues: options.queues,
                slack: options.slack,
                drainers: options.drainers,
                metrics: options.metrics,
                ledger_flag: options.ledger_flag,
                clock: options.clock,
                compiled: Mutex::default(),
                memory: Mutex::default(),
                slow_visits: SlowVisits::default(),
                runnable: Mutex::default(),
                run_ends: Ends::default(),
                sent_floors: Mutex::default(),
                sent_in_order: AtomicBool::new(false),
            }),
        })
    }

    /// The time by its clock.
    pub fn now(&self) -> Millis {
        (self.clock)()
    }

    /// A new id that nothing else has.
    pub(crate) fn new_event_id(&self) -> Name {
        self.emitter.new_id(Kind::Event)
    }

    /// The drainers that this stage is configured with.
    pub fn drainers(&self) -> &Drainers {
        &self.drainers
    }
}

impl Deref for Dispatch {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl std::fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatch").field("drainers", &self.drainers).finish_non_exhaustive()
    }
}
