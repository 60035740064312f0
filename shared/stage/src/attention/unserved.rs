//! Work that nothing runs: tasks that no worker takes, runs that no runner executes.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{Millis, Name, RunState, TaskSummary, catalogue::TaskState};
use ledgerline_store::keys;

use super::{Note, NoteKind};
use crate::Attention;
use ledgerline_jobs::SummaryRow;
use ledgerline_outbox::ComponentError;
use ledgerline_runs::RunRecord;

/// Work that waits for less is on its way.
const ON_ITS_WAY_MS: u64 = 2 * 60_000;
/// Records of a list that are looked at.
const LOOKED_AT: i32 = 200;

/// Things of one name that wait.
struct Waiting {
    count: usize,
    since: Millis,
    why: Option<String>,
}

/// Groups what has waited for too long by its name.
fn by_name(
    waiting: impl IntoIterator<Item = (String, Millis, Option<String>)>,
    now: Millis,
) -> BTreeMap<String, Waiting> {
    let mut names: BTreeMap<String, Waiting> = BTreeMap::new();
    for (name, since, why) in waiting {
        if since.plus(ON_ITS_WAY_MS) > now {
            continue;
        }
        let one = names.entry(name).or_insert(Waiting { count: 0, since, why: None });
        one.count += 1;
        one.since = one.since.min(since);
        one.why = one.why.take().or(why);
    }
    names
}

impl Attention {
    /// Names of which tasks wait and none is being worked on.
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
                Note::counted(count, more, "task"),
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

    /// Workflows of which runs wait for a runner, or were refused by those that there are.
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
        let (running, many) = self
            .rows
            .oldest_listed::<RunRecord>(&keys::runs_in(tenant, RunState::Running.as_str()), LOOKED_AT)
            .await?;
        more |= many;
        // A run that waits for something is running too; one with an error could not go on.
        let stuck = running.into_iter().filter(|run| run.last_error.is_some());
        let waiting = pending.into_iter().chain(stuck).filter(|run| !run.external && !run.is_held(now));
        let names = by_name(waiting.map(|run| (run.workflow_name, run.created_at, run.last_error)), now);
        let note = |(name, Waiting { count, since, why }): (String, Waiting)| Note {
            message: match why {
                Some(why) => format!("{} of `{name}` cannot go on: {why}", Note::counted(count, more, "run")),
                None => format!(
                    "{} of `{name}` and no runner executes {}",
                    Note::counted(count, more, "run"),
                    if count == 1 && !more { "it" } else { "them" }
                ),
            },
            kind: NoteKind::NoRunner,
            subject: name,
            count,
            at_least: more,
            since: Some(since),
            next: command("runs --state pending"),
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
    fn what_waits_for_a_moment_is_on_its_way_and_the_rest_is_grouped_by_name() {
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
        let Waiting { count, since, why } = &names["a"];
        assert_eq!((*count, *since, why.as_deref()), (2, at(0), Some("refused")));
    }
}
