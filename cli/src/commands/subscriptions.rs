//! `ledgerline subscriptions`

use std::process::ExitCode;

use anyhow::Context;
use ledgerline_drains::{NewSubscription, SampleEvent, SubscriptionChange};
use ledgerline_event::{Event, Name};
use ledgerline_ledger::{EventFilter, system_clock};
use ledgerline_stage::Stage;
use ledgerline_subscription::{Explanation, OnFailure, Subscription};

use super::{events::newest, input};
use crate::{
    args::{AddSubscriptionArgs, SubscriptionsCommand, TestArgs},
    output::{Output, on_one_line},
    target::Target,
    times,
};

pub(super) async fn run(
    target: &Target,
    command: SubscriptionsCommand,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    let enabled = |enabled| SubscriptionChange { enabled: Some(enabled), ..SubscriptionChange::default() };
    match command {
        SubscriptionsCommand::Add(args) => add(&stage, tenant, args, output).await?,
        SubscriptionsCommand::List => list(&stage.registry().subscriptions(tenant).await?, output)?,
        SubscriptionsCommand::Show { id } => {
            show(&stage.registry().subscription(tenant, &id).await?, output)?
        }
        SubscriptionsCommand::Test(args) => {
            let event = event(target, &stage, args).await?;
            let explained = stage.registry().explain(tenant, &event, None).await?;
            explain(&event, &explained, output)?;
        }
        SubscriptionsCommand::Enable { id } => {
            let changed = stage.registry().change_subscription(tenant, &id, enabled(true)).await?;
            print_change(&changed, "enabled", output)?;
        }
        SubscriptionsCommand::Disable { id } => {
            let changed = stage.registry().change_subscription(tenant, &id, enabled(false)).await?;
            print_change(&changed, "disabled", output)?;
        }
        SubscriptionsCommand::Rm { id } => {
            print_change(&stage.registry().unsubscribe(tenant, &id).await?, "removed", output)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn add(stage: &Stage, tenant: &Name, args: AddSubscriptionArgs, output: Output) -> anyhow::Result<()> {
    let start_at = match &args.start_at {
        None => None,
        Some(text) => Some(times::parse("--start-at", text, system_clock()())?.to_string()),
    };
    let from_the_beginning = start_at.is_none();
    let begun =
        stage.drains.drainer_states(tenant).await?.iter().any(|state| *state.drainer_id == *args.drainer);
    let new = NewSubscription {
        event_type_glob: args.glob,
        workflow_type: Name::new("WORKFLOW_TYPE", args.workflow_type)?,
        drainer_id: Some(Name::new("--drainer", args.drainer)?),
        input_mapper: (!args.mapper.is_empty()).then(|| args.mapper.into_iter().collect()),
        filter_expr: args.filter,
        enabled: Some(!args.disabled),
        on_failure: Some(args.on_failure.into()),
        start_at,
    };
    let added = stage.registry().subscribe(tenant, new).await?;
    if output.is_json() {
        return output.json_line(&added);
    }
    output.line(&added.subscription_id)?;
    // Three facts that surprise users, each printed when it applies.
    if !begun && from_the_beginning {
        eprintln!("{} begins at the beginning of the ledger.", added.drainer_id);
    }
    if begun {
        eprintln!("It sees what {} has not passed yet; `rewind` goes back further.", added.drainer_id);
    }
    let types = stage.registry().workflow_types(tenant).await?;
    if types.iter().all(|known| known.workflow_type != added.workflow_type) {
        eprintln!(
            "{} is not registered yet: its starts fail until `workflows add {} --kind …`.",
            added.workflow_type, added.workflow_type
        );
    }
    Ok(())
}

fn list(subscriptions: &[Subscription], output: Output) -> anyhow::Result<()> {
    if output.is_json() {
        return subscriptions.iter().try_for_each(|subscription| output.json_line(subscription));
    }
    let rows = subscriptions.iter().map(|subscription| {
        vec![
            subscription.subscription_id.to_string(),
            state(subscription).into(),
            subscription.event_type_glob.clone(),
            subscription.workflow_type.to_string(),
            subscription.drainer_id.to_string(),
            on_failure(subscription).into(),
            on_one_line(subscription.filter_expr.as_deref().unwrap_or_default(), 60),
        ]
    });
    output.table(
        &["id", "state", "events", "workflow", "drainer", "on failure", "filter"],
        rows.collect(),
        "No subscriptions. Add one with `subscriptions add GLOB WORKFLOW_TYPE`.",
    )
}

fn show(subscription: &Subscription, output: Output) -> anyhow::Result<()> {
    if output.is_json() {
        return output.json_line(subscription);
    }
    let mut fields = vec![
        ("id", subscription.subscription_id.to_string()),
        ("state", state(subscription).into()),
        ("events", subscription.event_type_glob.clone()),
        ("filter", subscription.filter_expr.clone().unwrap_or_else(|| "none".into())),
        ("workflow", subscription.workflow_type.to_string()),
        ("drainer", subscription.drainer_id.to_string()),
        ("on failure", on_failure(subscription).into()),
        ("created at", subscription.created_at.to_rfc3339()),
    ];
    match &subscription.input_mapper {
        None => fields.push(("input", "the properties".into())),
        Some(mapper) => {
            let recipe = |(name, recipe): (&String, &String)| ("input", format!("{name} = {recipe}"));
            fields.extend(mapper.iter().map(recipe));
        }
    }
    output.fields(&fields)
}

fn state(subscription: &Subscription) -> &'static str {
    if subscription.enabled { "enabled" } else { "disabled" }
}

fn on_failure(subscription: &Subscription) -> &'static str {
    match subscription.on_failure {
        OnFailure::Park => "park",
        OnFailure::Halt => "halt",
    }
}

fn print_change(subscription: &Subscription, what: &str, output: Output) -> anyhow::Result<()> {
    match output.is_json() {
        true => output.json_line(subscription),
        false => output.line(&format!("{} is {what}", subscription.subscription_id)),
    }
}

async fn event(target: &Target, stage: &Stage, args: TestArgs) -> anyhow::Result<Event> {
    let tenant = target.tenant()?;
    if let Some(id) = args.event {
        return Ok(stage.registry().event(tenant, &id).await?);
    }
    if let Some(path) = args.file {
        let text = input::file("--file", &path)?;
        let sample: SampleEvent =
            serde_json::from_str(&text).context("--file: an event as JSON is expected")?;
        return Ok(stage.registry().sample(tenant, sample)?);
    }
    if let Some(of_type) = args.event_type {
        let filter = EventFilter { event_type: Some(of_type), ..EventFilter::everything() }.checked()?;
        let found = newest(&target.reader(), tenant, &filter, 1).await?.pop();
        return found.context("the ledger has no event of this type: emit one, or give one with --file");
    }
    let newest = stage.registry().newest(tenant).await?;
    newest.context("the ledger has no events: emit one, or give one with --file")
}

fn explain(event: &Event, explained: &[Explanation], output: Output) -> anyhow::Result<()> {
    if output.is_json() {
        return explained.iter().try_for_each(|one| output.json_line(one));
    }
    output.line(&heading(event))?;
    let rows = explained.iter().map(|one| {
        let input = one.input.as_ref().and_then(|input| serde_json::to_string(input).ok());
        vec![
            if one.matches { "starts" } else { "no" }.into(),
            one.subscription_id.to_string(),
            one.event_type_glob.clone(),
            one.workflow_type.to_string(),
            on_one_line(&one.reason, 100),
            on_one_line(&input.unwrap_or_default(), 80),
        ]
    });
    output.table(
        &["fires", "subscription", "events", "workflow", "because", "input"],
        rows.collect(),
        "No subscriptions. Add one with `subscriptions add GLOB WORKFLOW_TYPE`.",
    )
}

fn heading(event: &Event) -> String {
    format!(
        "{} of {}/{} at {} ({})\n",
        event.event_type,
        event.entity_type,
        event.entity_id,
        event.timestamp.to_rfc3339(),
        event.event_id
    )
}
