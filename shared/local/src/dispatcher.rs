//! The dispatcher of local mode: visits the tenants that the change stream names, and sweeps.

use std::{collections::BTreeSet, time::Duration};

use ledgerline_event::{Millis, Name};
use ledgerline_ledger::Clock;
use ledgerline_stage::Stage;
use tokio::sync::watch;

use super::{
    change_stream::{Urgency, WakeUp, WakeUps},
    visits::{Ended, Visits},
};

/// How long after an event of a run the drain for it starts. Runs emit events in dozens, and few subscriptions match
/// those: a drain after each event would keep the store busier than the runs themselves do.
const RUN_EVENT_DELAY_MS: u64 = 2_000;
/// How long after a failed visit the tenant is visited again.
const AFTER_FAILURE_MS: u64 = 1_000;

/// Visits every tenant that the change stream names or that a visit asks to visit again, and sweeps as often as on AWS.
pub(super) async fn run(
    stage: Stage,
    wake_ups: WakeUps,
    clock: Clock,
    sweep_every: Duration,
    mut stopped: watch::Receiver<bool>,
) {
    let mut wake_ups = wake_ups.lock().await;
    let mut visits = Visits::default();
    // No other process drains this folder: a lease from before belongs to a process that is gone.
    let first = stage.clone();
    visits.sweep(async move {
        first.sweep.break_leases().await?;
        first.sweep.sweep(None).await?;
        first.sweep.visit_all_tenants(None).await
    });
    let mut revisits = Revisits::default();
    let mut sweep = tokio::time::interval(sweep_every);
    sweep.tick().await;
    loop {
        let next = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            wake_up = wake_ups.recv() => match wake_up {
                Some(WakeUp { tenant, urgency: Urgency::Now }) => Next::Visit(BTreeSet::from([tenant])),
                Some(WakeUp { tenant, urgency: Urgency::Later }) => Next::VisitLater(tenant),
                None => return,
            },
            ended = visits.ended(&stage) => Next::Ended(ended),
            () = revisits.due() => Next::Visit(revisits.take()),
            _ = sweep.tick() => Next::Sweep,
        };
        match next {
            Next::Visit(tenants) => tenants.into_iter().for_each(|tenant| visits.visit(&stage, tenant)),
            Next::VisitLater(tenant) => {
                revisits.add(BTreeSet::from([tenant]), Some(clock().plus(RUN_EVENT_DELAY_MS)), &clock);
            }
            Next::Sweep => {
                let stage = stage.clone();
                visits.sweep(async move { stage.sweep.sweep(None).await });
            }
            Next::Ended(Ended::Visit { result: Some(swept), .. } | Ended::Sweep(Some(swept))) => {
                revisits.add(swept.again, swept.again_at, &clock);
            }
            Next::Ended(Ended::Visit { tenant, result: None }) => {
                revisits.add(BTreeSet::from([tenant]), Some(clock().plus(AFTER_FAILURE_MS)), &clock);
            }
            // The next tick sweeps again.
            Next::Ended(Ended::Sweep(None)) => {}
        }
    }
}

/// What the dispatcher does next.
enum Next {
    Visit(BTreeSet<Name>),
    VisitLater(Name),
    Ended(Ended),
    Sweep,
}

/// The tenants to visit again, and when.
#[derive(Default)]
struct Revisits {
    tenants: BTreeSet<Name>,
    at: Option<tokio::time::Instant>,
}

impl Revisits {
    fn add(&mut self, tenants: BTreeSet<Name>, at: Option<Millis>, clock: &Clock) {
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
