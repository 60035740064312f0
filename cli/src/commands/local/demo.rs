//! `local --demo`: emits a few events of a shop, and runs a job of five tasks with a worker in this process.

use std::{fs, path::Path};

use anyhow::Context;
use ledgerline_event::Name;
use ledgerline_jobs::JobSubmission;
use ledgerline_ledger::Emitter;
use ledgerline_local::{Local, LocalWorker};
use ledgerline_worker::Config;
use serde_json::json;

use super::{super::job, command};
use crate::output::Output;

/// Tasks that take a second and pass on their input, so that the user sees it arrive.
const TASK_FILE: &str = r#"# Written by `ledgerline local --demo`, each time anew.

[tasks.scrape-store]
command = '''
echo '{"type":"step_running","stepName":"pages"}' >> "$LEDGERLINE_ACTIVITY"
sleep 1
echo '{"store":"store-123","colors":["teal","sand"],"usage":{"inputTokens":1200}}' > "$LEDGERLINE_OUTPUT"
'''

[tasks.analyze-competitors]
command = '''sleep 2; echo '{"competitors":["north","south"]}' > "$LEDGERLINE_OUTPUT"'''

[tasks.color-tags]
command = '''sleep 1; printf '{"tags":["modern"],"given":%s}' "$(cat)" > "$LEDGERLINE_OUTPUT"'''

[tasks.font-pairing]
command = '''sleep 1; echo '{"fonts":["mono","serif"]}' > "$LEDGERLINE_OUTPUT"'''

[tasks.compile-result]
command = '''sleep 1; printf '{"compiled":%s}' "$(cat)" > "$LEDGERLINE_OUTPUT"'''
"#;

/// Starts the worker of the demo. It stops with the demo, so that it does not take the user's own tasks.
pub(super) fn worker(local: &Local, data: &Path) -> anyhow::Result<LocalWorker> {
    let folder = data.join("demo");
    let file = folder.join("worker.toml");
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&file, TASK_FILE))
        .with_context(|| format!("{} cannot be written", file.display()))?;
    Ok(local.start_worker(Config::read(&file)?))
}

/// Emits the events, runs the job to its end, and says where to look.
pub(super) async fn show(local: &Local, data: &Path, output: Output) -> anyhow::Result<()> {
    let name = |text: &str| Name::new("app", text);
    let emitter = Emitter::new(&local.clients, &local.names, name(&local.state.tenant)?, name("demo-shop")?);
    let emitted = emit(&emitter).await?;
    let submitted = local.stage.jobs.submit_job(&emitter, five_tasks()?).await?;
    match output.is_json() {
        true => output.json_line(&submitted)?,
        false => {
            output.line(&format!("Demo: {emitted} events are emitted, and a job of five tasks runs.\n"))?
        }
    }
    let (tenant, job_id) = (&emitter.scope().tenant, &submitted.job_id);
    job::watch(&local.stage, tenant, job_id, job::Resumed::default(), output).await?;
    if !output.is_json() {
        let command = command(data);
        output.line(&format!(
            "\nSee what happened with\n
  {command} events
  {command} jobs
  {command} job show {job_id} --watch
  {command} tasks
  {command} task {job_id}:task-E --history\n"
        ))?;
    }
    Ok(())
}

async fn emit(emitter: &Emitter) -> anyhow::Result<usize> {
    let drafts = vec![
        emitter
            .event("sync.tier_completed")
            .entity("STORE", "store-123")
            .properties(json!({"tier": "hourly", "items": 214}))
            .caused_by("sync:tier=hourly"),
        emitter
            .event("price.changed")
            .entity("ITEM", "10472")
            .properties(json!({"old_price": 1.42, "new_price": 1.48, "approved_by": "mike"}))
            .caused_by("workflow:bid_price_update"),
        emitter
            .event("hitl.approved")
            .entity("ACTION", "8421")
            .properties(json!({"proposed_action_id": 8421}))
            .idempotency_key("hitl.approved:8421"),
        emitter
            .event("email.parsed")
            .entity("MAILBOX", "orders")
            .properties(json!({"subject": "Re: your order", "attachments": 2}))
            .source_system("email"),
    ];
    let fates = emitter.emit_all(drafts).await;
    let count = fates.len();
    fates.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(count)
}

/// Two that depend on the first, one that depends on both, and one that stands alone.
fn five_tasks() -> Result<JobSubmission, serde_json::Error> {
    serde_json::from_value(json!({ "tasks": [
        {"taskId": "task-A", "name": "scrape-store", "input": {"storeId": "store-123"}},
        {"taskId": "task-B", "name": "analyze-competitors", "input": {"market": "fashion"}},
        {"taskId": "task-C", "name": "color-tags", "dependsOn": ["task-A"], "input": {"style": "modern"}},
        {"taskId": "task-D", "name": "font-pairing", "dependsOn": ["task-A"]},
        {"taskId": "task-E", "name": "compile-result", "dependsOn": ["task-C", "task-D"]},
    ]}))
}
