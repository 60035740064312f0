//! Blocks: a start that failed for a passing reason, and the later starts that wait behind it.
//!
//! The record of a block says how often the first of them was tried and when it is tried again; the members
//! have rows of their own, in the order in which they joined. Operators leave requests about starts beside the blocks.
//! Every write is one transaction with a condition on the fence of the drain state, so a holder that slept past its
//! lease changes nothing. The state counts the open blocks in the same transactions: a tenant without any pays
//! no request for them.

use aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem};
use ledgerline_event::{Millis, Name, Seconds};
use serde::{Deserialize, Serialize};

use crate::drain_states::{LEASE_IS_HELD, update_item};
use crate::{
    Cancelled, ControlTable, ParkedStart, RequestRetry, RowBefore, StoreError, back_off, build_error,
    cancelled, keys, number, parked_starts, read, text,
};

/// Why a start fails, as long as that may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// The workflow type is not registered.
    Unregistered,
    /// A service refuses the effects of a start that is claimed.
    Refused,
    /// A service does not answer. Nothing is wrong with the start.
    Unavailable,
}

/// A start in a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    /// Its place in the block.
    pub place: u64,
    /// Its id among the parked starts.
    pub start_id: String,
    /// The epoch that it starts in.
    pub epoch: u64,
    /// Its event.
    pub event_id: Name,
    /// The sort key of the event.
    pub event_place: String,
    /// The time of the event.
    pub event_time: Millis,
}

/// The record of an open block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    /// Its name among the blocks of the drainer and tenant.
    pub name: String,
    /// Its drainer.
    pub drainer_id: Name,
    /// The subscription of its starts.
    pub subscription_id: Name,
    /// Whether it holds up every entity of the subscription.
    #[serde(default)]
    pub whole_subscription: bool,
    /// Why the head fails, and what has to pass before it works.
    pub cause: Cause,
    /// What went wrong last with the head.
    pub reason: String,
    /// How often the head was tried.
    pub attempts: u32,
    /// When the head is tried again.
    pub next_attempt_at: Millis,
    /// When the head failed first.
    pub first_failed_at: Millis,
    /// The start that the others wait for.
    pub head: Member,
    /// The place of the next start that joins.
    pub next: u64,
    /// The drainer's number of rewinds when it last compared the members with the epochs.
    pub rewinds: u64,
    /// The version of the drainer's subscriptions when it last decided about the head.
    pub version: u64,
}

/// What an operator wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperatorAction {
    /// Try the block at once.
    Retry,
    /// Give this start up.
    Drop,
}

/// What an operator asks about a start that waits in a block. The drainer does it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorRequest {
    /// The start.
    pub start_id: String,
    /// The block that it waits in.
    pub block_name: String,
    /// What is to be done.
    #[serde(rename = "ask")]
    pub action: OperatorAction,
    /// When the operator asked.
    pub asked_at: Millis,
    /// DynamoDB deletes a request that came after its block had closed.
    pub ttl: Seconds,
}

/// What is in the partition of the open blocks.
#[derive(Deserialize)]
#[serde(untagged)]
enum Row {
    Block(Block),
    Request(OperatorRequest),
}

/// The open blocks of a drainer and tenant, and what operators ask of them.
#[derive(Clone, Debug, Default)]
pub struct StoredBlocks {
    /// The blocks.
    pub blocks: Vec<Block>,
    /// The requests.
    pub requests: Vec<OperatorRequest>,
}

/// What became of the writes of a holder of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlocksWritten {
    /// All are written.
    Done,
    /// The lease has another holder; nothing is written.
    LeaseLost,
    /// The rows are not as they were read; nothing is written.
    Changed,
}

/// Reads and changes blocks.
#[derive(Clone, Debug)]
pub struct BlockRecords {
    table: ControlTable,
}

/// Writes of the holder of a lease that are committed together.
#[derive(Debug)]
pub struct BlockTransaction<'a> {
    table: &'a ControlTable,
    tenant: &'a Name,
    drainer: &'a Name,
    writes: Vec<TransactWriteItem>,
    /// By how many it raises the number of open blocks.
    opened: i64,
}

impl Block {
    /// The names of the two blocks that a start may wait in: the block of the whole subscription, then that of its entity.
    /// A start joins the first that is open, since members leave the subscription's block for the entity's in their order.
    pub fn names(subscription: &str, entity_type: &str, entity_id: &str) -> [String; 2] {
        [keys::block_name(subscription, None), keys::block_name(subscription, Some((entity_type, entity_id)))]
    }
}

impl BlockRecords {
    /// The blocks of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// The open blocks of a drainer and tenant, and what operators ask of them.
    pub async fn open(&self, tenant: &Name, drainer: &Name) -> Result<StoredBlocks, StoreError> {
        let mut open = StoredBlocks::default();
        for row in self.table.all(&keys::blocks(tenant, drainer)).await? {
            match row {
                Row::Block(block) => open.blocks.push(block),
                Row::Request(request) => open.requests.push(request),
            }
        }
        Ok(open)
    }

    /// The blocks with these drainers and names; those that are closed are left out.
    pub async fn get_some(&self, tenant: &Name, blocks: &[(Name, String)]) -> Result<Vec<Block>, StoreError> {
        let key = |(drainer, name): &(Name, String)| keys::block(tenant, drainer, name);
        let wanted: Vec<keys::ControlKey> = blocks.iter().map(key).collect();
        self.table.get_all(&wanted).await?.into_iter().map(read).collect()
    }

    /// At most `limit` members of a block, in order, from the place `from` on.
    pub async fn members(
        &self,
        (tenant, drainer): (&Name, &Name),
        block: &str,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Member>, StoreError> {
        let answer = self
            .table
            .partition(&keys::block_members(tenant, drainer, block))
            .key_condition_expression("PK = :pk AND SK >= :from")
            .expression_attribute_values(":from", text(&keys::block_member(tenant, drainer, block, from).sk))
            .limit(i32::try_from(limit).unwrap_or(i32::MAX))
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        answer.items.unwrap_or_default().into_iter().map(read).collect()
    }

    /// Leaves a request for the drainer.
    pub async fn put_request(
        &self,
        tenant: &Name,
        drainer: &Name,
        request: &OperatorRequest,
    ) -> Result<(), StoreError> {
        let put = self.table.put(&keys::asked(tenant, drainer, &request.start_id), request)?.send().await;
        put.map(drop).map_err(|error| StoreError::new("PutItem", error))
    }

    /// Deletes a request.
    pub async fn delete_request(
        &self,
        tenant: &Name,
        drainer: &Name,
        start_id: &str,
    ) -> Result<(), StoreError> {
        let delete = self.table.delete(&keys::asked(tenant, drainer, start_id)).send().await;
        delete.map(drop).map_err(|error| StoreError::new("DeleteItem", error))
    }

    /// A transaction of the holder of the lease, with no writes yet.
    pub fn begin_transaction<'a>(&'a self, tenant: &'a Name, drainer: &'a Name) -> BlockTransaction<'a> {
        BlockTransaction { table: &self.table, tenant, drainer, writes: Vec::new(), opened: 0 }
    }
}

impl BlockTransaction<'_> {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Puts the record of a block that is not open yet.
    pub fn open_block(&mut self, block: &Block) -> Result<(), StoreError> {
        self.opened += 1;
        self.put_block(block, "attribute_not_exists(PK)")
    }

    /// Puts the record of an open block.
    pub fn replace_block(&mut self, block: &Block) -> Result<(), StoreError> {
        self.put_block(block, "attribute_exists(PK)")
    }

    fn put_block(&mut self, block: &Block, condition: &str) -> Result<(), StoreError> {
        let key = keys::block(self.tenant, self.drainer, &block.name);
        let put = self.table.put_for_transaction(&key, block)?.condition_expression(condition);
        self.put(put.build().map_err(build_error)?);
        Ok(())
    }

    /// Deletes the record of an open block.
    pub fn close_block(&mut self, name: &str) -> Result<(), StoreError> {
        self.opened -= 1;
        let delete = self.table.delete_for_transaction(&keys::block(self.tenant, self.drainer, name));
        let delete = delete.condition_expression("attribute_exists(PK)").build().map_err(build_error)?;
        self.writes.push(TransactWriteItem::builder().delete(delete).build());
        Ok(())
    }

    /// Puts a member of a block.
    pub fn put_member(&mut self, block: &str, member: &Member) -> Result<(), StoreError> {
        let key = keys::block_member(self.tenant, self.drainer, block, member.place);
        let put = self.table.put_for_transaction(&key, member)?.build().map_err(build_error)?;
        self.put(put);
        Ok(())
    }

    /// Deletes a member of a block.
    pub fn delete_member(&mut self, block: &str, member: &Member) -> Result<(), StoreError> {
        self.delete(&keys::block_member(self.tenant, self.drainer, block, member.place))
    }

    /// Puts the row of a start over what was read of it.
    pub fn put_parked_over(&mut self, start: &ParkedStart, before: RowBefore) -> Result<(), StoreError> {
        let put = parked_starts::put_over(self.table, self.tenant, start, before)?;
        self.put(put);
        Ok(())
    }

    /// Puts the row of a start unless it is parked or has been tried since `seen` attempts were counted.
    pub fn put_parked_if_uncounted(&mut self, start: &ParkedStart, seen: u32) -> Result<(), StoreError> {
        let put = parked_starts::put_uncounted(self.table, self.tenant, start, seen)?;
        self.put(put);
        Ok(())
    }

    /// Puts the row of a start whatever is there.
    pub fn put_parked(&mut self, start: &ParkedStart) -> Result<(), StoreError> {
        let put = parked_starts::put(self.table, self.tenant, start)?.build().map_err(build_error)?;
        self.put(put);
        Ok(())
    }

    /// Deletes the row of a start.
    pub fn delete_parked(&mut self, start_id: &str) -> Result<(), StoreError> {
        self.delete(&keys::parked_start(self.tenant, start_id))
    }

    /// Deletes what an operator asked.
    pub fn delete_request(&mut self, start_id: &str) -> Result<(), StoreError> {
        self.delete(&keys::asked(self.tenant, self.drainer, start_id))
    }

    fn put(&mut self, put: Put) {
        self.writes.push(TransactWriteItem::builder().put(put).build());
    }

    fn delete(&mut self, key: &keys::ControlKey) -> Result<(), StoreError> {
        let delete = self.table.delete_for_transaction(key).build().map_err(build_error)?;
        self.writes.push(TransactWriteItem::builder().delete(delete).build());
        Ok(())
    }

    /// Writes everything on condition that the lease with this fence is still held.
    pub async fn commit(self, fence: u64) -> Result<BlocksWritten, StoreError> {
        let key = keys::drain(self.tenant, self.drainer);
        let guard = if self.opened == 0 {
            let check = self.table.check_for_transaction(&key).condition_expression(LEASE_IS_HELD);
            let check = check.expression_attribute_names("#owner", "owner");
            let check = check.expression_attribute_values(":fence", number(fence)).build();
            TransactWriteItem::builder().condition_check(check.map_err(build_error)?).build()
        } else {
            let change = AttributeValue::N(self.opened.to_string());
            let update = self.table.update_for_transaction(&key).condition_expression(LEASE_IS_HELD);
            update_item(
                update
                    .update_expression("SET blocks = if_not_exists(blocks, :zero) + :opened")
                    .expression_attribute_names("#owner", "owner")
                    .expression_attribute_values(":fence", number(fence))
                    .expression_attribute_values(":zero", number(0))
                    .expression_attribute_values(":opened", change),
            )?
        };
        let writes = std::iter::once(guard).chain(self.writes).collect();
        let transaction = self.table.transaction().set_transact_items(Some(writes));
        let mut retries = RequestRetry::default();
        loop {
            match cancelled(transaction.clone().send().await)? {
                None => return Ok(BlocksWritten::Done),
                Some(Cancelled::Refused(which)) if which.contains(&0) => return Ok(BlocksWritten::LeaseLost),
                Some(Cancelled::Refused(_)) => return Ok(BlocksWritten::Changed),
                Some(Cancelled::Busy(why)) => back_off(&mut retries, why).await?,
            }
        }
    }
}
