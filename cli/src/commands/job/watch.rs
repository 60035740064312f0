//! Watching a job until it ends: on a terminal the picture is drawn again in its place, elsewhere each change is a
//! line of its own. Only the job's own records are read, and nothing is changed.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    process::ExitCode,
    time::Duration,
};

use ledgerline_event::{JobState, Millis, Name, TaskEvent, catalogue::TaskState};
use ledgerline_jobs::{JobDetails, JobTaskDetails};
use ledgerline_ledger::system_clock;
use ledgerline_stage::Stage;
use serde::Serialize;

use super::view::{change_line, draw, elapsed, hint};
use crate::{
    commands::{
        canvas::{Canvas, Screen},
        watching::{FailedPolls, until_interrupted},
    },
    output::{Output, counted},
};

/// How often the watch polls, and how much longer it waits for each task of the job.
const POLL_EVERY: Duration = Duration::from_millis(300);
const POLL_EVERY_PER_TASK: Duration = Duration::from_millis(1);

/// A resume that just happened: until its tasks run again, the job still shows the old failures.
#[derive(Debug, Default)]
pub(in crate::commands) struct Resumed {
    /// The tasks, with the generation that failed.
    pub(super) failed: BTreeMap<Name, u32>,
    /// The job before the resume.
    pub(super) before: Option<JobDetails>,
}

/// What the watch has shown.
#[derive(Default)]
struct JobWatch {
    tasks: HashMap<Name, Stamp>,
    hinted: bool,
    screen: Screen,
}

/// A change of any of these gets another line: generation, attempt, state, and whether the attempt has failed.
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
    stage: &Stage,
    tenant: &Name,
    job_id: &str,
    resumed: Resumed,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let how_to_return = format!("The job goes on. `job show {job_id} --watch` comes back to it.");
    until_interrupted(Box::pin(watch_until_ended(stage, tenant, job_id, &resumed, output)), how_to_return)
        .await
}

async fn watch_until_ended(
    stage: &Stage,
    tenant: &Name,
    job_id: &str,
    resumed: &Resumed,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let mut watched = JobWatch::default();
    // What happened before the resume is not shown as a change.
    resumed.before.iter().for_each(|before| drop(watched.changes(before)));
    let mut failed_polls = FailedPolls::default();
    loop {
        let answer = stage.jobs.job(tenant, job_id).await;
        let Some(details) = failed_polls.tolerate(answer)? else {
            tokio::time::sleep(POLL_EVERY).await;
            continue;
        };
        let now = system_clock()();
        let canvas = if output.is_json() { None } else { Canvas::of_terminal() };
        match canvas {
            Some(canvas) => watched.screen.draw(draw(&details, now, &canvas))?,
            None => watched.print_changes(&details, now, output)?,
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
        tokio::time::sleep(POLL_EVERY + POLL_EVERY_PER_TASK.saturating_mul(tasks)).await;
    }
}

/// The state in which the job has ended, if it has. Between the end of a task and the start of its children, and between a
/// resume and the tasks that it starts, a job can be `failed` and still go on.
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

impl JobWatch {
    /// Prints what has changed.
    fn print_changes(&mut self, details: &JobDetails, now: Millis, output: Output) -> anyhow::Result<()> {
        for task in self.changes(details) {
            match output.is_json() {
                true => output.json_line(&Change { job_id: &details.job.job.job_id, task })?,
                false => output.line(&change_line(task, details, now))?,
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
    use ledgerline_jobs::{JobRecord, JobView};
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
        let mut watched = JobWatch::default();
        let mut ids = |details: &JobDetails| -> Vec<String> {
            watched.changes(details).iter().map(|task| task.task_id.to_string()).collect()
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
