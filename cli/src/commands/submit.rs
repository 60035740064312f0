//! `ledgerline submit`

mod file;

use std::{
    io::{self, IsTerminal},
    path::Path,
    process::ExitCode,
};

use anyhow::anyhow;
use ledgerline_event::Name;
use ledgerline_jobs::{JobSubmission, TaskSubmission};
use ledgerline_ledger::Emitter;
use ledgerline_outbox::ComponentError;
use ledgerline_stage::Stage;

pub(super) use self::file::{Submission, read_submission, read_tasks, shown_name};
use super::{job, task};
use crate::{args::SubmitArgs, output::Output, target::Target};

pub(super) async fn run(target: &Target, args: SubmitArgs, output: Output) -> anyhow::Result<ExitCode> {
    let submission = read_submission(&args.file)?;
    let emitter = target.emitter(Name::new("--app", args.app)?)?;
    let stage = target.stage().await?;
    match submission {
        Submission::Job(job) => submit_job(&stage, &emitter, job, &args.file, args.watch, output).await,
        Submission::Task(task) => submit_task(&stage, &emitter, task, &args.file, args.watch, output).await,
    }
}

async fn submit_job(
    stage: &Stage,
    emitter: &Emitter,
    job: JobSubmission,
    file: &Path,
    watch: bool,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let submitted = stage.jobs.submit_job(emitter, job).await.map_err(|error| with_file_name(file, error))?;
    if submitted.collapsed {
        eprintln!("{} was submitted before: nothing was started again.", submitted.job_id);
    }
    match output.is_json() {
        true => output.json_line(&submitted)?,
        // The picture has it too.
        false if watch && io::stdout().is_terminal() => {}
        false => output.line(&submitted.job_id)?,
    }
    if !watch {
        return Ok(ExitCode::SUCCESS);
    }
    job::watch(stage, &emitter.scope().tenant, &submitted.job_id, job::Resumed::default(), output).await
}

async fn submit_task(
    stage: &Stage,
    emitter: &Emitter,
    task: TaskSubmission,
    file: &Path,
    watch: bool,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let submitted =
        stage.tasks.submit_task(emitter, task).await.map_err(|error| with_file_name(file, error))?;
    if submitted.collapsed {
        eprintln!("{} was submitted before: nothing was started again.", submitted.request_id);
    }
    match output.is_json() {
        true => output.json_line(&submitted)?,
        false => output.line(&submitted.request_id)?,
    }
    if !watch {
        return Ok(ExitCode::SUCCESS);
    }
    task::watch(stage, &emitter.scope().tenant, &submitted.request_id, output).await
}

/// Adds the file's name to an error that its content causes.
pub(super) fn with_file_name(file: &Path, error: ComponentError) -> anyhow::Error {
    match error {
        ComponentError::Invalid(_) | ComponentError::Refused(_) => anyhow!("{}: {error}", shown_name(file)),
        other => other.into(),
    }
}
