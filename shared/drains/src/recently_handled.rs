//! Events above the watermark are handled at once, but stay ahead of the cursor for some seconds, and every pass reads them
//! again. A process remembers which of them it has finished, so that it need not handle them twice. It may forget them at
//! any time: the claims of their starts keep a second handling from starting anything.

use std::{
    collections::{HashMap, HashSet},
    sync::Mutex,
};

use ledgerline_event::Name;

use crate::lease::Lease;

/// Remembered events of one drainer and tenant. More are not remembered: handling an event twice is only work.
const MAX_EVENTS: usize = 20_000;
/// Remembered pairs of drainer and tenant. When there are more, all are forgotten.
const MAX_DRAINERS: usize = 1_000;

/// What this process has finished ahead of the cursors, by tenant and drainer.
#[derive(Default)]
pub(crate) struct RecentlyHandled {
    memory: Mutex<HashMap<(Name, Name), Memory>>,
}

/// What this process has finished ahead of a cursor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    fence: u64,
    subscriptions_version: u64,
    finished: HashSet<(u64, String)>,
}

impl Memory {
    pub(crate) fn has(&self, epoch: u64, sk: &str) -> bool {
        !self.finished.is_empty() && self.finished.contains(&(epoch, sk.to_owned()))
    }

    pub(crate) fn add(&mut self, epoch: u64, sk: String) {
        if self.finished.len() < MAX_EVENTS {
            self.finished.insert((epoch, sk));
        }
    }
}

impl RecentlyHandled {
    /// Takes out what this process remembers for this lease: nothing if another process held the lease in between, if a
    /// rewind broke it, or if a subscription has changed. [`Self::remember`] puts it back.
    pub(crate) fn take(&self, lease: &Lease) -> Memory {
        let state = &lease.state;
        let kept = self
            .memory
            .lock()
            .ok()
            .and_then(|mut kept| kept.remove(&(lease.tenant.clone(), lease.drainer.clone())));
        let fresh = Memory {
            fence: state.fence,
            subscriptions_version: state.subscriptions_version,
            finished: HashSet::new(),
        };
        match kept {
            // The fence is the same in a further pass of one visit. In the next visit it is one higher, if no other process
            // acquired the lease in between.
            Some(memory)
                if (memory.fence == state.fence || memory.fence + 1 == state.fence)
                    && memory.subscriptions_version == state.subscriptions_version =>
            {
                Memory { finished: memory.finished, ..fresh }
            }
            _ => fresh,
        }
    }

    /// Remembers the events of `memory` that lie ahead of the cursor.
    pub(crate) fn remember(&self, lease: &Lease, cursor: &str, mut memory: Memory) {
        memory.finished.retain(|(_, sk)| sk.as_str() > cursor);
        if let Ok(mut kept) = self.memory.lock() {
            if kept.len() >= MAX_DRAINERS {
                kept.clear();
            }
            kept.insert((lease.tenant.clone(), lease.drainer.clone()), memory);
        }
    }
}
