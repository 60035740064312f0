//! Events above the watermark are handled at once but stay ahead of the cursor for some
//! seconds, and every pass meets them again. A process remembers which it has finished, so
//! that they cost nothing; claims are what makes it safe to forget.

use std::{
    collections::{HashMap, HashSet},
    sync::Mutex,
};

use ledgerline_event::Name;

use crate::lease::Lease;

/// More than this are forgotten: handling an event twice is only work.
const MAX_REMEMBERED: usize = 20_000;
const MAX_KEPT: usize = 1_000;

/// What this process has finished ahead of the cursors, by tenant and drainer.
#[derive(Default)]
pub(crate) struct RecentlyHandled {
    memory: Mutex<HashMap<(Name, Name), Memory>>,
}

/// What this process has finished ahead of a cursor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    fence: u64,
    subscriptions: u64,
    finished: HashSet<(u64, String)>,
}

impl Memory {
    pub(crate) fn has(&self, epoch: u64, sk: &str) -> bool {
        !self.finished.is_empty() && self.finished.contains(&(epoch, sk.to_owned()))
    }

    pub(crate) fn add(&mut self, epoch: u64, sk: String) {
        if self.finished.len() < MAX_REMEMBERED {
            self.finished.insert((epoch, sk));
        }
    }
}

impl RecentlyHandled {
    /// What this process remembers for this lease: nothing if another process held it in between, a rewind
    /// took it away, or a subscription has changed.
    pub(crate) fn remembered(&self, lease: &Lease) -> Memory {
        let state = &lease.state;
        let kept = self
            .memory
            .lock()
            .ok()
            .and_then(|mut kept| kept.remove(&(lease.tenant.clone(), lease.drainer.clone())));
        let fresh =
            Memory { fence: state.fence, subscriptions: state.subscriptions, finished: HashSet::new() };
        match kept {
            Some(memory)
                if (memory.fence == state.fence || memory.fence + 1 == state.fence)
                    && memory.subscriptions == state.subscriptions =>
            {
                Memory { finished: memory.finished, ..fresh }
            }
            _ => fresh,
        }
    }

    /// Keeps what lies ahead of the cursor.
    pub(crate) fn remember(&self, lease: &Lease, cursor: &str, mut memory: Memory) {
        memory.finished.retain(|(_, sk)| sk.as_str() > cursor);
        if let Ok(mut kept) = self.memory.lock() {
            if kept.len() >= MAX_KEPT {
                kept.clear();
            }
            kept.insert((lease.tenant.clone(), lease.drainer.clone()), memory);
        }
    }
}
