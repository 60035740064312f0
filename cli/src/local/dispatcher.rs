//! The dispatcher of local mode. The gateway sees every write and wakes the dispatcher, as the stream does on AWS.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ledgerline_dispatch::{Dispatch, Swept};
use ledgerline_embedded::{Call, Hook, Moment, Service, Verdict};
use ledgerline_event::{Millis, Name, keys::parse_pk};
use ledgerline_ledger::{Clock, Names, control::keys};
use serde_json::Value;
use tokio::sync::{Mutex, mpsc, watch};

use super::visits::Visits;

/// Tenants that have something new. The running dispatcher holds the lock; one that is restarted goes on with the
/// tenants that are left.
pub(super) type WakeUps = Arc<Mutex<mpsc::UnboundedReceiver<WakeUp>>>;

/// Runs emit events in dozens, and few subscriptions match those: a drain after each event would keep the store
/// busier than the runs themselves do. The drain for such an event starts this much later.
const PATIENCE_MS: u64 = 2_000;

/// The tenant that has something new, and whether its drain can wait a little.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WakeUp {
    tenant: Name,
    can_wait: bool,
}

/// A hook that wakes every tenant whose events, subscriptions or cursors change; it calls `inner` first.
pub(super) fn waking(names: &Names, inner: Option<Hook>) -> (Hook, WakeUps) {
    let (sender, wake_ups) = mpsc::unbounded_channel();
    let names = Arc::new((names.events_table.clone(), names.control_table.clone()));
    let hook: Hook = Arc::new(move |call: Call, moment| {
        let (inner, sender, names) = (inner.clone(), sender.clone(), names.clone());
        Box::pin(async move {
            let verdict = match inner {
                Some(inner) => inner(call.clone(), moment).await,
                None => Verdict::Proceed,
            };
            if moment == (Moment::After { status: 200 }) && call.service == Service::DynamoDb {
                for wake_up in changed(&call, &names.0, &names.1) {
                    // The receiver is dropped when local mode stops.
                    let _ = sender.send(wake_up);
                }
            }
            verdict
        })
    });
    (hook, Arc::new(Mutex::new(wake_ups)))
}

/// The tenants that a write is about.
fn changed(call: &Call, events: &str, control: &str) -> BTreeSet<WakeUp> {
    let is_write = matches!(call.operation.as_str(), "PutItem" | "TransactWriteItems" | "BatchWriteItem");
    let Some(body) = is_write.then(|| serde_json::from_slice::<Value>(&call.body).ok()).flatten() else {
        return BTreeSet::new();
    };
    let text = |item: &Value, name: &str| item[name]["S"].as_str().map(str::to_owned);
    let event = |table: &Value, item: &Value| {
        let pk = text(item, "PK").filter(|_| table.as_str() == Some(events))?;
        let of_run =
            ["RUN", "STEP", "HOOK", "WAIT"].contains(&item["entityType"]["S"].as_str().unwrap_or_default());
        parse_pk(&pk).ok().map(|tenant| (tenant.to_owned(), of_run))
    };
    // A change of a subscription, or a rewind, marks in its transaction. A drainer's own mark is a request
    // of its own and must not wake the drainer that made it.
    let mark = |table: &Value, item: &Value| {
        let is_mark = table.as_str() == Some(control)
            && text(item, "PK").is_some_and(|pk| keys::is_dirty_partition(&pk));
        let sk = text(item, "SK").filter(|_| is_mark)?;
        keys::parse_dirty_mark(&sk).map(|(tenant, _)| (tenant.to_owned(), false))
    };
    let single = event(&body["TableName"], &body["Item"]);
    let transaction = body["TransactItems"].as_array().into_iter().flatten().flat_map(|write| {
        let (put, update) = (&write["Put"], &write["Update"]);
        [event(&put["TableName"], &put["Item"]), mark(&update["TableName"], &update["Key"])]
    });
    let batch = body["RequestItems"][events].as_array().into_iter().flatten();
    let batch = batch.map(|write| event(&Value::from(events), &write["PutRequest"]["Item"]));
    let tenants = std::iter::once(single).chain(transaction).chain(batch).flatten();
    tenants
        .filter_map(|(tenant, can_wait)| {
            Some(WakeUp { tenant: Name::stored("tenantId", tenant).ok()?, can_wait })
        })
        .collect()
}

/// Visits every tenant that is woken or that a visit says to visit again, and sweeps as often as on AWS.
pub(super) async fn run(
    dispatch: Dispatch,
    wake_ups: WakeUps,
    clock: Clock,
    sweep_every: Duration,
    mut stopped: watch::Receiver<bool>,
) {
    let mut wake_ups = wake_ups.lock().await;
    let mut visits = Visits::default();
    // No other process drains this folder: a lease from before belongs to a process that is gone.
    let first = dispatch.clone();
    visits.sweep(async move {
        first.break_leases().await?;
        first.sweep(None).await?;
        first.visit_everybody(None).await
    });
    let mut again = Again::default();
    let mut sweep = tokio::time::interval(sweep_every);
    sweep.tick().await;
    loop {
        let next = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            wake_up = wake_ups.recv() => match wake_up {
                Some(WakeUp { tenant, can_wait: false }) => Next::Visit(BTreeSet::from([tenant])),
                Some(WakeUp { tenant, can_wait: true }) => Next::VisitLater(tenant),
                None => return,
            },
            ended = visits.ended(&dispatch) => Next::Ended(ended),
            () = again.due() => Next::Visit(again.take()),
            _ = sweep.tick() => Next::Sweep,
        };
        match next {
            Next::Visit(tenants) => tenants.into_iter().for_each(|tenant| visits.visit(&dispatch, tenant)),
            Next::VisitLater(tenant) => {
                again.note(BTreeSet::from([tenant]), Some(clock().plus(PATIENCE_MS)), &clock);
            }
            Next::Sweep => {
                let dispatch = dispatch.clone();
                visits.sweep(async move { dispatch.sweep(None).await });
            }
            Next::Ended((_, Some(swept))) => again.note(swept.again, swept.again_at, &clock),
            Next::Ended((tenant, None)) => {
                again.note(tenant.into_iter().collect(), Some(clock().plus(1_000)), &clock);
            }
        }
    }
}

/// What the dispatcher does next.
enum Next {
    Visit(BTreeSet<Name>),
    VisitLater(Name),
    Ended((Option<Name>, Option<Swept>)),
    Sweep,
}

/// Whom to visit again, and when.
#[derive(Default)]
struct Again {
    tenants: BTreeSet<Name>,
    at: Option<tokio::time::Instant>,
}

impl Again {
    fn note(&mut self, tenants: BTreeSet<Name>, at: Option<Millis>, clock: &Clock) {
        let Some(at) = at else { return };
        let wait = Duration::from_millis(at.get().saturating_sub(clock().get()).max(20));
        let at = tokio::time::Instant::now() + wait;
        self.at = Some(self.at.map_or(at, |earlier| earlier.min(at)));
        self.tenants.extend(tenants);
    }

    async fn due(&self) {
        match self.at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    fn take(&mut self) -> BTreeSet<Name> {
        self.at = None;
        std::mem::take(&mut self.tenants)
    }
}
