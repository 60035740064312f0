//! Saves through the function's handler, beside plain conditional puts of the same items with
//! the same concurrency: what the ledger's promises cost on top of the store.
//!
//! Each handler has a thread and a runtime of its own, as each has a process of its own on
//! Lambda; so a thread's CPU time is the function's, and the rest is the store's. Rounds of both kinds
//! alternate, and each ratio is of two neighbours.

use std::{collections::HashMap, thread, time::Duration, time::Instant};

use anyhow::{anyhow, ensure};
use aws_lambda_events::event::sqs::SqsEvent;
use aws_sdk_dynamodb::types::AttributeValue;
use futures::future::try_join_all;
use ledgerline_event::{Event, Keyed};
use ledgerline_ledger::{Saver, system_clock, telemetry::Metrics};
use ledgerline_store::ControlTable;
use save_event_to_dynamo::Handler;
use tokio::runtime::Runtime;

use crate::{
    cpu::{Cost, measured, of_process},
    deliveries,
    report::{Goal, Report},
    samples::{self, Ids},
    services::Services,
    spread::Spread,
};

const HANDLERS: usize = 4;
const BATCHES: usize = 15;
const BATCH: usize = 10;
const EVENTS: f64 = (HANDLERS * BATCHES * BATCH) as f64;
const ROUNDS: usize = 16;

type Item = HashMap<String, AttributeValue>;

/// Rounds of saves and rounds of plain puts in turn.
pub(crate) fn run() -> anyhow::Result<Report> {
    let services = Services::start()?;
    let workers: Vec<Worker> =
        (0..HANDLERS).map(|_| Worker::new(&services)).collect::<anyhow::Result<_>>()?;
    // Connections and the tenant's registration belong to the first save of a process, not to every one.
    saves(&workers)?;
    puts(&workers)?;

    services.embedded.reset_requests();
    let counted = saves(&workers)?;
    let requests = services.table_requests() as f64 / EVENTS;
    ensure!(counted.wall > Duration::ZERO, "no time passed");

    let (mut saving, mut putting) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Who goes first alternates too: tables grow, and the second finds them larger.
        if round % 2 == 0 {
            saving.push(saves(&workers)?);
            putting.push(puts(&workers)?);
        } else {
            putting.push(puts(&workers)?);
            saving.push(saves(&workers)?);
        }
    }
    let each = |rounds: &[Round], of: fn(&Round) -> f64| rounds.iter().map(of).collect::<Spread>();
    let ratios: Spread =
        saving.iter().zip(&putting).map(|(save, put)| save.per_second() / put.per_second()).collect();

    let mut report = Report::of_figures();
    report.figure("requests to the tables per saved event", requests, "", Goal::AtMost(1.1));
    report.figure("saves over plain puts, median of neighbours", ratios.median(), "", Goal::AtLeast(0.85));
    report.figure("… worst pair", ratios.least(), "", Goal::None);
    report.figure("… best pair", ratios.most(), "", Goal::None);
    report.figure("saves", each(&saving, Round::per_second).median(), "/s", Goal::None);
    report.figure("plain puts", each(&putting, Round::per_second).median(), "/s", Goal::None);
    report.figure("CPU per save, function", each(&saving, Round::function_cpu).median(), "ms", Goal::None);
    report.figure(
        "CPU per plain put, caller",
        each(&putting, Round::function_cpu).median(),
        "ms",
        Goal::None,
    );
    report.figure("CPU per save, embedded store", each(&saving, Round::store_cpu).median(), "ms", Goal::None);
    report.figure(
        "CPU per plain put, embedded store",
        each(&putting, Round::store_cpu).median(),
        "ms",
        Goal::None,
    );
    services.stop();
    Ok(report)
}

/// What one round cost.
struct Round {
    wall: Duration,
    function: Duration,
    process: Duration,
}

impl Round {
    fn per_second(&self) -> f64 {
        EVENTS / self.wall.as_secs_f64()
    }

    fn function_cpu(&self) -> f64 {
        self.function.as_secs_f64() * 1e3 / EVENTS
    }

    fn store_cpu(&self) -> f64 {
        self.process.saturating_sub(self.function).as_secs_f64() * 1e3 / EVENTS
    }
}

fn saves(workers: &[Worker]) -> anyhow::Result<Round> {
    round(workers, |events| deliveries::batch(&events), Worker::save)
}

fn puts(workers: &[Worker]) -> anyhow::Result<Round> {
    let received_at = Some(system_clock()());
    let item = |mut event: Event| {
        event.received_at = received_at;
        Ok(serde_dynamo::aws_sdk_dynamodb_1::to_item(Keyed { keys: &event.keys(), event: &event })?)
    };
    round(workers, |events| events.into_iter().map(item).collect(), Worker::put)
}

/// Lets every worker do its batches at once; making them is not part of the time.
fn round<B: Send>(
    workers: &[Worker],
    make: impl Fn(Vec<Event>) -> anyhow::Result<B>,
    work: fn(&Worker, Vec<B>) -> anyhow::Result<()>,
) -> anyhow::Result<Round> {
    let batches = || (0..BATCHES).map(|_| make(ten_events()?)).collect::<anyhow::Result<Vec<B>>>();
    let shares = workers.iter().map(|_| batches()).collect::<anyhow::Result<Vec<_>>>()?;
    let (began, process) = (Instant::now(), of_process());
    let costs = thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter()
            .zip(shares)
            .map(|(worker, share)| scope.spawn(move || measured(|| work(worker, share))))
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                let (done, cost) = thread.join().map_err(|_| anyhow!("a worker panicked"))?;
                done.map(|()| cost)
            })
            .collect::<anyhow::Result<Vec<Cost>>>()
    })?;
    Ok(Round {
        wall: began.elapsed(),
        function: costs.iter().map(|cost| cost.cpu).sum(),
        process: of_process().saturating_sub(process),
    })
}

/// All types in turn.
fn ten_events() -> anyhow::Result<Vec<Event>> {
    let now = system_clock()();
    (0..BATCH).map(|number| samples::nth(number, &Ids::ulids(), now)).collect()
}

/// One handler with what a process of the function has: a runtime of one thread, and its own connections.
struct Worker {
    runtime: Runtime,
    handler: Handler,
    dynamo: aws_sdk_dynamodb::Client,
    table: String,
}

impl Worker {
    fn new(services: &Services) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (clients, names) = (services.clients(), &services.names);
        let control = ControlTable::new(clients.dynamo.clone(), &names.control_table);
        let handler = Handler {
            saver: Saver::new(clients.dynamo.clone(), &names.events_table, control, 0),
            sqs: clients.sqs,
            dead_letter_queue_url: services.dead_letter_queue_url.clone(),
            metrics: Metrics::silent(),
            clock: system_clock(),
        };
        Ok(Self { runtime, handler, dynamo: clients.dynamo, table: names.events_table.clone() })
    }

    fn save(&self, batches: Vec<SqsEvent>) -> anyhow::Result<()> {
        self.runtime.block_on(async {
            for batch in batches {
                let answer = self.handler.handle(batch).await;
                ensure!(answer.batch_item_failures.is_empty(), "not all was saved: {answer:?}");
            }
            Ok(())
        })
    }

    fn put(&self, batches: Vec<Vec<Item>>) -> anyhow::Result<()> {
        self.runtime.block_on(async {
            for batch in batches {
                try_join_all(batch.into_iter().map(|item| {
                    let put = self.dynamo.put_item().table_name(&self.table).set_item(Some(item));
                    put.condition_expression("attribute_not_exists(PK)").send()
                }))
                .await?;
            }
            Ok(())
        })
    }
}
