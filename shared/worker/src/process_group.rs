//! The processes of a task are one group, so that the worker can signal all of them together, see whether any is alive,
//! and add up their memory. State and memory come from Linux's `/proc`; on other systems they are unknown.
//!
//! A process that starts its own session leaves the group, and the worker can no longer signal it.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::process::Command;

/// How often to check whether a group has exited.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// The group of a child process. Dropping this kills the processes that are left in it.
#[derive(Debug)]
pub(super) struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// Makes the command start its process as the leader of a new group.
    pub(super) fn lead_new(command: &mut Command) {
        command.process_group(0).kill_on_drop(true);
    }

    /// The group whose leader has this process id.
    pub(super) fn of(leader: u32) -> Self {
        Self(i32::try_from(leader).ok().and_then(Pid::from_raw))
    }

    /// Sends SIGTERM to every process of the group.
    pub(super) fn terminate(&self) {
        if let Some(group) = self.0 {
            // The group may have no process left.
            let _ = kill_process_group(group, Signal::TERM);
        }
    }

    /// Sends SIGKILL to every process of the group, and only once: the system may reuse the number for another group
    /// later.
    pub(super) fn kill(&mut self) {
        if let Some(group) = self.0.take() {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Waits until no process of the group is alive.
    pub(super) async fn exited(&self) {
        while self.is_alive() {
            tokio::time::sleep(CHECK_EVERY).await;
        }
    }

    fn is_alive(&self) -> bool {
        let Some(group) = self.0.filter(|group| test_kill_process_group(*group).is_ok()) else {
            return false;
        };
        // The test call counts zombies, too, until a parent reaps them; many containers have no process that does.
        any_alive(group.as_raw_nonzero().get().unsigned_abs()).unwrap_or(true)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Resident bytes of all processes of a group together; 0 on systems without `/proc`. A page that several processes
/// share counts for each of them.
pub(super) fn resident_bytes(group: u32) -> u64 {
    let pages: u64 = members(group).map(|process| process.pages).sum();
    pages.saturating_mul(rustix::param::page_size() as u64)
}

/// Whether a process of the group is alive; a zombie is not. `None` on systems without `/proc`.
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
    fn a_process_name_with_spaces_and_brackets_does_not_shift_the_fields_of_its_stat_line() {
        let stat = "42 (a) (b 7) S 1 40 40 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 99 1000000 321 184467440737";
        assert_eq!(parse(stat), Some(Process { group: 40, state: 'S', pages: 321 }));
        assert_eq!(parse("42 (gone"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_group_has_the_memory_of_its_processes_and_none_when_all_are_dead() {
        use std::{
            os::unix::process::CommandExt,
            process::{Command, Stdio},
        };
        let mut child = Command::new("cat").stdin(Stdio::piped()).process_group(0).spawn().unwrap();
        let group = child.id();
        assert!(resident_bytes(group) > 0);
        assert_eq!(any_alive(group), Some(true));
        drop(child.stdin.take());
        // The child is dead, and stays a zombie until `wait` reaps it.
        while any_alive(group) == Some(true) {
            std::thread::yield_now();
        }
        assert_eq!(resident_bytes(group), 0);
        child.wait().unwrap();
        assert_eq!(any_alive(group), Some(false));
    }
}
