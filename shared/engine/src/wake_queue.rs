//! Which parts of a run have to be polled again.
//!
//! The log wakes the workflow's code, and the code must then run until it waits before anything else happens. The world
//! (a response, a timer of the async runtime) wakes steps. If the engine passed the world's wakes on at once, they
//! would stand in the queues of combinators (`FuturesUnordered` polls in the order of wakes) between the wakes that the
//! log caused; a replay, which has no such wakes, might then issue its commands in another order. So the waker of a
//! step only adds the step's slot to this queue, and the execution forwards the wake once the code waits.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
};

use futures::task::AtomicWaker;

/// The wakes that the execution has not acted on. As a waker it wakes the workflow's code.
#[derive(Default)]
pub(crate) struct WakeQueue {
    code_woken: AtomicBool,
    woken_steps: Mutex<Vec<usize>>,
    /// Wakes the task that drives the execution.
    driver: AtomicWaker,
}

impl WakeQueue {
    /// The driver polls and needs no wake: drops its waker.
    pub(crate) fn begin_poll(&self) {
        drop(self.driver.take());
    }

    /// Registers the driver's waker, and wakes the driver at once if a wake came meanwhile. Not called if the code no
    /// longer runs.
    pub(crate) fn end_poll(&self, waker: &Waker) {
        self.driver.register(waker);
        if self.code_woken.load(Ordering::SeqCst) || !self.woken_steps().is_empty() {
            self.driver.wake();
        }
    }

    pub(crate) fn wake_code(&self) {
        self.code_woken.store(true, Ordering::SeqCst);
        self.driver.wake();
    }

    /// Whether the code was woken since the last call.
    pub(crate) fn take_code_wake(&self) -> bool {
        self.code_woken.swap(false, Ordering::SeqCst)
    }

    /// The slots of the steps that were woken since the last call.
    pub(crate) fn take_woken_steps(&self) -> Vec<usize> {
        std::mem::take(&mut *self.woken_steps())
    }

    fn woken_steps(&self) -> MutexGuard<'_, Vec<usize>> {
        self.woken_steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for WakeQueue {
    fn wake(self: Arc<Self>) {
        self.wake_code();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_code();
    }
}

/// The waker of one attempt at a step: it adds the step to the wake queue.
pub struct StepWaker {
    queue: Arc<WakeQueue>,
    slot: usize,
    woken: AtomicBool,
}

impl StepWaker {
    pub(crate) fn new(queue: Arc<WakeQueue>, slot: usize) -> Arc<Self> {
        Arc::new(Self { queue, slot, woken: AtomicBool::new(false) })
    }

    /// Call this before each poll of the step, so that a wake during the poll counts.
    pub fn reset(&self) {
        self.woken.store(false, Ordering::SeqCst);
    }
}

impl Wake for StepWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            self.queue.woken_steps().push(self.slot);
            self.queue.driver.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_step_is_queued_once_until_it_is_polled_again() {
        let queue = Arc::new(WakeQueue::default());
        let step = StepWaker::new(Arc::clone(&queue), 3);
        let waker = Waker::from(Arc::clone(&step));
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert_eq!(queue.take_woken_steps(), [3]);
        waker.wake_by_ref();
        assert!(queue.take_woken_steps().is_empty(), "it was not polled since");
        step.reset();
        waker.wake_by_ref();
        assert_eq!(queue.take_woken_steps(), [3]);
        assert!(!queue.take_code_wake(), "a step's wake does not wake the code");
    }

    #[test]
    fn a_wake_that_came_during_a_poll_wakes_the_driver_when_the_poll_ends() {
        let queue = Arc::new(WakeQueue::default());
        let driver = Arc::new(CountingWaker::default());
        let waker = Waker::from(Arc::clone(&driver));
        queue.begin_poll();
        queue.wake_code();
        queue.end_poll(&waker);
        assert_eq!(driver.0.load(Ordering::SeqCst), 1);
        assert!(queue.take_code_wake() && !queue.take_code_wake());
        queue.begin_poll();
        queue.wake_code();
        assert_eq!(driver.0.load(Ordering::SeqCst), 1, "no poll has ended since");
    }
}
