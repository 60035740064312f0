//! `ledgerline events`

use std::{collections::HashSet, process::ExitCode, time::Duration};

use ledgerline_event::{Event, Millis, Name};
use ledgerline_ledger::{CheckedFilter, EventFilter, Order, Reader, system_clock};

use super::paging::up_to;
use crate::{
    args::EventsArgs,
    output::{Output, properties},
    target::Target,
    times,
};

/// How often `--follow` polls.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);
/// How far back `--follow` reads, for events that arrive late.
const FOLLOW_BACK_MS: u64 = 60_000;

pub(super) async fn run(target: &Target, args: EventsArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, reader) = (target.tenant()?, target.reader());
    let now = system_clock()();
    let time = |field, text: &Option<String>, otherwise| match text {
        Some(text) => times::parse(field, text, now),
        None => Ok(otherwise),
    };
    let (entity_type, entity_id) = match &args.entity {
        None => (None, None),
        Some(entity) => match entity.split_once('/') {
            Some((kind, id)) => (Some(kind.to_owned()), Some(id.to_owned())),
            None => (Some(entity.clone()), None),
        },
    };
    let filter = EventFilter {
        event_type: args.event_type.clone(),
        entity_type,
        entity_id,
        app: args.app.clone(),
        since: time("--since", &args.since, Millis::MIN)?,
        until: time("--until", &args.until, Millis::MAX)?,
    };
    let limit = args.limit.get();
    if !args.follow {
        print_all(&newest(&reader, tenant, &filter.checked()?, limit).await?, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    tokio::select! {
        // One listener for the whole time, so that no signal is lost between two polls.
        interrupted = tokio::signal::ctrl_c() => interrupted.map(|()| ExitCode::SUCCESS).map_err(Into::into),
        ended = follow(&reader, tenant, filter, limit, output) => ended,
    }
}

/// The newest events, newest first.
pub(super) async fn newest(
    reader: &Reader,
    tenant: &Name,
    filter: &CheckedFilter,
    limit: usize,
) -> anyhow::Result<Vec<Event>> {
    let page = |wanted: usize, cursor: Option<String>| async move {
        let page =
            reader.recent(tenant, filter, Order::NewestFirst, wanted.min(500), cursor.as_deref()).await?;
        anyhow::Ok((page.items, page.cursor))
    };
    Ok(up_to(limit, page).await?.0)
}

/// Prints the newest events, oldest first, and then those that arrive.
async fn follow(
    reader: &Reader,
    tenant: &Name,
    filter: EventFilter,
    limit: usize,
    output: Output,
) -> anyhow::Result<ExitCode> {
    // First the window, then the list: an event that arrives between the two is in the list, one that arrives later is in
    // neither and printed by the next poll, so none is missed.
    let mut seen: HashSet<Name> =
        window(reader, tenant, &filter).await?.into_iter().map(|event| event.event_id).collect();
    for event in newest(reader, tenant, &filter.clone().checked()?, limit).await?.into_iter().rev() {
        print_line(&event, output)?;
        seen.insert(event.event_id);
    }
    loop {
        let found = window(reader, tenant, &filter).await?;
        for event in found.iter().filter(|event| !seen.contains(&event.event_id)) {
            print_line(event, output)?;
        }
        // Only events that the next window can contain have to be remembered.
        seen = found.into_iter().map(|event| event.event_id).collect();
        tokio::time::sleep(FOLLOW_EVERY).await;
    }
}

/// The events of the last minute, oldest first.
async fn window(reader: &Reader, tenant: &Name, filter: &EventFilter) -> anyhow::Result<Vec<Event>> {
    let since = system_clock()().minus(FOLLOW_BACK_MS).max(filter.since);
    let recent = EventFilter { since, ..filter.clone() }.checked()?;
    let recent = &recent;
    let page = |_, cursor: Option<String>| async move {
        let page = reader.recent(tenant, recent, Order::OldestFirst, 500, cursor.as_deref()).await?;
        anyhow::Ok((page.items, page.cursor))
    };
    Ok(up_to(usize::MAX, page).await?.0)
}

fn print_all(events: &[Event], output: Output) -> anyhow::Result<()> {
    if output.is_json() {
        return events.iter().try_for_each(|event| output.json_line(event));
    }
    let rows = events.iter().map(|event| columns(event).to_vec()).collect();
    output.table(
        &["time", "type", "entity", "app", "id", "properties"],
        rows,
        "No events. Widen the filters, or emit one.",
    )
}

fn print_line(event: &Event, output: Output) -> anyhow::Result<()> {
    if output.is_json() {
        return output.json_line(event);
    }
    let [time, event_type, entity, app, _, properties] = columns(event);
    output.line(&format!("{time}  {event_type:<24}  {entity:<24}  {app:<16}  {properties}"))
}

fn columns(event: &Event) -> [String; 6] {
    [
        event.timestamp.to_rfc3339(),
        event.event_type.to_string(),
        format!("{}/{}", event.entity_type, event.entity_id),
        event.app_name.to_string(),
        event.event_id.to_string(),
        properties(event, 60),
    ]
}
