//! A cold start of the saver: from the start of its process to its first answer, with Lambda's
//! Runtime API and the AWS services on loopback. Lambda's own share (fetching the code, starting the
//! machine) is not in it, nor is TLS: the embedded services speak plain HTTP.

use std::{path::PathBuf, time::Duration, time::Instant};

use anyhow::ensure;
use ledgerline_ledger::system_clock;
use serde_json::Value;

use crate::{
    deliveries, function,
    report::{Goal, Report},
    runtime_api::RuntimeApi,
    samples::{self, Ids},
    services::Services,
    spread::Spread,
};

const STARTS: usize = 15;

/// Starts the function again and again, once with an event to save and once with an empty batch.
pub(crate) fn run() -> anyhow::Result<Report> {
    let binary = function::binary()?;
    let services = Services::start()?;
    // The first start reads the binary from the disk, and the first save registers the tenant.
    start(&binary, &services, 1)?;

    services.embedded.reset_requests();
    start(&binary, &services, 1)?;
    let requests = services.table_requests();

    let (mut saving, mut empty) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        saving.push(start(&binary, &services, 1)?);
        empty.push(start(&binary, &services, 0)?);
    }
    services.stop();

    let of = |starts: &[Start], value: fn(&Start) -> f64| starts.iter().map(value).collect::<Spread>();
    let saved = of(&saving, |start| millis(start.answered));
    let peak = of(&saving, |start| start.peak_kb / 1024.0);
    let mut report = Report::of_figures();
    report.figure("requests to the tables at the first save", requests as f64, "", Goal::None);
    report.figure("first save answered, median", saved.median(), "ms", Goal::Under(25.0));
    report.figure("first save answered, worst", saved.most(), "ms", Goal::None);
    report.figure(
        "… of which until initialised, median",
        of(&saving, |start| millis(start.ready)).median(),
        "ms",
        Goal::None,
    );
    report.figure(
        "first empty batch answered, median",
        of(&empty, |start| millis(start.answered)).median(),
        "ms",
        Goal::None,
    );
    report.figure(
        "CPU until the first save is answered, median",
        of(&saving, |start| millis(start.cpu)).median(),
        "ms",
        Goal::None,
    );
    report.figure(
        "CPU until an empty batch is answered, median",
        of(&empty, |start| millis(start.cpu)).median(),
        "ms",
        Goal::None,
    );
    report.figure("peak memory after a save, median", peak.median(), "MB", Goal::Under(12.0));
    report.figure("peak memory after a save, worst", peak.most(), "MB", Goal::Under(12.0));
    report.figure(
        "peak memory after an empty batch, median",
        of(&empty, |start| start.peak_kb / 1024.0).median(),
        "MB",
        Goal::None,
    );
    Ok(report)
}

/// One start, counted from its beginning.
struct Start {
    ready: Duration,
    answered: Duration,
    cpu: Duration,
    peak_kb: f64,
}

fn start(binary: &PathBuf, services: &Services, events: usize) -> anyhow::Result<Start> {
    let now = system_clock()();
    let events =
        (0..events).map(|_| samples::nth(1, &Ids::ulids(), now)).collect::<anyhow::Result<Vec<_>>>()?;
    let payload = serde_json::to_string(&deliveries::batch(&events)?)?;
    services.runtime.block_on(async {
        let mut api = RuntimeApi::start(payload).await?;
        let began = Instant::now();
        let process = function::Process::start(binary, api.address, services)?;
        let answer = api.answer().await?;
        let used = process.used()?;
        let body: Value = serde_json::from_str(&answer.body)?;
        ensure!(body["batchItemFailures"] == Value::Array(Vec::new()), "not saved: {body}");
        Ok(Start {
            ready: answer.ready - began,
            answered: answer.answered - began,
            cpu: used.cpu,
            peak_kb: used.peak_kb,
        })
    })
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
