//! What the terminal of local mode says while it runs: what needs attention when that begins, and when it is over.

use std::{collections::BTreeMap, time::Duration};

use ledgerline_dispatch::Note;
use ledgerline_event::Name;
use ledgerline_ledger::{control::ControlTable, system_clock};
use producer_api::Level;
use serde_json::json;

use super::{super::attention::lines, BANNER};
use crate::{
    local::{Local, TENANT},
    output::Output,
};

/// How often it is looked at.
const EVERY: Duration = Duration::from_secs(5);

/// What is wrong, by what it is about: the line that says so.
type Shown = BTreeMap<(String, String), String>;

/// Shows what begins and what is over, for ever.
pub(super) async fn show(local: &Local, output: Output) {
    let mut shown = Shown::new();
    loop {
        tokio::time::sleep(EVERY).await;
        let Some(now) = look(local).await else { continue };
        for line in changes(&shown, &now) {
            match output.is_json() {
                true => BANNER.line(&json!({ "attention": line.trim() }).to_string()),
                false => BANNER.line(&line),
            }
        }
        shown = now;
    }
}

/// Everything that is wrong now; `None` if that cannot be said, and the log says why.
async fn look(local: &Local) -> Option<Shown> {
    let now = system_clock()();
    let control = ControlTable::new(local.clients.dynamo.clone(), &local.names.control_table);
    let mut shown = Shown::new();
    for finding in local.health.report(&control, now).await.findings {
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
        let states = local.dispatch.drainer_states(&tenant).await?;
        local.dispatch.attention(&tenant, &states).await
    }
    .await;
    match notes {
        Ok(notes) => shown.extend(notes.iter().map(|note| {
            let about = (note.kind.label().to_owned(), note.subject.clone());
            (about, lines(note, now))
        })),
        Err(error) => {
            tracing::warn!(%error, "what needs attention cannot be read");
            return None;
        }
    }
    Some(shown)
}

/// What to say: what was not wrong before, and what is not wrong any more.
fn changes(before: &Shown, now: &Shown) -> Vec<String> {
    let new = now.iter().filter(|(about, _)| !before.contains_key(*about)).map(|(_, line)| line.clone());
    let over = before.keys().filter(|about| !now.contains_key(*about));
    new.chain(over.map(|(kind, subject)| format!("  ✓ {kind} ({subject}): settled"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(subjects: &[&str]) -> Shown {
        let one = |subject: &&str| (("kind".to_owned(), (*subject).to_owned()), format!("! {subject}"));
        subjects.iter().map(one).collect()
    }

    #[test]
    fn each_thing_is_said_when_it_begins_and_when_it_is_over() {
        assert_eq!(changes(&shown(&[]), &shown(&["a", "b"])), ["! a", "! b"]);
        assert!(changes(&shown(&["a"]), &shown(&["a"])).is_empty());
        assert_eq!(changes(&shown(&["a"]), &shown(&["b"])), ["! b", "  ✓ kind (a): settled"]);
    }
}
