use std::task::Waker;

use super::bell::Bell;

/// Wakers that were met under the engine's lock. Waking and dropping them may run any code, so both
/// happen after the lock is gone.
#[derive(Default)]
pub(crate) struct Wakers {
    to_call: Vec<Waker>,
    to_drop: Vec<Waker>,
}

impl Wakers {
    pub(crate) fn call(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        self.to_call.extend(wakers);
    }

    pub(crate) fn discard(&mut self, waker: Option<Waker>) {
        self.to_drop.extend(waker);
    }

    /// Wakes those that are to be woken, and says whether there were any. The code is polled then, even
    /// if a waker leads nowhere.
    pub(crate) fn release(self, bell: &Bell) -> bool {
        let any = !self.to_call.is_empty();
        for waker in self.to_call {
            waker.wake();
        }
        if any {
            bell.ring_for_code();
        }
        any
    }
}
