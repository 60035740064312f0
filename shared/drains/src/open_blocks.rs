//! The open blocks of one pass, as the drainer holds them in memory and writes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use ledgerline_event::{Millis, Name};
use ledgerline_ledger::Found;
use ledgerline_outbox::ComponentError;
use ledgerline_store::{
    Block, BlockTransaction, Blocked, BlocksWritten, DrainState, Fault, Halted, LeaseWrite, Member, Oldest,
    OperatorRequest, ParkedStart, StoreError,
};

use crate::{Drains, block_retry::next_retry_at, lease::Lease};

/// A transaction takes a hundred writes: 24 starts × at most 4 writes < 100.
pub(crate) const MAX_STARTS_PER_TRANSACTION: usize = 24;

/// Why a change of blocks failed.
pub(crate) enum BlockError {
    /// The lease has another holder: nothing is written.
    LeaseLost,
    /// A service did not do its part.
    Failed(ComponentError),
}

impl<E: Into<ComponentError>> From<E> for BlockError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// What becomes of the row among the parked starts when a member leaves its block.
pub(crate) enum ParkedRowChange {
    /// It is deleted: nothing is left to do about the start.
    Delete,
    /// It stays: the start is parked already, or waits in the block that the member has moved to.
    Keep,
    /// It is replaced by this one: the start is parked.
    Put(Box<ParkedStart>),
}

/// The open blocks.
pub(crate) struct OpenBlocks<'a> {
    pub(crate) drains: &'a Drains,
    pub(crate) tenant: Name,
    pub(crate) drainer: Name,
    fence: u64,
    pub(crate) rewinds: u64,
    /// The version of the drainer's subscriptions.
    pub(crate) version: u64,
    open: Mutex<BTreeMap<String, Block>>,
    /// Places of the events that the drain has halted at.
    halted_at: Mutex<BTreeSet<String>>,
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
        let (fence, rewinds, version) = (state.fence, state.rewinds, state.subscriptions_version);
        let halted_at = Mutex::new(state.halted_at.clone());
        let open = Mutex::new(open);
        Ok(Self { drains, tenant, drainer, fence, rewinds, version, open, halted_at, requests })
    }

    pub(crate) fn halted_at(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.halted_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records in the drain state that the drain halts at an event. Recorded before the parked-start row, so that an orphaned
    /// row can be found and deleted.
    pub(crate) async fn record_halt(&self, place: &str) -> Result<(), BlockError> {
        if self.halted_at().contains(place) {
            return Ok(());
        }
        let drain_key = (&self.tenant, &self.drainer);
        match self.drains.states.record_halt(drain_key, self.fence, place).await? {
            LeaseWrite::Done => {}
            LeaseWrite::Lost => return Err(BlockError::LeaseLost),
        }
        self.halted_at().insert(place.to_owned());
        Ok(())
    }

    /// Migrates the halt of versions before 0.1.0, which store only the event's id.
    pub(crate) async fn migrate_halt(&self, state: &DrainState) -> Result<(), BlockError> {
        let Some(halted) = &state.halted_on_event_id else { return Ok(()) };
        let is_known = state.halted_at.iter().any(|place| place.ends_with(&format!("#{halted}")))
            || self.open().values().any(|block| block.head.event_id == *halted);
        if is_known {
            return Ok(());
        }
        match self.drains.timeline.find(&self.tenant, halted).await? {
            Found::At(place) => self.record_halt(&place).await,
            Found::Nowhere | Found::NotReached(_) => Ok(()),
        }
    }

    pub(crate) fn open(&self) -> MutexGuard<'_, BTreeMap<String, Block>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the open block that a start belongs to, if there is one.
    pub(crate) fn block_of(&self, subscription: &str, entity_type: &str, entity_id: &str) -> Option<String> {
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

    /// When the drainer has to try the next of them again.
    pub(crate) fn next_retry_at(&self, now: Millis) -> Option<Millis> {
        self.open().values().map(|block| next_retry_at(block, now)).min()
    }

    /// At most `limit` members of a block, in order, from the place `from` on.
    pub(crate) async fn members(
        &self,
        name: &str,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Member>, StoreError> {
        self.drains.blocks.members((&self.tenant, &self.drainer), name, from, limit).await
    }

    /// Removes members from a block.
    pub(crate) async fn remove_members(
        &self,
        name: &str,
        leaving: Vec<(Member, ParkedRowChange)>,
    ) -> Result<(), BlockError> {
        self.remove_members_and_requests(name, leaving, &[]).await
    }

    /// Deletes requests that an operator left.
    pub(crate) async fn delete_requests(&self, requests: &[OperatorRequest]) -> Result<(), BlockError> {
        self.remove_members_and_requests("", Vec::new(), requests).await
    }

    /// Removes members from a block together with the requests that an operator left about them.
    pub(crate) async fn remove_members_and_requests(
        &self,
        name: &str,
        leaving: Vec<(Member, ParkedRowChange)>,
        requests: &[OperatorRequest],
    ) -> Result<(), BlockError> {
        let mut transaction = self.begin_transaction();
        for (member, row) in &leaving {
            transaction.delete_member(name, member)?;
            match row {
                ParkedRowChange::Keep => {}
                ParkedRowChange::Delete => transaction.delete_parked(&member.start_id)?,
                ParkedRowChange::Put(start) => transaction.put_parked(start)?,
            }
        }
        for request in requests {
            transaction.delete_request(&request.start_id)?;
        }
        if !transaction.is_empty() {
            self.commit(transaction).await?;
        }
        Ok(())
    }

    /// Closes a block that has no members any more.
    pub(crate) async fn close_block(&self, name: &str) -> Result<(), BlockError> {
        let mut transaction = self.begin_transaction();
        transaction.close_block(name)?;
        self.commit(transaction).await?;
        self.open().remove(name);
        Ok(())
    }

    /// Replaces the record of an open block.
    pub(crate) async fn replace_block(&self, block: Block) -> Result<(), BlockError> {
        let mut transaction = self.begin_transaction();
        transaction.replace_block(&block)?;
        self.commit(transaction).await?;
        self.open().insert(block.name.clone(), block);
        Ok(())
    }

    /// A transaction with no writes yet.
    pub(crate) fn begin_transaction(&self) -> BlockTransaction<'_> {
        self.drains.blocks.begin_transaction(&self.tenant, &self.drainer)
    }

    /// Commits a transaction on condition that this visit still holds the lease.
    pub(crate) async fn commit(&self, transaction: BlockTransaction<'_>) -> Result<(), BlockError> {
        match transaction.commit(self.fence).await? {
            BlocksWritten::Done => Ok(()),
            BlocksWritten::LeaseLost => Err(BlockError::LeaseLost),
            // What is in memory is not what is stored: the next pass reads it anew.
            BlocksWritten::Changed => {
                let (code, message) =
                    ("ConditionalCheckFailed", "the blocked starts are not as they were read");
                Err(StoreError::told("TransactWriteItems", Fault::ConditionFailed, code, message).into())
            }
        }
    }
}
