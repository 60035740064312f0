//! `ledgerline job`

mod tree;
mod view;
mod watch;

use std::process::ExitCode;

use ledgerline_event::Name;
use ledgerline_jobs::JobTaskDetails;
use ledgerline_ledger::system_clock;
use serde_json::json;

use self::view::draw;
pub(super) use self::{
    view::{duration, task_note},
    watch::{Resumed, watch},
};
use super::{
    canvas::Canvas,
    submit::{read_tasks, with_file_name},
};
use crate::{
    args::{AddToJobArgs, JobCommand, ResumeJobArgs, ShowJobArgs},
    output::Output,
    target::Target,
};

/// The app of this command's emitter; events of added and resumed tasks carry the job's own app.
const APP: &str = "cli";

pub(super) async fn run(target: &Target, command: JobCommand, output: Output) -> anyhow::Result<ExitCode> {
    match command {
        JobCommand::Show(args) => show(target, args, output).await,
        JobCommand::Add(args) => add(target, args, output).await,
        JobCommand::Resume(args) => resume(target, args, output).await,
    }
}

async fn show(target: &Target, args: ShowJobArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    if args.watch {
        return watch(&stage, tenant, &args.job_id, Resumed::default(), output).await;
    }
    let details = stage.jobs.job(tenant, &args.job_id).await?;
    if output.is_json() {
        output.json_line(&details)?;
        return Ok(ExitCode::SUCCESS);
    }
    // All of it, however long: it is not drawn again.
    let canvas =
        Canvas::of_terminal().map_or(Canvas::ENDLESS, |canvas| Canvas { height: usize::MAX, ..canvas });
    draw(&details, system_clock()(), &canvas).iter().try_for_each(|line| output.line(line))?;
    Ok(ExitCode::SUCCESS)
}

async fn add(target: &Target, args: AddToJobArgs, output: Output) -> anyhow::Result<ExitCode> {
    let tasks = read_tasks(&args.file)?;
    let emitter = target.emitter(Name::new("app", APP)?)?;
    let stage = target.stage().await?;
    let added = stage.jobs.add_tasks(&emitter, &args.job_id, tasks).await;
    let added = added.map_err(|error| with_file_name(&args.file, error))?;
    match output.is_json() {
        true => output.json_line(&added)?,
        false => output.line(&format!(
            "{} had {} tasks and has {} now",
            args.job_id, added.previous_total_tasks, added.total_tasks_now
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn resume(target: &Target, args: ResumeJobArgs, output: Output) -> anyhow::Result<ExitCode> {
    let emitter = target.emitter(Name::new("app", APP)?)?;
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    let before = match args.watch {
        true => Some(stage.jobs.job(tenant, &args.job_id).await?),
        false => None,
    };
    let resumed = stage.jobs.resume_job(&emitter, &args.job_id).await?;
    match output.is_json() {
        true => output.json_line(&json!({ "resumed": resumed }))?,
        false => {
            let tasks: Vec<&str> = resumed.iter().map(Name::as_str).collect();
            output.line(&format!("{} is resumed: {}", args.job_id, tasks.join(", ")))?;
        }
    }
    let Some(before) = before else { return Ok(ExitCode::SUCCESS) };
    let generation = |task: &JobTaskDetails| Some((task.task_id.clone(), task.summary.as_ref()?.generation));
    let again = before.tasks.iter().filter(|task| resumed.contains(&task.task_id));
    let resumed = Resumed { failed: again.filter_map(generation).collect(), before: Some(before) };
    watch(&stage, tenant, &args.job_id, resumed, output).await
}
