//! How much the sender of an event reads until the one run that waits for the event is woken, while many others wait:
//! it must depend only on the leaves of the event.
//!
//! The run that is woken is a real one. Of the others there are only the rows by which they wait, written under the
//! same keys: a hundred thousand real runs would take ten minutes.

use anyhow::ensure;
use ledgerline_embedded::Service;
use ledgerline_event::match_index::index_leaf;
use ledgerline_store::{ControlTable, Item, item, keys};
use ledgerline_workflow::Visited;
use serde_json::{Map, Value, json};
use ulid::Ulid;

use crate::{
    report::{Goal, Report, number},
    run_pipeline::{Counted, RunPipeline},
    workflows::AWAITED,
};

const SIZES: &[usize] = if cfg!(debug_assertions) { &[100, 2_000] } else { &[100, 10_000, 100_000] };
const LEAVES: [usize; 4] = [1, 4, 16, 64];
/// The requests that read from a table.
const READS: [&str; 3] = ["GetItem", "Query", "BatchGetItem"];
/// Rows that are written at once while preparing.
const AT_ONCE: usize = 1_000;

/// What the runs of one table wait for: all for the same kind, and each for an invoice of its own.
#[derive(Clone, Copy)]
struct Criteria {
    about: &'static str,
    kind: &'static str,
    /// The first number of an invoice.
    first: usize,
}

const CRITERIA: [Criteria; 3] = [
    // Every invoice id is longer than the kind, as real ids are.
    Criteria { about: "long ids", kind: "payment", first: 1_000_000 },
    // Some invoice ids are shorter than the kind.
    Criteria { about: "ids from inv-0 on", kind: "payment", first: 0 },
    // All invoice ids are shorter than the kind.
    Criteria { about: "ids shorter than the kind", kind: "payment-received", first: 0 },
];

/// Every number of waiters with every number of leaves.
pub(crate) fn run() -> anyhow::Result<Report> {
    let headings = [
        "waiters",
        "of them",
        "event's leaves",
        "reads",
        "read units",
        "requests",
        "write units",
        "times as with few",
    ];
    let mut report = Report::with_headings(&headings);
    for criteria in CRITERIA {
        let pipeline = RunPipeline::start()?;
        let mut few: Vec<f64> = Vec::new();
        let mut there = 0;
        for &size in SIZES {
            pipeline.services.runtime.block_on(put_other_waiters(&pipeline, criteria, there..size))?;
            there = size;
            for (position, leaves) in LEAVES.into_iter().enumerate() {
                let invoice = criteria.first + SIZES.iter().sum::<usize>() + size + leaves;
                let sending = measure_send(&pipeline, criteria, invoice, leaves);
                let counted = pipeline.services.runtime.block_on(sending)?;
                let reads = counted.table_operations(&READS) as f64;
                let units = counted.runs.read_units;
                let grown = few.get(position).map(|few| (reads + units) / few);
                if grown.is_none() {
                    few.push(reads + units);
                }
                let cells = vec![
                    json!(criteria.about),
                    json!(size),
                    json!(leaves),
                    number(reads),
                    number(units),
                    json!(counted.all()),
                    number(counted.runs.units),
                    grown.map_or(json!(""), number),
                ];
                let goal = grown.map_or(Goal::None, |_| Goal::AtMost(1.0));
                report.row(cells, grown.unwrap_or(1.0), goal);
            }
        }
        pipeline.services.stop();
    }
    Ok(report)
}

impl Criteria {
    fn of(self, number: usize) -> Value {
        json!({ "invoiceId": format!("inv-{number}"), "kind": self.kind })
    }
}

/// Puts the rows of runs that wait for other invoices.
async fn put_other_waiters(
    pipeline: &RunPipeline,
    criteria: Criteria,
    numbers: std::ops::Range<usize>,
) -> anyhow::Result<()> {
    let services = &pipeline.services;
    let control = ControlTable::new(services.clients().dynamo, &services.names.control_table);
    let row = |number: usize| -> anyhow::Result<Item> {
        let criteria = criteria.of(criteria.first + number);
        let (run_id, wait_id) = (format!("run_{}", Ulid::generate()), format!("wait_{}", Ulid::generate()));
        let key = keys::waiter(&pipeline.tenant, AWAITED, index_leaf(&criteria), &run_id, &wait_id);
        let owner = json!({
            "runId": run_id,
            "entityId": wait_id,
            "external": false,
            "matchCriteria": criteria.to_string(),
        });
        Ok(item(&key, &owner)?)
    };
    let numbers: Vec<usize> = numbers.collect();
    for some in numbers.chunks(AT_ONCE) {
        let rows = some.iter().map(|number| row(*number)).collect::<anyhow::Result<Vec<_>>>()?;
        control.put_all(rows).await?;
    }
    Ok(())
}

/// Counts what it takes to send an event to the one run that waits for it.
async fn measure_send(
    pipeline: &RunPipeline,
    criteria: Criteria,
    invoice: usize,
    leaves: usize,
) -> anyhow::Result<Counted> {
    let mut awaited = criteria.of(invoice);
    if let (1, Value::Object(fields)) = (leaves, &mut awaited) {
        fields.remove("kind");
    }
    let run_id = pipeline.start_run("payment", awaited.clone()).await?;
    pipeline.visit(&run_id, Visited::Suspended).await?;
    let mut matched = awaited.as_object().cloned().unwrap_or_else(Map::new);
    while matched.len() < leaves {
        matched.insert(format!("detail{}", matched.len()), json!(format!("value-{}", matched.len())));
    }
    pipeline.take();
    pipeline.send(AWAITED, Value::Object(matched)).await?;
    let counted = pipeline.take();
    ensure!(counted.to(Service::S3) == 0, "the event lies in S3");
    pipeline.visit(&run_id, Visited::Ended).await?;
    Ok(counted)
}
