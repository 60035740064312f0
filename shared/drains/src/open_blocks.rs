//! The open blocks of one pass, as the drainer holds them in memory and writes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use ledgerline_event::{Millis, Name};
use ledgerline_ledger::Found;
use ledgerline_outbox::ComponentError;
use ledgerline_store::{
    Block, BlockWrites, Blocked, BlocksWritten, DrainState, Fault, Halted, LeaseWrite, Member, Oldest,
    OperatorRequest, ParkedStart, StoreError,
};

use crate::{Drains, block_retry::again_at, lease::Lease};

/// Starts that change in one transaction, which takes a hundred writes: up to four each.
pub(crate) const CHUNK: usize = 24;

/// Why the holder cannot go on.
pub(crate) enum Hindered {
    /// The lease has another holder.
    Lost,
    Trouble(ComponentError),
}

impl<E: Into<ComponentError>> From<E> for Hindered {
    fn from(error: E) -> Self {
        Self::Trouble(error.into())
    }
}

/// What becomes of the row among the parked starts when a member leaves its block.
pub(crate) enum Row {
    Deleted,
    /// It is parked already, or belongs to the block that the member has moved to.
    Kept,
    Parked(Box<ParkedStart>),
}

/// The open blocks.
pub(crate) struct OpenBlocks<'a> {
    pub(crate) drains: &'a Drains,
    pub(crate) tenant: Name,
    pub(crate) drainer: Name,
    fence: u64,
    pub(crate) rewinds: u64,
    /// Changes of subscriptions so far.
    pub(crate) version: u64,
    open: Mutex<BTreeMap<String, Block>>,
    /// Places of events that the drain stands or stood before.
    stood_before: Mutex<BTreeSet<String>>,
    pub(crate) requests: Vec<OperatorRequest>,
}

impl<'a> OpenBlocks<'a> {
    /// Reads the open blocks, if there are any.
    pub(crate) async fn load(drains: &'a Drains, lease: &Lease) -> Result<Self, ComponentError> {
        let (tenant, drainer) = (lease.tenant.clone(), lease.drainer.clone());
        let (mut open, mut requests) = (BTreeMap::new(), Vec::new());
        if lease.state.blocks > 0 {
            let stored = drains.blocks.open(&tenant, &drainer).await?;
            open.extend(stored.blocks.into_iter().map(|block| (block.name.clone(), block)));
            requests = stored.requests;
        }
        let state = &lease.state;
        let (fence, rewinds, version) = (state.fence, state.rewinds, state.subscriptions);
        let stood_before = Mutex::new(state.stood_before.clone());
        let open = Mutex::new(open);
        Ok(Self { drains, tenant, drainer, fence, rewinds, version, open, stood_before, requests })
    }

    pub(crate) fn stood_before(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.stood_before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes in the record that the drain stands before an event. The row comes after: so a row that nothing needs any
    /// more is found, whatever has happened since.
    pub(crate) async fn stand_before(&self, place: &str) -> Result<(), Hindered> {
        if self.stood_before().contains(place) {
            return Ok(());
        }
        let whose = (&self.tenant, &self.drainer);
        match self.drains.states.stand_before(whose, self.fence, place).await? {
            LeaseWrite::Done => {}
            LeaseWrite::Lost => return Err(Hindered::Lost),
        }
        self.stood_before().insert(place.to_owned());
        Ok(())
    }

    /// Takes up the event that the version before stands before: it says so by nothing but its id.
    pub(crate) async fn take_up(&self, state: &DrainState) -> Result<(), Hindered> {
        let Some(halted) = &state.halted_on_event_id else { return Ok(()) };
        let is_known = state.stood_before.iter().any(|place| place.ends_with(&format!("#{halted}")))
            || self.open().values().any(|block| block.head.event_id == *halted);
        if is_known {
            return Ok(());
        }
        match self.drains.timeline.find(&self.tenant, halted).await? {
            Found::At(place) => self.stand_before(&place).await,
            Found::Nowhere | Found::NotSince(_) => Ok(()),
        }
    }

    pub(crate) fn open(&self) -> MutexGuard<'_, BTreeMap<String, Block>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open block that a start belongs to.
    pub(crate) fn of(&self, subscription: &str, entity_type: &str, entity_id: &str) -> Option<String> {
        let open = self.open();
        Block::names(subscription, entity_type, entity_id).into_iter().find(|name| open.contains_key(name))
    }

    /// Names of the open blocks, the one with the oldest head first.
    pub(crate) fn oldest_first(&self) -> Vec<String> {
        let open = self.open();
        let mut heads: Vec<(&str, &str)> =
            open.values().map(|block| (block.head.event_place.as_str(), block.name.as_str())).collect();
        heads.sort_unstable();
        heads.into_iter().map(|(_, name)| name.to_owned()).collect()
    }

    pub(crate) fn oldest(&self) -> Blocked {
        let open = self.open();
        let oldest = open.values().min_by(|a, b| a.head.event_place.cmp(&b.head.event_place));
        let since = open.values().map(|block| block.first_failed_at).min();
        let (Some(oldest), Some(since)) = (oldest, since) else { return Blocked::Nothing };
        let halted = Halted {
            event_id: oldest.head.event_id.clone(),
            until: oldest.next_attempt_at,
            reason: oldest.reason.clone(),
        };
        Blocked::Oldest(Oldest { halted, event_at: oldest.head.event_time, since })
    }

    /// When the drainer has to come again for them.
    pub(crate) fn again_at(&self, now: Millis) -> Option<Millis> {
        self.open().values().map(|block| again_at(block, now)).min()
    }

    /// The first members of a block.
    pub(crate) async fn members(
        &self,
        name: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Member>, StoreError> {
        self.drains.blocks.members((&self.tenant, &self.drainer), name, after, limit).await
    }

    /// Takes members out of a block; `closes` if none is left. `requests` are what an operator asked for about them.
    pub(crate) async fn leave(
        &self,
        name: &str,
        leaving: Vec<(Member, Row)>,
        requests: &[OperatorRequest],
        closes: bool,
    ) -> Result<(), Hindered> {
        let mut writes = self.writes();
        for (member, row) in &leaving {
            writes.delete_member(name, member)?;
            match row {
                Row::Kept => {}
                Row::Deleted => writes.delete_parked(&member.start_id)?,
                Row::Parked(start) => writes.put_parked(start)?,
            }
        }
        for request in requests {
            writes.delete_request(&request.start_id)?;
        }
        if closes {
            writes.close_block(name)?;
        }
        if !writes.is_empty() {
            self.commit(writes).await?;
        }
        if closes {
            self.open().remove(name);
        }
        Ok(())
    }

    /// Writes the record of an open block.
    pub(crate) async fn rewrite(&self, block: Block) -> Result<(), Hindered> {
        let mut writes = self.writes();
        writes.replace_block(&block)?;
        self.commit(writes).await?;
        self.open().insert(block.name.clone(), block);
        Ok(())
    }

    /// Nothing to write yet.
    pub(crate) fn writes(&self) -> BlockWrites<'_> {
        self.drains.blocks.writes(&self.tenant, &self.drainer)
    }

    /// Writes on condition that the lease is still ours.
    pub(crate) async fn commit(&self, writes: BlockWrites<'_>) -> Result<(), Hindered> {
        match writes.commit(self.fence).await? {
            BlocksWritten::Done => Ok(()),
            BlocksWritten::LeaseLost => Err(Hindered::Lost),
            // What is in memory is not what is stored: the next pass reads it anew.
            BlocksWritten::Changed => {
                let (code, message) =
                    ("ConditionalCheckFailed", "the blocked starts are not as they were read");
                Err(StoreError::told("TransactWriteItems", Fault::Refused, code, message).into())
            }
        }
    }
}
