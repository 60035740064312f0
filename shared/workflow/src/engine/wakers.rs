use std::task::Waker;

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

    /// Wakes those that are to be woken, and says whether there were any.
    pub(crate) fn release(self) -> bool {
        let any = !self.to_call.is_empty();
        self.to_call.into_iter().for_each(Waker::wake);
        any
    }
}
