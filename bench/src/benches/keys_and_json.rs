//! Keys and JSON of one event: typed, straight into the text, beside the same event built as
//! an untyped `Value`. Both in turn, so that what else the machine does meets both.

use std::hint::black_box;

use anyhow::ensure;
use ledgerline_event::{Event, Keyed, Millis, catalogue::TaskProcessingStarted};
use ledgerline_ledger::system_clock;
use serde_json::{Value, json};

use crate::{
    cpu::{Cost, measured},
    report::{Goal, Report},
    samples::{self, Ids},
    spread::Spread,
};

const ROUNDS: usize = 300;
const EVENTS: usize = 1_000;

type Started = Event<TaskProcessingStarted>;

/// Builds the JSON of many events both ways.
pub(crate) fn run() -> anyhow::Result<Report> {
    let now: Millis = system_clock()();
    let events: Vec<Started> = (0..EVENTS)
        .map(|n| samples::started(&Ids::ulids(), now.minus(n as u64)))
        .collect::<anyhow::Result<_>>()?;
    let text = typed(&events[0])?;
    ensure!(
        serde_json::from_str::<Value>(&text)? == serde_json::from_str::<Value>(&untyped(&events[0])?)?,
        "both ways must say the same"
    );

    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (build, costs) in [typed, untyped].into_iter().zip(&mut costs) {
            costs.push(round(&events, build)?);
        }
    }
    let [typed, untyped] = costs.map(|costs| PerEvent::of(&costs));
    let mut report = Report::of_figures();
    report.figure("JSON of one event", text.len() as f64, "bytes", Goal::None);
    report.figure("typed: CPU per event", typed.cpu.median(), "µs", Goal::Under(3.0));
    report.figure("typed: time per event", typed.wall.median(), "µs", Goal::None);
    report.figure("typed: time per event, quickest round", typed.wall.least(), "µs", Goal::None);
    report.figure("untyped `Value`: CPU per event", untyped.cpu.median(), "µs", Goal::None);
    report.figure("untyped `Value`: time per event", untyped.wall.median(), "µs", Goal::None);
    report.figure("untyped over typed, CPU", untyped.cpu.median() / typed.cpu.median(), "times", Goal::None);
    Ok(report)
}

/// Microseconds per event, round by round.
struct PerEvent {
    cpu: Spread,
    wall: Spread,
}

impl PerEvent {
    fn of(rounds: &[Cost]) -> Self {
        let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6 / EVENTS as f64;
        Self {
            cpu: rounds.iter().map(|cost| micros(cost.cpu)).collect(),
            wall: rounds.iter().map(|cost| micros(cost.wall)).collect(),
        }
    }
}

fn round(events: &[Started], build: fn(&Started) -> serde_json::Result<String>) -> serde_json::Result<Cost> {
    let (built, cost) = measured(|| {
        events.iter().try_for_each(|event| {
            black_box(build(black_box(event))?);
            Ok(())
        })
    });
    built.map(|()| cost)
}

fn typed(event: &Started) -> serde_json::Result<String> {
    serde_json::to_string(&Keyed { keys: &event.keys(), event })
}

/// As one would write it without types: formatted keys and a tree of values.
fn untyped(event: &Started) -> serde_json::Result<String> {
    let Event { event_id, tenant_id, app_name, entity_type, entity_id, event_type, timestamp, .. } = event;
    let (context, properties) = (&event.context, &event.properties);
    let value = json!({
        "PK": format!("TENANT#{tenant_id}"),
        "SK": format!("TIMESTAMP#{timestamp}#EVENT#{event_id}"),
        "GSI1PK": format!("{entity_type}#{entity_id}"),
        "GSI1SK": format!("{entity_type}#TIMESTAMP#{timestamp}"),
        "GSI2PK": format!("APP#{app_name}"),
        "GSI2SK": format!("TIMESTAMP#{timestamp}"),
        "GSI3PK": format!("APP#{app_name}"),
        "GSI3SK": format!("{entity_type}#{entity_id}#TIMESTAMP#{timestamp}"),
        "GSI4PK": format!("EVENT#{event_type}"),
        "GSI4SK": format!("TENANT#{tenant_id}#TIMESTAMP#{timestamp}"),
        "GSI5PK": format!("EVENT#{event_type}"),
        "GSI5SK": format!("TENANT#{tenant_id}#{entity_type}#{entity_id}#TIMESTAMP#{timestamp}"),
        "GSI6PK": format!("EVENT#{event_type}"),
        "GSI6SK": format!("TENANT#{tenant_id}#APP#{app_name}#TIMESTAMP#{timestamp}"),
        "GSI7PK": format!("EVENT#{event_type}"),
        "GSI7SK": format!("TENANT#{tenant_id}#APP#{app_name}#{entity_type}#{entity_id}#TIMESTAMP#{timestamp}"),
        "eventId": event_id.as_str(),
        "tenantId": tenant_id.as_str(),
        "appName": app_name.as_str(),
        "entityType": entity_type.as_str(),
        "entityId": entity_id.as_str(),
        "eventType": event_type.as_str(),
        "timestamp": timestamp.get(),
        "context": {
            "source": context.source,
            "environment": context.environment,
            "origin": context.origin,
            "workerId": context.worker_id,
        },
        "properties": {
            "requestId": properties.request_id,
            "jobId": properties.job_id,
            "effectiveUntil": properties.effective_until.get(),
            "workerId": properties.worker_id,
            "processId": properties.process_id,
        },
    });
    serde_json::to_string(&value)
}
