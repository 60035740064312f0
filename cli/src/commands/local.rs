//! `ledgerline local`

mod attention_changes;
mod demo;

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    process::ExitCode,
};

use ledgerline_local::{Local, LocalOptions, LocalState};

use crate::{
    args::LocalArgs,
    log_writer::Banner,
    logging::{WORKER_LOGS, dropped_lines, logs_to_stderr},
    output::Output,
};

/// Local mode goes on if the reader of its standard output goes away.
static BANNER: Banner = Banner::new();

pub(super) async fn run(data: PathBuf, args: LocalArgs, output: Output) -> anyhow::Result<ExitCode> {
    logs_to_stderr(if args.worker.is_some() { WORKER_LOGS } else { "warn" });
    let options = LocalOptions {
        aws_port: args.aws_port,
        port: args.port,
        worker: args.worker,
        slack_webhook: args.slack_webhook,
        drainers: args.drainers,
        retention_days: args.retention_days,
        dropped_log_lines: dropped_lines,
        ..LocalOptions::new(&data)
    };
    let local = Local::start(options).await?;
    if output.is_json() {
        BANNER.line(&serde_json::to_string(&local.state)?);
    } else {
        BANNER.line(&greeting(&local, &data));
    }
    if args.demo && !show_demo(&local, &data, output).await? {
        return stop(local, output).await;
    }
    if !output.is_json() {
        BANNER.line("Ctrl-C stops.");
    }
    tokio::select! {
        biased;
        asked = interrupted() => asked?,
        () = attention_changes::show(&local, output) => {}
    }
    stop(local, output).await
}

/// Shows the demo; `false` if the user interrupted it before its end.
async fn show_demo(local: &Local, data: &Path, output: Output) -> anyhow::Result<bool> {
    let worker = demo::worker(local, data)?;
    let shown = tokio::select! {
        biased;
        asked = interrupted() => asked.map(|()| false),
        shown = demo::show(local, data, output) => shown.map(|()| true),
    };
    worker.stop().await;
    shown
}

async fn stop(local: Local, output: Output) -> anyhow::Result<ExitCode> {
    if !output.is_json() {
        BANNER.line("\nStopping: finishing what is in flight …");
    }
    tokio::select! {
        () = local.stop() => Ok(ExitCode::SUCCESS),
        // The second interrupt ends the process at once; the queues redeliver what was not acknowledged.
        again = interrupted() => again.map(|()| ExitCode::FAILURE),
    }
}

/// How to call this binary for the same data folder.
fn command(data: &Path) -> String {
    let program = std::env::args().next().unwrap_or_else(|| "ledgerline".into());
    match data == Path::new(".ledgerline") {
        true => format!("{program} --local"),
        false => format!("{program} --local --data '{}'", data.display()),
    }
}

fn greeting(local: &Local, data: &Path) -> String {
    let state = &local.state;
    // Other users may read the file that the output is redirected to, so the key is not printed there.
    let (shown_key, key) = match std::io::stdout().is_terminal() {
        true => (state.api_key.clone(), state.api_key.as_str()),
        false => (format!("apiKey in {}", LocalState::file(data).display()), "$KEY"),
    };
    format!(
        "Ledgerline is running on this machine, and only here.\n
  AWS services   {endpoint}   (DynamoDB, SQS, EventBridge, S3, SSM; any credentials)
  HTTP API       {api}
  API key        {shown_key}
  Data           {data}\n
Try
  {command} emit price.changed --entity ITEM/10472 --properties '{{\"old\":1.42,\"new\":1.48}}'
  {command} events --follow
  curl -H \"Authorization: Bearer {key}\" '{api}/api/events/recent?limit=5'
  AWS_ENDPOINT_URL={endpoint} AWS_REGION={region} AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local \\
    aws dynamodb query --table-name {table} --key-condition-expression 'PK = :t' \\
    --expression-attribute-values '{{\":t\":{{\"S\":\"TENANT#{tenant}\"}}}}'\n",
        endpoint = state.aws_endpoint,
        api = state.api_url,
        data = data.display(),
        command = command(data),
        region = state.region,
        table = local.names.events_table,
        tenant = state.tenant,
    )
}

/// Waits for Ctrl-C or SIGTERM.
pub(super) async fn interrupted() -> anyhow::Result<()> {
    #[cfg(unix)]
    {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            result = tokio::signal::ctrl_c() => result?,
            _ = terminate.recv() => {}
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await?;
    Ok(())
}
