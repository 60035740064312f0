//! Work that nothing runs: tasks that no worker takes, runs that no runner executes.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{Millis, Name, RunState, TaskSummary, catalogue::TaskState};
use ledgerline_store::keys;

use super::{Note, NoteKind, Precision};
use crate::Attention;
use ledgerline_jobs::SummaryRow;
use ledgerline_outbox::ComponentError;
use ledgerline_runs::RunRecord;

/// Work that has waited for less than this is not reported.
const REPORT_AFTER_MS: u64 = 2 * 60_000;
/// The most records that are read of a list.
const LOOKED_AT: i32 = 200;

/// Tasks of one name, or runs of one workflow, that have waited for too long.
struct Waiting {
    count: usize,
    since: Millis,
    last_error: Option<String>,
}

/// Groups by name what has waited for too long.
fn by_name(
    waiting: impl IntoIterator<Item = (String, Millis, Option<String>)>,
    now: Millis,
) -> BTreeMap<String, Waiting> {
    let mut names: BTreeMap<String, Waiting> = BTreeMap::new();
    for (name, since, last_error) in waiting {
        if since.plus(REPORT_AFTER_MS) > now {
            continue;
        }
        let one = names.entry(name).or_insert(Waiting { count: 0, since, last_error: None });
        one.count += 1;
        one.since = one.since.min(since);
        one.last_error = one.last_error.take().or(last_error);
    }
    names
}

impl Attention {
    /// Task names that have pending tasks and none processing.
    pub(super) async fn untaken_tasks(
        &self,
        tenant: &Name,
        command: &impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Note>, ComponentError> {
        let (rows, more) = self
            .rows
            .oldest_listed::<SummaryRow>(&keys::tasks_in(tenant, TaskState::Pending.as_str()), LOOKED_AT)
            .await?;
        let tasks = rows.iter().filter_map(SummaryRow::summary);
        let mut names =
            by_name(tasks.map(|task| (name_of(&task), task.entered_at, None)), self.emitter.now());
        if !names.is_empty() {
            let processing = keys::tasks_in(tenant, TaskState::Processing.as_str());
            let (rows, _) = self.rows.oldest_listed::<SummaryRow>(&processing, LOOKED_AT).await?;
            let taken: BTreeSet<String> =
                rows.iter().filter_map(SummaryRow::summary).map(|task| name_of(&task)).collect();
            names.retain(|name, _| !taken.contains(name));
        }
        let note = |(name, Waiting { count, since, .. }): (String, Waiting)| Note {
            message: format!(
                "{} `{name}` and no worker takes {}",
                Note::counted(count, Precision::at_least_if(more), "task"),
                if count == 1 && !more { "it" } else { "them" }
            ),
            kind: NoteKind::NoWorker,
            subject: name,
            count,
            at_least: more,
            since: Some(since),
            next: command("tasks --state pending"),
        };
        Ok(names.into_iter().map(note).collect())
    }

    /// Workflows with runs that no runner has begun, or whose last visit failed or was refused.
    pub(super) async fn unexecuted_runs(
        &self,
        tenant: &Name,
        command: &impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Note>, ComponentError> {
        let now = self.emitter.now();
        let (pending, mut more) = self
            .rows
            .oldest_listed::<RunRecord>(&keys::runs_in(tenant, RunState::Pending.as_str()), LOOKED_AT)
            .await?;
        let (running, more_running) = self
            .rows
            .oldest_listed::<RunRecord>(&keys::runs_in(tenant, RunState::Running.as_str()), LOOKED_AT)
            .await?;
        more |= more_running;
        // A run in state `running` may only wait for an event. One with an error is stuck: its last visit failed.
        let stuck: Vec<RunRecord> = running.into_iter().filter(|run| run.last_error.is_some()).collect();
        let begun: BTreeSet<String> = stuck.iter().map(|run| run.workflow_name.clone()).collect();
        let waiting = pending.into_iter().chain(stuck).filter(|run| !run.external && !run.is_held(now));
        let names = by_name(waiting.map(|run| (run.workflow_name, run.created_at, run.last_error)), now);
        let note = |(name, Waiting { count, since, last_error }): (String, Waiting)| Note {
            message: match last_error {
                Some(last_error) => format!(
                    "{} of `{name}` cannot go on: {last_error}",
                    Note::counted(count, Precision::at_least_if(more), "run")
                ),
                None => format!(
                    "{} of `{name}` and no runner executes {}",
                    Note::counted(count, Precision::at_least_if(more), "run"),
                    if count == 1 && !more { "it" } else { "them" }
                ),
            },
            kind: NoteKind::NoRunner,
            next: command(if begun.contains(&name) {
                "runs --state running"
            } else {
                "runs --state pending"
            }),
            subject: name,
            count,
            at_least: more,
            since: Some(since),
        };
        Ok(names.into_iter().map(note).collect())
    }
}

fn name_of(task: &TaskSummary) -> String {
    task.name.clone().unwrap_or_else(|| "(no name)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Millis {
        Millis::try_from(1_767_453_000_000 + ms).unwrap()
    }

    #[test]
    fn what_has_waited_for_a_moment_is_not_reported_and_the_rest_is_grouped_by_name() {
        let now = at(10 * 60_000);
        let names = by_name(
            [
                ("a".to_owned(), at(60_000), None),
                ("a".to_owned(), at(0), Some("refused".to_owned())),
                ("a".to_owned(), at(9 * 60_000), None),
                ("b".to_owned(), at(9 * 60_000), None),
            ],
            now,
        );
        assert_eq!(names.keys().collect::<Vec<_>>(), ["a"]);
        let Waiting { count, since, last_error } = &names["a"];
        assert_eq!((*count, *since, last_error.as_deref()), (2, at(0), Some("refused")));
    }
}
