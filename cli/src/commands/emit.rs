//! `ledgerline emit`

use std::process::ExitCode;

use anyhow::Context;
use ledgerline_event::Name;
use ledgerline_ledger::system_clock;
use ledgerline_outbox::RecordedEvent;

use super::input;
use crate::{args::EmitArgs, output::Output, target::Target, times};

pub(super) async fn run(target: &Target, args: EmitArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (entity_type, entity_id) =
        args.entity.split_once('/').context("--entity: TYPE/ID is expected, as in ITEM/10472")?;
    let properties = input::object("--properties", &args.properties)?;
    let emitter = target.emitter(Name::new("--app", args.app)?)?;
    let mut draft = emitter.event(args.event_type).entity(entity_type, entity_id).properties(properties);
    let keyed = args.idempotency_key.is_some();
    if let Some(key) = args.idempotency_key {
        draft = draft.idempotency_key(key);
    }
    if let Some(cause) = args.caused_by {
        draft = draft.caused_by(cause);
    }
    if let Some(system) = args.source_system {
        draft = draft.source_system(system);
    }
    if let Some(time) = args.at {
        draft = draft.at(times::parse("--at", &time, system_clock()())?);
    }
    let recorded = match keyed {
        // Only a key needs more than the bus.
        false => RecordedEvent { event_id: draft.emit().await?, collapsed: false },
        true => target.stage().await?.outbox.record_event(&emitter, draft.build_plain()?).await?,
    };
    if recorded.collapsed {
        eprintln!(
            "collapsed: {} was emitted with this idempotency key before; nothing was emitted.",
            recorded.event_id
        );
    }
    match output.is_json() {
        true => output.json_line(&recorded)?,
        false => output.line(&recorded.event_id)?,
    }
    Ok(ExitCode::SUCCESS)
}
