//! CPU time, which other work on the machine disturbs less than the clock on the wall.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// What some work cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Time that passed.
    pub(crate) wall: Duration,
    /// Time that this thread was on a core.
    pub(crate) cpu: Duration,
}

/// Runs `work` on this thread and says what it cost.
pub(crate) fn measured<T>(work: impl FnOnce() -> T) -> (T, Cost) {
    let (wall, cpu) = (Instant::now(), of_thread());
    let done = work();
    (done, Cost { wall: wall.elapsed(), cpu: of_thread().saturating_sub(cpu) })
}

/// The CPU time of the calling thread.
fn of_thread() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// The CPU time of this process, all threads together.
pub(crate) fn of_process() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}
