//! Draining events of which one in a hundred does not start: the others must not wait for those.
//!
//! Of the bad events half lack a field that the subscription maps and are parked. A quarter cannot be read, and the start
//! of a quarter is refused: these wait, and so do the later events of their entities. Beside it the same events
//! without the bad ones, in alternating rounds, each for a tenant of its own.

use std::{sync::Arc, time::Duration};

use anyhow::ensure;
use aws_sdk_dynamodb::types::{PutRequest, WriteRequest};
use futures::FutureExt;
use ledgerline_drains::{DEFAULT_DRAINER, NewSubscription};
use ledgerline_embedded::{Call, Interceptor, Moment, Service, Verdict};
use ledgerline_event::{Event, Keyed, Millis, Name, overflow};
use ledgerline_ledger::{Clients, system_clock};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    backlog,
    cpu::measured,
    report::{Goal, Report},
    services::Services,
    spread::Spread,
    subscribers::{WORKFLOW_TYPE, register},
};

const EVENTS: usize = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
const ROUNDS: usize = if cfg!(debug_assertions) { 1 } else { 5 };
/// How long ago the events were: no drainer waits for more of that time.
const AGE_MS: u64 = 3_600_000;
const BATCH: usize = 25;
/// What the services refuse wherever it stands.
const REFUSED: &str = "no service takes this";

/// What is wrong with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    LacksField,
    Unreadable,
    Refused,
}

impl Flaw {
    /// Of the `number`th event.
    fn of(number: usize) -> Option<Self> {
        match (number % 100, number / 100 % 4) {
            (37, 0 | 2) => Some(Self::LacksField),
            (37, 1) => Some(Self::Unreadable),
            (37, _) => Some(Self::Refused),
            _ => None,
        }
    }

    /// Whether the later events of the entity wait.
    fn holds_up(self) -> bool {
        self != Self::LacksField
    }
}

/// The entity of the `number`th event: of ten, six have one event and four have four.
fn entity(number: usize) -> String {
    let (ten, within) = (number / 22, number % 22);
    let one = if within < 6 { within } else { 6 + within % 4 };
    format!("item-{ten}-{one}")
}

/// How many of the good events do not wait behind a bad one.
fn free_events() -> usize {
    let mut held_up = std::collections::BTreeSet::new();
    let is_free = |number: &usize| match Flaw::of(*number) {
        Some(flaw) => {
            if flaw.holds_up() {
                held_up.insert(entity(*number));
            }
            false
        }
        None => !held_up.contains(&entity(*number)),
    };
    (0..EVENTS).filter(is_free).count()
}

/// Which events a tenant has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backlog {
    /// Good ones, and bad ones among them.
    WithBadEvents,
    /// The same good ones alone.
    GoodEvents,
}

/// Alternating rounds with and without the bad events.
pub(crate) fn run() -> anyhow::Result<Report> {
    let bench = Bench::start()?;
    let mut tenants = Vec::new();
    for round in 0..ROUNDS {
        let with_bad = bench.prepare(&format!("bad-{round}"), Backlog::WithBadEvents)?;
        tenants.push([with_bad, bench.prepare(&format!("good-{round}"), Backlog::GoodEvents)?]);
    }
    let good = (0..EVENTS).filter(|number| Flaw::of(*number).is_none()).count();
    let (mut with_bad, mut without): (Vec<Round>, Vec<Round>) = Default::default();
    for (round, [bad_tenant, good_tenant]) in tenants.iter().enumerate() {
        if round % 2 == 0 {
            with_bad.push(bench.drain(bad_tenant, free_events())?);
            without.push(bench.drain(good_tenant, good)?);
        } else {
            without.push(bench.drain(good_tenant, good)?);
            with_bad.push(bench.drain(bad_tenant, free_events())?);
        }
    }
    let mut report = Report::of_figures();
    let ratio: Spread = with_bad
        .iter()
        .zip(&without)
        .map(|(bad, good)| bad.wall.as_secs_f64() / good.wall.as_secs_f64())
        .collect();
    report.figure(
        "time with the bad events over without them, median",
        ratio.median(),
        "",
        Goal::AtMost(1.1),
    );
    report.figure("… least of the rounds", ratio.least(), "", Goal::None);
    report.figure("… most of the rounds", ratio.most(), "", Goal::None);
    for (which, rounds) in [("with the bad events", &with_bad), ("without them", &without)] {
        let seconds: Spread = rounds.iter().map(|round| round.wall.as_secs_f64()).collect();
        let requests: Spread = rounds.iter().map(|round| round.requests as f64).collect();
        report.figure(&format!("{which}: until everything is started"), seconds.median(), "s", Goal::None);
        report.figure(&format!("{which}: requests"), requests.median(), "", Goal::None);
    }
    report.figure("events", EVENTS as f64, "", Goal::None);
    report.figure("… bad", (EVENTS - good) as f64, "", Goal::None);
    report.figure("… that wait behind a bad one", (good - free_events()) as f64, "", Goal::None);
    bench.services.stop();
    Ok(report)
}

struct Round {
    wall: Duration,
    requests: u64,
}

struct Bench {
    services: Services,
    runtime: Runtime,
    clients: Clients,
    first: Millis,
}

impl Bench {
    fn start() -> anyhow::Result<Self> {
        let services = Services::of_stage("bench", Some(refusing()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let clients = services.clients();
        Ok(Self { services, runtime, clients, first: system_clock()().minus(AGE_MS) })
    }

    /// A tenant with one subscription, which every event matches, and its events.
    fn prepare(&self, tenant: &str, backlog: Backlog) -> anyhow::Result<Name> {
        let tenant = Name::new("tenantId", tenant)?;
        self.runtime.block_on(async {
            let stage = self.services.stage(&self.clients, system_clock()).await?;
            register(&stage, &tenant).await?;
            let subscription: NewSubscription = serde_json::from_value(json!({
                "eventTypeGlob": "shop.*",
                "workflowType": WORKFLOW_TYPE,
                "inputMapper": { "event": "$.event_id", "currency": "$.payload.currency" },
            }))?;
            stage.registry().subscribe(&tenant, subscription).await?;
            let belongs = |number: &usize| backlog == Backlog::WithBadEvents || Flaw::of(*number).is_none();
            let numbers: Vec<usize> = (0..EVENTS).filter(belongs).collect();
            for batch in numbers.chunks(BATCH) {
                self.put(&tenant, batch).await?;
            }
            anyhow::Ok(())
        })?;
        Ok(tenant)
    }

    async fn put(&self, tenant: &Name, numbers: &[usize]) -> anyhow::Result<()> {
        let mut items = Vec::with_capacity(numbers.len());
        for &number in numbers {
            let event = self.event(tenant, number)?;
            let item =
                serde_dynamo::aws_sdk_dynamodb_1::to_item(Keyed { keys: &event.keys(), event: &event })?;
            let put = PutRequest::builder().set_item(Some(item)).build()?;
            items.push(WriteRequest::builder().put_request(put).build());
        }
        let table = &self.services.names.events_table;
        let answer = self.clients.dynamo.batch_write_item().request_items(table, items).send().await?;
        ensure!(answer.unprocessed_items().is_none_or(|left| left.is_empty()), "some events were left out");
        Ok(())
    }

    fn event(&self, tenant: &Name, number: usize) -> anyhow::Result<Event> {
        let mut event = backlog::event(tenant, number, self.first.plus(number as u64))?;
        event.entity_id = Name::new("entityId", entity(number))?;
        match Flaw::of(number) {
            None => {}
            Some(Flaw::LacksField) => drop(event.properties.remove("currency")),
            Some(Flaw::Refused) => drop(event.properties.insert("currency".into(), json!(REFUSED))),
            Some(Flaw::Unreadable) => {
                let key = overflow::object_key(&event.entity_id, &event.event_id);
                let bucket = &self.services.names.payload_bucket;
                event.properties.insert(overflow::MARKER.into(), json!({ "bucket": bucket, "key": key }));
            }
        }
        Ok(event)
    }

    /// Drains by a process that has just started, until all of `expected` are started.
    fn drain(&self, tenant: &Name, expected: usize) -> anyhow::Result<Round> {
        let stage = self.runtime.block_on(self.services.stage(&self.clients, system_clock()))?;
        let drainer = Name::new("drainerId", DEFAULT_DRAINER)?;
        self.services.embedded.reset_requests();
        let (drained, cost) = measured(|| self.runtime.block_on(stage.drains.drain(tenant, &drainer, None)));
        let (started, requests) = (drained?.triggered.len(), self.services.requests());
        ensure!(started == expected, "{started} starts instead of {expected}");
        let (queues, names) = (self.services.embedded.queues(), &self.services.names);
        queues.purge(&names.task_queue)?;
        queues.purge(&names.ingest_queue)?;
        Ok(Round { wall: cost.wall, requests })
    }
}

/// Services that let no payload be read, and take nothing that has the mark.
fn refusing() -> Interceptor {
    Arc::new(|call: Call, moment| {
        let verdict = match (moment, call.service) {
            (Moment::Before, Service::S3) if call.operation == "GetObject" => {
                Verdict::Fail { status: 403, code: "AccessDenied".into() }
            }
            (Moment::Before, Service::EventBridge | Service::Sqs)
                if call.body.windows(REFUSED.len()).any(|part| part == REFUSED.as_bytes()) =>
            {
                Verdict::Fail { status: 400, code: "ValidationException".into() }
            }
            _ => Verdict::Proceed,
        };
        async move { verdict }.boxed()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn one_event_in_a_hundred_is_bad_and_four_entities_in_ten_share_events() {
        let bad = (0..10_000).filter_map(Flaw::of).count();
        let held_up = (0..10_000).filter_map(Flaw::of).filter(|flaw| flaw.holds_up()).count();
        assert_eq!((bad, held_up), (100, 50));
        let mut events: BTreeMap<String, usize> = BTreeMap::new();
        for number in 0..2_200 {
            *events.entry(entity(number)).or_default() += 1;
        }
        let shared = events.values().filter(|count| **count == 4).count();
        let single = events.values().filter(|count| **count == 1).count();
        assert_eq!((shared, single, events.len()), (400, 600, 1_000));
    }
}
