//! `ledgerline jobs`

use std::process::ExitCode;

use ledgerline_dispatch::JobView;
use ledgerline_event::{JobState, Millis};
use ledgerline_ledger::system_clock;

use crate::{args::JobsArgs, output::Output, target::Target, times};

pub(super) async fn run(target: &Target, args: JobsArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, dispatch) = (target.tenant()?, target.dispatch().await?);
    let state = args.state.map(Into::into);
    let mut jobs = Vec::new();
    let mut cursor = None;
    loop {
        let page = dispatch.jobs(tenant, state, args.limit.get() - jobs.len(), cursor.as_deref()).await?;
        jobs.extend(page.items);
        cursor = page.cursor;
        if cursor.is_none() || jobs.len() >= args.limit.get() {
            break;
        }
    }
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
    if cursor.is_some() {
        eprintln!("There are more: raise --limit.");
    }
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
