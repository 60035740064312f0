//! `ledgerline send-event` and `ledgerline sent-events`

use std::process::ExitCode;

use ledgerline_event::Name;
use ledgerline_runs::{EventSubmission, SentEventView};

use super::{
    input,
    paging::{note_if_incomplete, up_to},
};
use crate::{
    args::{SendEventArgs, SentEventsArgs},
    output::{Output, shortened},
    target::Target,
};

pub(super) async fn run(target: &Target, args: SendEventArgs, output: Output) -> anyhow::Result<ExitCode> {
    let event = EventSubmission {
        event: args.name,
        data: input::json("--event-data", &args.event_data)?,
        r#match: input::json("--match", &args.matched)?,
        idempotency_key: args.idempotency_key,
    };
    let emitter = target.emitter(Name::new("--app", args.app)?)?;
    let sent = target.stage().await?.events.send_event(&emitter, event, None).await?;
    if sent.collapsed {
        eprintln!(
            "collapsed: {} was sent with this idempotency key before; nothing was sent.",
            sent.event_id
        );
    }
    match output.is_json() {
        true => output.json_line(&sent)?,
        false => output.line(&sent.event_id)?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn list(target: &Target, args: SentEventsArgs, output: Output) -> anyhow::Result<ExitCode> {
    let name = Name::new("NAME", args.name)?;
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    let (stage, name) = (&stage, &name);
    let page = |wanted, cursor: Option<String>| async move {
        let page = stage.runs.sent_events(tenant, name, wanted, cursor.as_deref()).await?;
        anyhow::Ok((page.items, page.cursor))
    };
    let (events, more) = up_to(args.limit.get(), page).await?;
    if output.is_json() {
        events.iter().try_for_each(|event| output.json_line(event))?;
        return Ok(ExitCode::SUCCESS);
    }
    let headings = ["time", "id", "consumed", "from", "match", "data"];
    let none = format!("No `{name}` was sent. `send-event {name}` sends one.");
    output.table(&headings, events.iter().map(row).collect(), &none)?;
    note_if_incomplete(more, output)?;
    Ok(ExitCode::SUCCESS)
}

fn row(view: &SentEventView) -> Vec<String> {
    let event = &view.event;
    let from = event.source_instance_id.as_ref().map_or(event.source_type.as_str(), Name::as_str);
    vec![
        event.timestamp.to_rfc3339(),
        event.event_id.to_string(),
        view.consumed_count.to_string(),
        from.to_owned(),
        shortened(&event.sent_match.to_string(), 60),
        shortened(&event.data.to_string(), 60),
    ]
}
