//! The rules of a subscription's glob, and the event types that it reaches.
//!
//! The system emits many events itself (a heartbeat every few seconds), and a workflow that they start emits more. A glob
//! reaches the system's events only if it spells out how their types begin: `*` means all events of the business, and
//! starts no storm.

use ledgerline_event::{Name, glob::matches};

/// The longest glob, in bytes.
pub const GLOB_MAX: usize = 256;

/// The prefixes of the types of the system's own events.
const RESERVED: [&str; 7] = ["Task ", "Job ", "run_", "step_", "hook_", "wait_", "workflow.dispatch_"];

/// The reserved prefix of `event_type`, if it is one of the system's own types.
pub fn reserved_beginning(event_type: &str) -> Option<&'static str> {
    RESERVED.into_iter().find(|beginning| event_type.starts_with(beginning))
}

/// The text of a glob before its first wildcard.
pub(crate) fn stem(glob: &str) -> &str {
    &glob[..glob.find(['*', '?']).unwrap_or(glob.len())]
}

/// Whether a glob reaches an event type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The glob matches.
    Reached,
    /// The glob does not match.
    Missed,
    /// The glob matches but does not spell out this prefix of the system's own types.
    Reserved(&'static str),
}

/// Whether `glob` reaches `event_type`.
pub(crate) fn reach(glob: &str, event_type: &str) -> Reach {
    match reserved_beginning(event_type) {
        _ if !matches(glob, event_type) => Reach::Missed,
        Some(beginning) if !stem(glob).starts_with(beginning) => Reach::Reserved(beginning),
        _ => Reach::Reached,
    }
}

/// The error in `glob` and its position, if there is one.
pub(crate) fn fault(glob: &str) -> Option<String> {
    if glob.is_empty() {
        return Some("is empty; `*` matches every event type but the system's own".into());
    }
    if glob.len() > GLOB_MAX {
        return Some(format!("has {} bytes; at most {GLOB_MAX} are allowed", glob.len()));
    }
    let wrong = glob.chars().enumerate().find_map(|(at, c)| Some((at + 1, complaint(c)?)));
    if let Some((position, complaint)) = wrong {
        return Some(format!("{glob:?} has {complaint} at position {position}"));
    }
    let edge = if glob.starts_with(' ') { "begins" } else { "ends" };
    (glob.trim() != glob).then(|| format!("{glob:?} {edge} with a space"))
}

/// Why no event type contains `c`: the rule for one character of a [`Name`].
fn complaint(c: char) -> Option<&'static str> {
    match Name::new("eventType", format!("x{c}x")) {
        Ok(_) => None,
        Err(_) if c == '#' => Some("a '#', which no event type has,"),
        Err(_) => Some("an invisible character"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_says_where_it_is() {
        for (glob, expected) in [
            ("", "is empty"),
            ("pri\u{200b}ce.*", r#""pri\u{200b}ce.*" has an invisible character at position 4"#),
            ("größe\t*", r#""größe\t*" has an invisible character at position 6"#),
            ("a#*", r#""a#*" has a '#', which no event type has, at position 2"#),
            (" a*", r#"" a*" begins with a space"#),
            ("a* ", r#""a* " ends with a space"#),
            (&"x".repeat(257), "has 257 bytes; at most 256 are allowed"),
        ] {
            let fault = fault(glob).unwrap_or_default();
            assert!(fault.contains(expected), "{glob:?}: {fault}");
        }
        for glob in ["*", "?", "ar.*", "Task *", "größe.?", "[a]", "a\\b", &"x".repeat(256)] {
            assert_eq!(fault(glob), None, "{glob}");
        }
    }

    #[test]
    fn the_systems_own_events_are_reached_by_globs_that_spell_out_their_beginning() {
        use Reach::{Missed, Reached, Reserved};
        for (glob, event_type, expected) in [
            ("*", "Task Completed", Reserved("Task ")),
            ("Task*", "Task Completed", Reserved("Task ")),
            ("Task *", "Task Completed", Reached),
            ("Task Completed", "Task Completed", Reached),
            ("Task Comp*", "Task Completed", Reached),
            ("Task Failed", "Task Completed", Missed),
            ("?ask *", "Task Completed", Reserved("Task ")),
            ("Task*", "Tasks counted", Reached),
            ("workflow.*", "workflow.dispatch_failed", Reserved("workflow.dispatch_")),
            ("workflow.dispatch_*", "workflow.dispatch_failed", Reached),
            ("workflow.*", "workflow.started", Reached),
            ("step_*", "step_completed", Reached),
            ("s*", "step_completed", Reserved("step_")),
            ("run*", "running.late", Reached),
        ] {
            assert_eq!(reach(glob, event_type), expected, "{glob} ~ {event_type}");
        }
    }
}
