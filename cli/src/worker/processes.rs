//! What the system tells about the processes of a group, by Linux's `/proc`. Elsewhere nothing is known.

/// Resident bytes of all processes of a group together; 0 where nothing is known. A page that several of them
/// share counts for each.
pub(super) fn rss(group: u32) -> u64 {
    let pages: u64 = members(group).map(|process| process.pages).sum();
    pages.saturating_mul(rustix::param::page_size() as u64)
}

/// Whether a process of the group does anything: the dead that only wait to be collected do not. `None` where
/// nothing is known.
pub(super) fn any_alive(group: u32) -> Option<bool> {
    cfg!(target_os = "linux").then(|| members(group).any(|process| !matches!(process.state, 'Z' | 'X')))
}

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    group: u32,
    state: char,
    pages: u64,
}

fn members(group: u32) -> impl Iterator<Item = Process> {
    let listed = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    listed
        .filter(|entry| entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit))
        // A process may be gone between being listed and being read.
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
        .filter_map(|stat| parse(&stat))
        .filter(move |process| process.group == group)
}

/// A line of `/proc/<pid>/stat`.
fn parse(stat: &str) -> Option<Process> {
    // The name may hold spaces and brackets; the third field begins after its last bracket.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let group = fields.nth(1)?.parse().ok()?;
    // Field 5 was the group, field 24 is the resident set.
    let pages = fields.nth(24 - 5 - 1)?.parse().ok()?;
    Some(Process { group, state, pages })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc_is_read_whatever_the_process_is_called() {
        let stat = "42 (a) (b 7) S 1 40 40 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 99 1000000 321 184467440737";
        assert_eq!(parse(stat), Some(Process { group: 40, state: 'S', pages: 321 }));
        assert_eq!(parse("42 (gone"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_group_has_the_memory_of_its_processes_and_none_when_they_are_dead() {
        use std::{
            os::unix::process::CommandExt,
            process::{Command, Stdio},
        };
        let mut child = Command::new("cat").stdin(Stdio::piped()).process_group(0).spawn().unwrap();
        let group = child.id();
        assert!(rss(group) > 0);
        assert_eq!(any_alive(group), Some(true));
        drop(child.stdin.take());
        // The child is dead, and stays a zombie until `wait` reaps it.
        while any_alive(group) == Some(true) {
            std::thread::yield_now();
        }
        assert_eq!(rss(group), 0);
        child.wait().unwrap();
        assert_eq!(any_alive(group), Some(false));
    }
}
