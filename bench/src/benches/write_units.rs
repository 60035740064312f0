//! What each event type weighs in the table and costs to write, through the saver itself.
//!
//! Up to 1 KB a write is one unit for the table and one for each of the seven indexes. An
//! idempotency key makes it a transaction with a marker in the control table.

use anyhow::ensure;
use ledgerline_event::{Event, Millis, ValidEvent, catalogue::EVENT_TYPES};
use ledgerline_ledger::{Outcome, Saver};
use ledgerline_store::ControlTable;
use serde_json::json;

use crate::{
    meter::{Meter, Reading},
    report::{Goal, Report},
    samples::{self, Ids},
    services::Services,
};

/// One write unit covers this many bytes.
const UNIT_BYTES: usize = 1024;
/// The table and its seven indexes.
const COPIES: f64 = 8.0;

/// DynamoDB does not count the zeros at the end of a number: one time for all runs, without any.
const TIME: u64 = 1_767_453_739_643;

/// Saves every type with short ids and with ULIDs, with and without an idempotency key.
pub(crate) fn run() -> anyhow::Result<Report> {
    let services = Services::start()?;
    let meter = Meter::default();
    let dynamo = meter.install(&services.clients().dynamo);
    let control = ControlTable::new(dynamo.clone(), &services.names.control_table);
    let saver = Saver::new(dynamo, &services.names.events_table, control, 0);
    let now = Millis::new("timestamp", TIME)?;

    let mut report =
        Report::with_headings(&["event type", "ids", "bytes", "units", "bytes with key", "units with key"]);
    let measure = |event: Event| services.runtime.block_on(save(&saver, &meter, event, now));
    // The first event of a tenant also registers it.
    measure(samples::nth(0, &Ids::ulids(), now)?)?;
    for (round, kind) in ["short", "ULID"].into_iter().enumerate() {
        for (number, event_type) in EVENT_TYPES.into_iter().enumerate() {
            let ids = |n: usize| if kind == "short" { Ids::short(n) } else { Ok(Ids::ulids()) };
            let plain = measure(samples::nth(number, &ids(2 * number)?, now)?)?;
            let mut event = samples::nth(number, &ids(2 * number + 1)?, now)?;
            event.idempotency_key = Some(format!("{}:{event_type}:{round}", event.entity_id));
            let keyed = measure(event)?;
            let cells = vec![
                json!(event_type),
                json!(kind),
                json!(plain.bytes),
                json!(plain.units),
                json!(keyed.bytes),
                json!(keyed.units),
            ];
            let goal = if plain.bytes <= UNIT_BYTES { Goal::Exactly(COPIES) } else { Goal::None };
            report.row(cells, plain.units, goal);
        }
    }
    services.stop();
    Ok(report)
}

async fn save(saver: &Saver, meter: &Meter, event: Event, now: Millis) -> anyhow::Result<Reading> {
    meter.take();
    let answers = saver.save(&[ValidEvent { keys: event.keys(), event }], now).await;
    for answer in answers {
        let outcome = answer?;
        ensure!(matches!(outcome, Outcome::Saved { .. }), "not saved but {outcome:?}");
    }
    let reading = meter.take();
    ensure!(reading.units > 0.0, "the store reported no consumed capacity");
    Ok(reading)
}
