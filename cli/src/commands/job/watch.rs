//! Watching a job until it ends: on a terminal the picture is drawn again in its place, elsewhere each change is a
//! line of its own. Only the job's own records are read, and nothing is changed.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    process::ExitCode,
    time::Duration,
};

use ledgerline_dispatch::{Dispatch, DispatchError, JobDetails, JobTaskDetails};
use ledgerline_event::{JobState, Millis, Name, TaskEvent, catalogue::TaskState};
use ledgerline_ledger::system_clock;
use serde::Serialize;

use super::view::{change, draw, elapsed, hint};
use crate::{
    commands::canvas::{Canvas, Screen},
    output::{Output, counted},
};

/// How often it looks, and how much longer it waits for each task that there is to look at.
const LOOK: Duration = Duration::from_millis(300);
const LOOK_PER_TASK: Duration = Duration::from_millis(1);
/// So many looks in a row may find no answer.
const UNANSWERED: u32 = 10;
/// A program that was ended by Ctrl-C.
pub(in crate::commands) const LEFT: u8 = 130;

/// What was just resumed: until its tasks begin anew, the job still looks as it did.
#[derive(Debug, Default)]
pub(in crate::commands) struct Resumed {
    /// The tasks, with the generation that failed.
    pub(super) failed: BTreeMap<Name, u32>,
    /// The job as it was before.
    pub(super) before: Option<JobDetails>,
}

/// What there was to see last.
#[derive(Default)]
struct Seen {
    tasks: HashMap<Name, Stamp>,
    hinted: bool,
    screen: Screen,
}

/// What makes a task worth another line.
type Stamp = (u32, Option<u32>, TaskState, bool);

/// A task as a line of JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Change<'a> {
    job_id: &'a Name,
    #[serde(flatten)]
    task: &'a JobTaskDetails,
}

/// Watches until the job ends; the exit code says how.
pub(in crate::commands) async fn watch(
    dispatch: &Dispatch,
    tenant: &Name,
    job_id: &str,
    resumed: Resumed,
    output: Output,
) -> anyhow::Result<ExitCode> {
    tokio::select! {
        ended = until_it_ends(dispatch, tenant, job_id, &resumed, output) => ended,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            eprintln!("\nThe job goes on. `job show {job_id} --watch` comes back to it.");
            Ok(ExitCode::from(LEFT))
        }
    }
}

async fn until_it_ends(
    dispatch: &Dispatch,
    tenant: &Name,
    job_id: &str,
    resumed: &Resumed,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let mut seen = Seen::default();
    // What has happened before is no change.
    resumed.before.iter().for_each(|before| drop(seen.changes(before)));
    let mut unanswered = 0;
    loop {
        let details = match dispatch.job(tenant, job_id).await {
            Ok(details) => details,
            // The job goes on without anybody who watches, and so may the watch without one answer.
            Err(DispatchError::Store(error)) if unanswered < UNANSWERED => {
                tracing::warn!(%error, "no answer; looking again");
                unanswered += 1;
                tokio::time::sleep(LOOK).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        unanswered = 0;
        let now = system_clock()();
        let canvas = if output.is_json() { None } else { Canvas::of_terminal() };
        match canvas {
            Some(canvas) => seen.screen.draw(draw(&details, now, &canvas))?,
            None => seen.tell(&details, now, output)?,
        }
        if let Some(state) = settled(&details, resumed) {
            match output.is_json() {
                true => output.json_line(&details.job)?,
                false => output.line(&conclusion(&details, state, now))?,
            }
            let completed = state == JobState::Completed;
            return Ok(if completed { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        let tasks = u32::try_from(details.tasks.len()).unwrap_or(u32::MAX);
        tokio::time::sleep(LOOK + LOOK_PER_TASK.saturating_mul(tasks)).await;
    }
}

/// The state that it has ended in. Between a task's end and the start of its children, and between a resume and what
/// it starts, a job is in a state that it does not stay in.
fn settled(details: &JobDetails, resumed: &Resumed) -> Option<JobState> {
    match details.job.state {
        JobState::Completed => return Some(JobState::Completed),
        JobState::Running | JobState::Failing => return None,
        JobState::Failed => {}
    }
    let all = u64::try_from(details.tasks.len()).is_ok_and(|count| count >= details.job.job.total.into());
    let completed = |task: &&JobTaskDetails| task.state == Some(TaskState::Completed);
    let completed: HashSet<&str> =
        details.tasks.iter().filter(completed).map(|task| task.task_id.as_str()).collect();
    let rests = |task: &JobTaskDetails| match task.state {
        Some(TaskState::Pending | TaskState::Processing) => false,
        Some(TaskState::Failed) => {
            let generation = task.summary.as_ref().map_or(1, |summary| summary.generation);
            resumed.failed.get(&task.task_id).is_none_or(|failed| generation > *failed)
        }
        Some(TaskState::Completed) => true,
        None => !task.depends_on.iter().all(|parent| completed.contains(parent.as_str())),
    };
    (all && details.tasks.iter().all(rests)).then_some(JobState::Failed)
}

fn conclusion(details: &JobDetails, state: JobState, now: Millis) -> String {
    let (job_id, took) = (&details.job.job.job_id, elapsed(details, now));
    if state == JobState::Completed {
        return format!("{job_id} is completed: {} in {took}", counted(details.job.job.total.into(), "task"));
    }
    let failed = details.tasks.iter().filter(|task| task.state == Some(TaskState::Failed));
    let failed: Vec<&str> = failed.map(|task| task.task_id.as_str()).collect();
    let (first, more) = failed.split_at(failed.len().min(5));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    format!(
        "{job_id} has failed at {}{more} after {took}. `job resume {job_id}` runs what failed once more.",
        first.join(", ")
    )
}

impl Seen {
    /// Says what has changed.
    fn tell(&mut self, details: &JobDetails, now: Millis, output: Output) -> anyhow::Result<()> {
        for task in self.changes(details) {
            match output.is_json() {
                true => output.json_line(&Change { job_id: &details.job.job.job_id, task })?,
                false => output.line(&change(task, details, now))?,
            }
        }
        if let Some(hint) = hint(details, now).filter(|_| !self.hinted) {
            eprintln!("{hint}");
            self.hinted = true;
        }
        Ok(())
    }

    /// The tasks that have changed, in the order in which they did.
    fn changes<'d>(&mut self, details: &'d JobDetails) -> Vec<&'d JobTaskDetails> {
        let mut changed = Vec::new();
        for task in &details.tasks {
            let Some(summary) = &task.summary else { continue };
            let tried_again = summary.last_event_type == TaskEvent::AttemptFailed;
            let stamp = (summary.generation, summary.attempt, summary.state, tried_again);
            if self.tasks.insert(task.task_id.clone(), stamp) != Some(stamp) {
                changed.push((summary.last_event_at, task));
            }
        }
        changed.sort_by_key(|(at, _)| *at);
        changed.into_iter().map(|(_, task)| task).collect()
    }
}

#[cfg(test)]
mod tests {
    use ledgerline_dispatch::{JobRecord, JobView};
    use serde_json::json;

    use super::*;

    const BEGIN: u64 = 1_767_453_739_000;

    /// Tasks by id: parents, state, and the generation.
    fn job(failed: u32, active: i64, tasks: &[(&str, &[&str], Option<&str>, u32)]) -> JobDetails {
        let record: JobRecord = serde_json::from_value(json!({
            "jobId": "j", "requestId": "j", "appName": "cli", "createdAt": BEGIN, "total": tasks.len(), "done": 0,
            "failed": failed, "active": active, "generation": 1, "createdBy": "evnt_1",
        }))
        .unwrap();
        let task = |(id, parents, state, generation): &(&str, &[&str], Option<&str>, u32)| {
            let summary = state.map(|state| {
                serde_json::from_value(json!({
                    "requestId": format!("j:{id}"), "state": state, "generation": generation, "enteredAt": BEGIN,
                    "lastEventAt": BEGIN + u64::from(*generation), "lastEventType": "Task Heartbeat",
                }))
                .unwrap()
            });
            let state = summary.as_ref().map(|summary: &ledgerline_event::TaskSummary| summary.state);
            JobTaskDetails {
                task_id: Name::new("taskId", *id).unwrap(),
                name: "n".into(),
                depends_on: parents.iter().map(|parent| (*parent).to_owned()).collect(),
                state,
                summary,
            }
        };
        JobDetails { job: JobView::from(record), tasks: tasks.iter().map(task).collect() }
    }

    #[test]
    fn a_job_has_failed_only_when_nothing_more_can_happen() {
        let none = Resumed::default();
        let tasks = |b: Option<&'static str>,
                     c: Option<&'static str>|
         -> [(&'static str, &'static [&'static str], Option<&'static str>, u32); 3] {
            [("a", &[], Some("failed"), 1), ("b", &[], b, 1), ("c", &["b"], c, 1)]
        };
        let settled = |failed, active, b, c| settled(&job(failed, active, &tasks(b, c)), &none);
        assert_eq!(settled(0, 1, Some("processing"), None), None);
        assert_eq!(settled(1, 1, Some("processing"), None), None, "it is failing");
        assert_eq!(settled(1, 0, Some("completed"), None), None, "c is about to start");
        assert_eq!(settled(1, 0, Some("completed"), Some("pending")), None, "c has started since");
        assert_eq!(settled(1, 0, Some("completed"), Some("completed")), Some(JobState::Failed));
        assert_eq!(settled(1, 0, Some("failed"), None), Some(JobState::Failed), "c waits for what failed");
    }

    #[test]
    fn a_resumed_job_has_not_failed_again_before_it_began() {
        let failed = |generation| job(1, 0, &[("a", &[], Some("failed"), generation)]);
        let resumed = Resumed { failed: [(Name::new("taskId", "a").unwrap(), 1)].into(), before: None };
        assert_eq!(settled(&failed(1), &resumed), None);
        assert_eq!(settled(&failed(2), &resumed), Some(JobState::Failed));
    }

    #[test]
    fn a_job_whose_tasks_are_not_all_there_yet_goes_on() {
        let mut details = job(1, 0, &[("a", &[], Some("failed"), 1)]);
        details.job.job.total = 2;
        assert_eq!(settled(&details, &Resumed::default()), None);
    }

    #[test]
    fn each_change_is_told_once_and_in_order() {
        let mut seen = Seen::default();
        let mut ids = |details: &JobDetails| -> Vec<String> {
            seen.changes(details).iter().map(|task| task.task_id.to_string()).collect()
        };
        let first = job(
            0,
            1,
            &[("a", &[], Some("pending"), 2), ("b", &[], Some("pending"), 1), ("c", &["a"], None, 1)],
        );
        assert_eq!(ids(&first), ["b", "a"], "as they happened; what has not begun is no change");
        assert!(ids(&first).is_empty());
        let next = job(
            0,
            1,
            &[("a", &[], Some("processing"), 2), ("b", &[], Some("pending"), 1), ("c", &["a"], None, 1)],
        );
        assert_eq!(ids(&next), ["a"]);
    }

    #[test]
    fn the_end_says_what_failed_and_what_to_do() {
        let now = Millis::try_from(BEGIN + 5_000).unwrap();
        let failed = job(1, 0, &[("a", &[], Some("failed"), 1), ("b", &["a"], None, 1)]);
        let said = conclusion(&failed, JobState::Failed, now);
        assert_eq!(said, "j has failed at a after 5s. `job resume j` runs what failed once more.");
    }
}
