//! `ledgerline jobs`

use std::process::ExitCode;

use ledgerline_event::{JobState, Millis};
use ledgerline_jobs::JobView;
use ledgerline_ledger::system_clock;

use super::paging::{note_if_incomplete, up_to};
use crate::{args::JobsArgs, output::Output, target::Target, times};

pub(super) async fn run(target: &Target, args: JobsArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    let state = args.state.map(Into::into);
    let stage = &stage;
    let page = |wanted, cursor: Option<String>| async move {
        let page = stage.jobs.jobs(tenant, state, wanted, cursor.as_deref()).await?;
        anyhow::Ok((page.items, page.cursor))
    };
    let (jobs, more) = up_to(args.limit.get(), page).await?;
    if output.is_json() {
        jobs.iter().try_for_each(|job| output.json_line(job))?;
        return Ok(ExitCode::SUCCESS);
    }
    let none = match state {
        Some(_) => "No jobs in this state.",
        None => "No jobs. Submit one with `submit FILE`.",
    };
    let headings = ["job", "state", "done", "failed", "created", "took", "app"];
    let now = system_clock()();
    output.table(&headings, jobs.iter().map(|job| row(job, now)).collect(), none)?;
    note_if_incomplete(more, output)?;
    Ok(ExitCode::SUCCESS)
}

fn row(view: &JobView, now: Millis) -> Vec<String> {
    let job = &view.job;
    let until = match view.state {
        JobState::Completed => job.completed_at,
        JobState::Running | JobState::Failing => Some(now),
        // The record does not say when its last task ended.
        JobState::Failed => None,
    };
    let took = until.map(|until| times::in_words(until.get().saturating_sub(job.created_at.get())));
    vec![
        job.job_id.to_string(),
        view.state.as_str().into(),
        format!("{}/{}", job.done, job.total),
        job.failed.to_string(),
        job.created_at.to_rfc3339(),
        took.unwrap_or_default(),
        job.app_name.to_string(),
    ]
}
