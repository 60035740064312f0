//! A task's processes are one group, so that they can be ended together.
//!
//! A process that starts its own session leaves the group, and the worker can no longer signal it.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::process::Command;

use super::processes;

/// How often to look whether a group has gone.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The group of a child. Whatever is left of it when this is dropped is killed.
#[derive(Debug)]
pub(super) struct Group(Option<Pid>);

impl Group {
    /// Lets a command begin a group of its own.
    pub(super) fn begin(command: &mut Command) {
        command.process_group(0).kill_on_drop(true);
    }

    /// The group that the process with this id began.
    pub(super) fn of(leader: u32) -> Self {
        Self(i32::try_from(leader).ok().and_then(Pid::from_raw))
    }

    /// Asks all processes to end.
    pub(super) fn terminate(&self) {
        if let Some(group) = self.0 {
            // The group may have no process left.
            let _ = kill_process_group(group, Signal::TERM);
        }
    }

    /// Kills all processes, and only once: the system may reuse the number for another group later.
    pub(super) fn kill(&mut self) {
        if let Some(group) = self.0.take() {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Waits until no process is left.
    pub(super) async fn gone(&self) {
        while self.is_there() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn is_there(&self) -> bool {
        let Some(group) = self.0.filter(|group| test_kill_process_group(*group).is_ok()) else {
            return false;
        };
        // The test call counts zombies, too, until a parent reaps them; many containers have no process that does.
        processes::any_alive(group.as_raw_nonzero().get().unsigned_abs()).unwrap_or(true)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
