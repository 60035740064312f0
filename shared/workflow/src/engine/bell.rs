//! Who has to be polled again.
//!
//! The workflow's code is woken by what the log brings, and must then run to quietness before
//! anything else happens; a step is woken by the world. Were the world's wakings passed on at once,
//! they would stand in the queues of combinators (`FuturesUnordered` polls in the order of waking)
//! between those that the log caused, and a replay, which has no such wakings, might ask for
//! things in another order. So a step that is woken only leaves its number here, and the execution
//! passes it on when the code is quiet.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
};

use futures::task::AtomicWaker;

/// Rings when the code, or a step, has to be polled.
#[derive(Default)]
pub(crate) struct Bell {
    code: AtomicBool,
    steps: Mutex<Vec<usize>>,
    /// Wakes the task that drives the execution.
    driver: AtomicWaker,
}

impl Bell {
    /// The driver is polling and needs no waking: drops its waker.
    pub(crate) fn driver_came(&self) {
        drop(self.driver.take());
    }

    /// Registers the driver's waker, and wakes the driver at once if something has rung meanwhile. Does nothing
    /// if the code runs no more.
    pub(crate) fn driver_leaves(&self, waker: &Waker, running: bool) {
        if !running {
            return;
        }
        self.driver.register(waker);
        if self.code.load(Ordering::SeqCst) || !self.steps().is_empty() {
            self.driver.wake();
        }
    }

    pub(crate) fn ring_for_code(&self) {
        self.code.store(true, Ordering::SeqCst);
        self.driver.wake();
    }

    /// Whether the code was woken since this was last asked.
    pub(crate) fn rang_for_code(&self) -> bool {
        self.code.swap(false, Ordering::SeqCst)
    }

    /// The steps that were woken since this was last asked.
    pub(crate) fn rang_for_steps(&self) -> Vec<usize> {
        std::mem::take(&mut *self.steps())
    }

    fn steps(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring_for_code();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring_for_code();
    }
}

/// What the code of one attempt at a step is polled with.
pub(crate) struct StepBell {
    bell: Arc<Bell>,
    slot: usize,
    rang: AtomicBool,
}

impl StepBell {
    pub(crate) fn new(bell: Arc<Bell>, slot: usize) -> Arc<Self> {
        Arc::new(Self { bell, slot, rang: AtomicBool::new(false) })
    }

    /// To be called before the step is polled, so that a waking during the poll counts.
    pub(crate) fn heard(&self) {
        self.rang.store(false, Ordering::SeqCst);
    }
}

impl Wake for StepBell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rang.swap(true, Ordering::SeqCst) {
            self.bell.steps().push(self.slot);
            self.bell.driver.wake();
        }
    }
}
