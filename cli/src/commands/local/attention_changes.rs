//! The terminal of a running local mode prints each problem that needs attention when it appears and when it is over.

use std::{collections::BTreeMap, time::Duration};

use ledgerline_event::Name;
use ledgerline_ledger::system_clock;
use ledgerline_local::{Level, Local, TENANT};
use ledgerline_stage::Note;
use serde_json::json;

use super::{super::attention::note_lines, BANNER};
use crate::output::Output;

/// How often local mode is checked.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// The line of each problem, by kind and subject.
type Notices = BTreeMap<(String, String), String>;

/// Prints problems that appear or are over, for ever.
pub(super) async fn show(local: &Local, output: Output) {
    let mut shown = Notices::new();
    loop {
        tokio::time::sleep(POLL_EVERY).await;
        let Some(now) = current_notices(local).await else { continue };
        for line in changes(&shown, &now) {
            match output.is_json() {
                true => BANNER.line(&json!({ "attention": line.trim() }).to_string()),
                false => BANNER.line(&line),
            }
        }
        shown = now;
    }
}

/// All problems of now; `None` if they cannot be read, which is logged.
async fn current_notices(local: &Local) -> Option<Notices> {
    let now = system_clock()();
    let mut shown = Notices::new();
    for finding in local.health(now).await {
        let level = match finding.level {
            Level::Note => "",
            Level::Degraded => "degraded: ",
            Level::Down => "DOWN: ",
        };
        let line = format!("  ! {level}{}: {}", finding.part, finding.reason);
        shown.insert(("health".to_owned(), finding.part), line);
    }
    let tenant = Name::new("tenant", TENANT).ok()?;
    let notes: Result<Vec<Note>, _> = async {
        let states = local.stage.drains.drainer_states(&tenant).await?;
        local.stage.attention.attention(&tenant, &states).await
    }
    .await;
    match notes {
        Ok(notes) => shown.extend(notes.iter().map(|note| {
            let about = (note.kind.label().to_owned(), note.subject.clone());
            (about, note_lines(note, now))
        })),
        Err(error) => {
            tracing::warn!(%error, "could not read what needs attention");
            return None;
        }
    }
    Some(shown)
}

/// The lines to print: problems that are new, and problems that are over.
fn changes(before: &Notices, now: &Notices) -> Vec<String> {
    let new = now.iter().filter(|(about, _)| !before.contains_key(*about)).map(|(_, line)| line.clone());
    let over = before.keys().filter(|about| !now.contains_key(*about));
    new.chain(over.map(|(kind, subject)| format!("  ✓ {kind} ({subject}): settled"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(subjects: &[&str]) -> Notices {
        let one = |subject: &&str| (("kind".to_owned(), (*subject).to_owned()), format!("! {subject}"));
        subjects.iter().map(one).collect()
    }

    #[test]
    fn a_problem_is_printed_when_it_appears_and_when_it_is_over() {
        assert_eq!(changes(&shown(&[]), &shown(&["a", "b"])), ["! a", "! b"]);
        assert!(changes(&shown(&["a"]), &shown(&["a"])).is_empty());
        assert_eq!(changes(&shown(&["a"]), &shown(&["b"])), ["! b", "  ✓ kind (a): settled"]);
    }
}
