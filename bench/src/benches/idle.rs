//! What idle tenants cost: all requests of a sweep, and the requests that name an idle tenant.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::ensure;
use futures::FutureExt;
use ledgerline_embedded::{Call, Interceptor, Moment, Verdict};
use ledgerline_event::{Name, ValidEvent};
use ledgerline_ledger::{Clients, Clock, Saver, system_clock};
use ledgerline_stage::Stage;
use ledgerline_store::ControlTable;

use crate::{
    backlog,
    report::{Goal, Report},
    services::Services,
    subscribers::{ONE_IN_TEN, register, subscribe},
};

const TENANTS: usize = 100;
const PREFIX: &str = "idle-tenant-";
/// How long ago each idle tenant had its last event.
const AGE_MS: u64 = 3_600_000;
/// The drainers visit every tenant once in this time.
const ROUND_MS: u64 = 3_600_000;

/// Adds the requests of sweeps over one and over many idle tenants.
pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let naming = Arc::new(AtomicU64::new(0));
    let services = Services::of_stage("bench", Some(counting(&naming)))?;
    let ahead = Arc::new(AtomicU64::new(0));
    let clock: Clock = {
        let (ahead, system) = (ahead.clone(), system_clock());
        Arc::new(move || system().plus(ahead.load(Ordering::Relaxed)))
    };
    services.runtime.block_on(async {
        let clients = services.clients();
        let stage = services.stage(&clients, clock).await?;
        let sweep = || async {
            services.embedded.reset_requests();
            naming.store(0, Ordering::Relaxed);
            let swept = stage.sweep.sweep(None).await?;
            let naming = naming.load(Ordering::Relaxed) as f64;
            anyhow::Ok((swept.visited, services.requests() as f64, naming))
        };
        settle(&services, &clients, &stage, 0..1).await?;
        sweep().await?;
        let (visited, one, _) = sweep().await?;
        ensure!(visited == 0, "one is not idle");
        settle(&services, &clients, &stage, 1..TENANTS).await?;
        sweep().await?;
        let (visited, many, naming) = sweep().await?;
        ensure!(visited == 0, "{visited} are not idle");
        ahead.store(ROUND_MS, Ordering::Relaxed);
        let (visited, round, _) = sweep().await?;
        // By `jobs` and by the drainer of the subscriptions.
        ensure!(visited == 2 * TENANTS, "{visited} visits were made");

        report.figure("requests of a sweep, 1 idle tenant", one, "", Goal::None);
        report.figure("requests of a sweep, 100 idle tenants", many, "", Goal::Exactly(one));
        report.figure("… of which name a tenant", naming, "", Goal::Exactly(0.0));
        let each = (round - many) / TENANTS as f64;
        report.figure("requests per tenant when all tenants are visited, once an hour", each, "", Goal::None);
        anyhow::Ok(())
    })?;
    services.stop();
    Ok(())
}

/// Counts the requests that name one of the tenants.
fn counting(naming: &Arc<AtomicU64>) -> Interceptor {
    let naming = naming.clone();
    Arc::new(move |call: Call, moment| {
        let names_one = call.body.windows(PREFIX.len()).any(|window| window == PREFIX.as_bytes());
        if moment == Moment::Before && names_one {
            naming.fetch_add(1, Ordering::Relaxed);
        }
        async { Verdict::Proceed }.boxed()
    })
}

/// Tenants with a subscription and an event that has been drained.
async fn settle(
    services: &Services,
    clients: &Clients,
    stage: &Stage,
    numbers: Range<usize>,
) -> anyhow::Result<()> {
    let names = &services.names;
    let control = ControlTable::new(clients.dynamo.clone(), &names.control_table);
    let saver = Saver::new(clients.dynamo.clone(), &names.events_table, control, 0);
    let now = system_clock()();
    for number in numbers {
        let tenant = Name::new("tenantId", format!("{PREFIX}{number}"))?;
        let event = backlog::event(&tenant, number, now.minus(AGE_MS))?;
        for saved in saver.save(&[ValidEvent { keys: event.keys(), event }], now).await {
            saved?;
        }
        register(stage, &tenant).await?;
        subscribe(stage, &tenant, ONE_IN_TEN).await?;
    }
    Ok(())
}
