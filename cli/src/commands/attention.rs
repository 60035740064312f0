//! Prints a note about something that needs an operator's attention.

use ledgerline_event::Millis;
use ledgerline_stage::Note;

use crate::{output::on_one_line, times};

/// A reason of a failing start may be long.
const MESSAGE_CHARS: usize = 300;

/// A note on two lines: the problem with its age, and the command that shows more.
pub(super) fn note_lines(note: &Note, now: Millis) -> String {
    let since = note.since.map(|since| now.get().saturating_sub(since.get()));
    let since = since.map_or_else(String::new, |ms| format!(" (for {})", times::in_words(ms)));
    let next = note.next.as_ref().map_or_else(String::new, |next| format!("\n      {next}"));
    let message = on_one_line(&note.message, MESSAGE_CHARS);
    format!("  ! {}: {message}{since}{next}", note.kind.label())
}

#[cfg(test)]
mod tests {
    use ledgerline_stage::NoteKind;

    use super::*;

    #[test]
    fn a_note_says_what_is_wrong_since_when_and_where_to_look() {
        let now = Millis::try_from(1_767_453_739_640).unwrap();
        let note = Note {
            kind: NoteKind::NoWorker,
            subject: "reprice".into(),
            count: 2,
            at_least: false,
            since: Some(now.minus(150_000)),
            message: "2 tasks `reprice` and no worker takes them".into(),
            next: Some("ledgerline --local tasks --state pending".into()),
        };
        assert_eq!(
            note_lines(&note, now),
            "  ! no worker: 2 tasks `reprice` and no worker takes them (for 2m 30s)\n      \
             ledgerline --local tasks --state pending"
        );
    }
}
