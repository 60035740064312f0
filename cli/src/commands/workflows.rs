//! `ledgerline workflows`

use std::{path::Path, process::ExitCode};

use anyhow::Context;
use ledgerline_drains::{ManualStart, NewTask, NewWorkflowType};
use ledgerline_event::Name;
use ledgerline_ledger::system_clock;
use ledgerline_stage::Stage;
use ledgerline_subscription::{Kind, WorkflowType};
use serde_json::json;

use super::input;
use crate::{
    args::{AddWorkflowArgs, KindArg, WorkflowsCommand},
    output::{Output, wrong_usage},
    target::Target,
    times,
};

pub(super) async fn run(
    target: &Target,
    command: WorkflowsCommand,
    output: Output,
) -> anyhow::Result<ExitCode> {
    if let WorkflowsCommand::Add(args) = &command
        && let Some(problem) = misplaced(args)
    {
        return Ok(wrong_usage(&problem));
    }
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    match command {
        WorkflowsCommand::Add(args) => add(&stage, tenant, args, output).await?,
        WorkflowsCommand::List => list(&stage.registry().workflow_types(tenant).await?, output)?,
        WorkflowsCommand::Rm { workflow_type } => {
            let removed = stage.registry().unregister(tenant, &workflow_type).await?;
            match output.is_json() {
                true => output.json_line(&removed)?,
                false => output.line(&format!("{workflow_type} is removed"))?,
            }
        }
        WorkflowsCommand::Start { workflow_type, input, idempotency_key } => {
            let key = idempotency_key.as_deref();
            start(&stage, tenant, &workflow_type, &input, key, output).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A flag that does not go with the kind, as an error.
fn misplaced(args: &AddWorkflowArgs) -> Option<String> {
    use KindArg::{Job, Run, Send, Task};
    let given: [(&str, bool, &[KindArg]); 6] = [
        ("--name", args.name.is_some(), &[Task, Run]),
        ("--timeout", args.timeout.is_some(), &[Task]),
        ("--max-attempts", args.max_attempts.is_some(), &[Task]),
        ("--tasks", args.tasks.is_some(), &[Job]),
        ("--event", args.event.is_some(), &[Send]),
        ("--match", !args.matches.is_empty(), &[Send]),
    ];
    if args.kind == Job && args.tasks.is_none() {
        return Some("--kind job needs --tasks FILE".into());
    }
    let (flag, ..) = given.into_iter().find(|(_, given, kinds)| *given && !kinds.contains(&args.kind))?;
    Some(format!(
        "{flag} does not go with --kind {}; `workflows add --help` says what does",
        kind_name(args.kind)
    ))
}

fn kind_name(kind: KindArg) -> &'static str {
    match kind {
        KindArg::Task => "task",
        KindArg::Job => "job",
        KindArg::Run => "run",
        KindArg::Send => "send",
    }
}

async fn add(stage: &Stage, tenant: &Name, args: AddWorkflowArgs, output: Output) -> anyhow::Result<()> {
    let name = |flag, text: Option<String>| text.map(|text| Name::new(flag, text)).transpose();
    let own_name = name("--name", args.name)?;
    let (task, workflow) = match args.kind {
        KindArg::Run => (None, own_name),
        KindArg::Task | KindArg::Job | KindArg::Send => (own_name, None),
    };
    let new = NewWorkflowType {
        workflow_type: args.workflow_type,
        kind: kind_name(args.kind).into(),
        idempotency_key: args.idempotency_key,
        name: task,
        timeout_ms: args.timeout,
        max_attempts: args.max_attempts,
        tasks: args.tasks.as_deref().map(tasks).transpose()?,
        workflow,
        event: name("--event", args.event)?,
        r#match: (!args.matches.is_empty()).then(|| args.matches.into_iter().collect()),
    };
    let made = new.created_at(system_clock()())?;
    stage.registry().register(tenant, &made).await?;
    match output.is_json() {
        true => output.json_line(&made),
        false => output.line(&format!("{} is registered: {}", made.workflow_type, what(&made.kind, &made))),
    }
}

/// A list of tasks, as JSON or YAML.
fn tasks(path: &Path) -> anyhow::Result<Vec<NewTask>> {
    let text = input::file("--tasks", path)?;
    let expected = || "--tasks: a list of {taskId, name, dependsOn?, input?} is expected".to_owned();
    // YAML takes no tabs, and so not all JSON.
    match text.trim_start().starts_with('[') {
        true => serde_json::from_str(&text).with_context(expected),
        false => serde_yaml_ng::from_str(&text).with_context(expected),
    }
}

fn list(types: &[WorkflowType], output: Output) -> anyhow::Result<()> {
    if output.is_json() {
        return types.iter().try_for_each(|known| output.json_line(known));
    }
    let rows = types.iter().map(|known| {
        vec![
            known.workflow_type.to_string(),
            what(&known.kind, known),
            known.idempotency_key.clone().unwrap_or_default(),
            known.created_at.to_rfc3339(),
        ]
    });
    output.table(
        &["type", "starts", "once per", "created"],
        rows.collect(),
        "No workflow types. Register one with `workflows add TYPE --kind …`.",
    )
}

fn what(kind: &Kind, known: &WorkflowType) -> String {
    let target = known.target();
    match kind {
        Kind::Task { timeout_ms, max_attempts, .. } => {
            let timeout = timeout_ms.map(|ms| format!(", at most {}", times::in_words(ms)));
            let attempts = max_attempts.map(|count| format!(", {count} attempts"));
            format!("task {target}{}{}", timeout.unwrap_or_default(), attempts.unwrap_or_default())
        }
        Kind::Job { tasks } => format!("job of {} tasks", tasks.len()),
        Kind::Run { .. } => format!("run of {target}"),
        Kind::Send { .. } => format!("sends {target}"),
    }
}

async fn start(
    stage: &Stage,
    tenant: &Name,
    workflow_type: &str,
    input: &str,
    idempotency_key: Option<&str>,
    output: Output,
) -> anyhow::Result<()> {
    let input = input::object("--input", input)?;
    let start = stage.drains.start(tenant, workflow_type, input, "cli:start", idempotency_key).await?;
    if output.is_json() {
        let ManualStart { started, collapsed } = start;
        return output.json_line(
            &json!({ "workflowType": workflow_type, "collapsed": collapsed, "started": started }),
        );
    }
    if start.collapsed {
        let first = start.started.as_deref().unwrap_or("an operator dropped it");
        eprintln!(
            "collapsed: {workflow_type} was started with this key before ({first}); nothing was started."
        );
    }
    // Without an id: a script that reads one must read none.
    start.started.map_or(Ok(()), |id| output.line(&id))
}
