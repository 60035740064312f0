//! `ledgerline hook`

use std::process::ExitCode;

use anyhow::bail;
use ledgerline_event::Name;
use ledgerline_runs::{HookAnswer, HookPayload};
use serde_json::json;

use super::input;
use crate::{
    args::{HookCommand, SendToHookArgs},
    output::Output,
    target::Target,
};

pub(super) async fn run(target: &Target, command: HookCommand, output: Output) -> anyhow::Result<ExitCode> {
    match command {
        HookCommand::Send(args) => send(target, args, output).await,
    }
}

async fn send(target: &Target, args: SendToHookArgs, output: Output) -> anyhow::Result<ExitCode> {
    let token = Name::new("TOKEN", args.token)?;
    let payload = input::json("--payload", &args.payload)?;
    let payload = HookPayload { payload, idempotency_key: args.idempotency_key };
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    match stage.hooks.receive_by_hook(Some(tenant), &token, payload).await? {
        HookAnswer::Received { run_id, event_id, collapsed } => {
            if collapsed {
                eprintln!("collapsed: {run_id} has had it before, as {event_id}.");
            }
            match output.is_json() {
                true => output
                    .json_line(&json!({ "runId": run_id, "eventId": event_id, "collapsed": collapsed }))?,
                false => output.line(&format!("{run_id} has it"))?,
            }
        }
        HookAnswer::Gone => bail!("the hook was disposed of, or its run has ended"),
        HookAnswer::Unknown => bail!("no hook has this token"),
    }
    Ok(ExitCode::SUCCESS)
}
