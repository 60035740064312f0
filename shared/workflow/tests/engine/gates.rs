//! Steps that wait until a test lets them through, and a count of how often each was begun.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::poll_fn,
    sync::{Arc, Mutex},
    task::{Poll, Waker},
};

#[derive(Clone, Default)]
pub(crate) struct Gates(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    begun: BTreeMap<String, usize>,
    waiting: BTreeMap<String, Waker>,
    opened: BTreeSet<String>,
}

impl Gates {
    /// Notes that a step has begun; says how often it had begun before.
    pub(crate) fn begin(&self, step: &str) -> usize {
        let mut state = self.0.lock().unwrap();
        let begun = state.begun.entry(step.to_owned()).or_default();
        *begun += 1;
        *begun - 1
    }

    /// Waits until the step is let through; once for each time that it begins.
    pub(crate) async fn pass(&self, step: &str) {
        poll_fn(|cx| {
            let mut state = self.0.lock().unwrap();
            if state.opened.remove(step) {
                state.waiting.remove(step);
                return Poll::Ready(());
            }
            state.waiting.insert(step.to_owned(), cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    pub(crate) fn open(&self, step: &str) {
        let waker = {
            let mut state = self.0.lock().unwrap();
            state.opened.insert(step.to_owned());
            state.waiting.remove(step)
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The steps that wait.
    pub(crate) fn waiting(&self) -> Vec<String> {
        self.0.lock().unwrap().waiting.keys().cloned().collect()
    }

    /// How often the step was begun.
    pub(crate) fn begun(&self, step: &str) -> usize {
        self.0.lock().unwrap().begun.get(step).copied().unwrap_or(0)
    }

    pub(crate) fn all_begun(&self) -> BTreeMap<String, usize> {
        self.0.lock().unwrap().begun.clone()
    }
}
