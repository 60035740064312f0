use std::task::Waker;

/// Wakers that were collected under the engine's lock. Calling or dropping one may run any code, so both happen after
/// the lock is released.
#[derive(Default)]
pub(crate) struct Wakers {
    to_call: Vec<Waker>,
    to_drop: Vec<Waker>,
}

impl Wakers {
    pub(crate) fn call_later(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        self.to_call.extend(wakers);
    }

    pub(crate) fn drop_later(&mut self, waker: Option<Waker>) {
        self.to_drop.extend(waker);
    }

    /// Calls the wakers that are to be called, drops the others, and says whether it called any.
    pub(crate) fn release(self) -> bool {
        let any = !self.to_call.is_empty();
        self.to_call.into_iter().for_each(Waker::wake);
        any
    }
}
