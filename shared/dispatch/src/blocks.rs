//! The open blocks of one pass: what the drainer holds in memory, and the writes that change them.
//!
//! Every write is one transaction with a condition on the fence of the drain record, so a holder that slept past its
//! lease changes nothing. The record counts the open blocks in the same transactions: a tenant without any pays
//! no request for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use aws_sdk_dynamodb::types::TransactWriteItem;
use ledgerline_event::{Millis, Name};
use ledgerline_ledger::{
    Fault, Found, StoreError,
    control::{keys, read},
};
use serde::Deserialize;

use crate::{
    Dispatch, DispatchError, DrainRecord, Halted, ParkedStart,
    asked::Asked,
    block::{Block, Member},
    conditional::{number, text},
    record::Lease,
    transaction::{Cancelled, Patience, built, busy, cancelled},
};

/// Starts that change in one transaction, which takes a hundred writes: up to four each.
pub(crate) const CHUNK: usize = 24;

/// Why the holder cannot go on.
pub(crate) enum Hindered {
    /// The lease has another holder.
    Lost,
    Trouble(DispatchError),
}

impl<E: Into<DispatchError>> From<E> for Hindered {
    fn from(error: E) -> Self {
        Self::Trouble(error.into())
    }
}

/// The oldest start that waits.
#[derive(Clone, Debug)]
pub(crate) struct Oldest {
    pub(crate) halted: Halted,
    pub(crate) event_at: Millis,
    /// Since when the block that has failed the longest does.
    pub(crate) since: Millis,
}

/// What becomes of the row among the parked starts when a member leaves its block.
pub(crate) enum Row {
    Deleted,
    /// It is parked already, or belongs to the block that the member has moved to.
    Kept,
    Parked(Box<ParkedStart>),
}

/// What is in the partition of the open blocks.
#[derive(Deserialize)]
#[serde(untagged)]
enum Record {
    Block(Block),
    Asked(Asked),
}

/// The open blocks.
pub(crate) struct Blocks<'a> {
    pub(crate) dispatch: &'a Dispatch,
    pub(crate) tenant: Name,
    pub(crate) drainer: Name,
    fence: u64,
    pub(crate) rewinds: u64,
    /// Changes of subscriptions so far.
    pub(crate) version: u64,
    open: Mutex<BTreeMap<String, Block>>,
    /// Places of events that the drain stands or stood before.
    stood_before: Mutex<BTreeSet<String>>,
    pub(crate) asked: Vec<Asked>,
}

impl<'a> Blocks<'a> {
    /// Reads the open blocks, if there are any.
    pub(crate) async fn load(dispatch: &'a Dispatch, lease: &Lease) -> Result<Self, DispatchError> {
        let (tenant, drainer) = (lease.tenant.clone(), lease.drainer.clone());
        let (mut open, mut asked) = (BTreeMap::new(), Vec::new());
        if lease.record.blocks > 0 {
            for record in dispatch.control.all(&keys::blocks(&tenant, &drainer)).await? {
                match record {
                    Record::Block(block) => drop(open.insert(block.name.clone(), block)),
                    Record::Asked(ask) => asked.push(ask),
                }
            }
        }
        let record = &lease.record;
        let (fence, rewinds, version) = (record.fence, record.rewinds, record.subscriptions);
        let stood_before = Mutex::new(record.stood_before.clone());
        let open = Mutex::new(open);
        Ok(Self { dispatch, tenant, drainer, fence, rewinds, version, open, stood_before, asked })
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
        if !self.dispatch.records.stand_before(&self.tenant, &self.drainer, self.fence, place).await? {
            return Err(Hindered::Lost);
        }
        self.stood_before().insert(place.to_owned());
        Ok(())
    }

    /// Takes up the event that the version before stands before: it says so by nothing but its id.
    pub(crate) async fn take_up(&self, record: &DrainRecord) -> Result<(), Hindered> {
        let Some(halted) = &record.halted_on_event_id else { return Ok(()) };
        let is_known = record.stood_before.iter().any(|place| place.ends_with(&format!("#{halted}")))
            || self.open().values().any(|block| block.head.event_id == *halted);
        if is_known {
            return Ok(());
        }
        match self.dispatch.timeline.find(&self.tenant, halted).await? {
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

    pub(crate) fn oldest(&self) -> Option<Oldest> {
        let open = self.open();
        let oldest = open.values().min_by(|a, b| a.head.event_place.cmp(&b.head.event_place))?;
        let since = open.values().map(|block| block.first_failed_at).min()?;
        let halted = Halted {
            event_id: oldest.head.event_id.clone(),
            until: oldest.next_attempt_at,
            reason: oldest.reason.clone(),
        };
        Some(Oldest { halted, event_at: oldest.head.event_time, since })
    }

    /// When the drainer has to come again for them.
    pub(crate) fn again_at(&self, now: Millis) -> Option<Millis> {
        self.open().values().map(|block| block.again_at(now)).min()
    }

    /// The first members of a block.
    pub(crate) async fn members(
        &self,
        name: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Member>, StoreError> {
        let answer = self
            .dispatch
            .control
            .partition(&keys::block_members(&self.tenant, &self.drainer, name))
            .key_condition_expression("PK = :pk AND SK >= :from")
            .expression_attribute_values(
                ":from",
                text(&keys::block_member(&self.tenant, &self.drainer, name, after).sk),
            )
            .limit(i32::try_from(limit).unwrap_or(i32::MAX))
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        answer.items.unwrap_or_default().into_iter().map(read).collect()
    }

    /// Takes members out of a block; `closes` if none is left. `asked` is what an operator asked for about them.
    pub(crate) async fn leave(
        &self,
        name: &str,
        leaving: Vec<(Member, Row)>,
        asked: &[Asked],
        closes: bool,
    ) -> Result<(), Hindered> {
        let mut writes = Vec::new();
        for (member, row) in &leaving {
            writes.push(self.delete_member(name, member)?);
            let key = keys::parked_start(&self.tenant, &member.start_id);
            let control = &self.dispatch.control;
            match row {
                Row::Kept => {}
                Row::Deleted => {
                    let delete = control.delete_for_transaction(&key).build().map_err(built)?;
                    writes.push(TransactWriteItem::builder().delete(delete).build());
                }
                Row::Parked(start) => {
                    let put = control.put_for_transaction(&key, start)?.build().map_err(built)?;
                    writes.push(TransactWriteItem::builder().put(put).build());
                }
            }
        }
        for asked in asked {
            let key = keys::asked(&self.tenant, &self.drainer, &asked.start_id);
            let delete = self.dispatch.control.delete_for_transaction(&key).build().map_err(built)?;
            writes.push(TransactWriteItem::builder().delete(delete).build());
        }
        if closes {
            let delete = self.dispatch.control.delete_for_transaction(&self.key(name));
            let delete = delete.condition_expression("attribute_exists(PK)").build().map_err(built)?;
            writes.push(TransactWriteItem::builder().delete(delete).build());
        }
        if !writes.is_empty() {
            self.fenced(-i64::from(closes), writes).await?;
        }
        if closes {
            self.open().remove(name);
        }
        Ok(())
    }

    /// Writes the record of an open block.
    pub(crate) async fn rewrite(&self, block: Block) -> Result<(), Hindered> {
        let put = self.dispatch.control.put_for_transaction(&self.key(&block.name), &block)?;
        let put = put.condition_expression("attribute_exists(PK)").build().map_err(built)?;
        self.fenced(0, vec![TransactWriteItem::builder().put(put).build()]).await?;
        self.open().insert(block.name.clone(), block);
        Ok(())
    }

    pub(crate) fn key(&self, name: &str) -> keys::ControlKey {
        keys::block(&self.tenant, &self.drainer, name)
    }

    pub(crate) fn delete_member(
        &self,
        name: &str,
        member: &Member,
    ) -> Result<TransactWriteItem, DispatchError> {
        let key = keys::block_member(&self.tenant, &self.drainer, name, member.place);
        let delete = self.dispatch.control.delete_for_transaction(&key).build().map_err(built)?;
        Ok(TransactWriteItem::builder().delete(delete).build())
    }

    /// Writes on condition that the lease is still ours; `opened` is how many more blocks are open then.
    pub(crate) async fn fenced(&self, opened: i64, writes: Vec<TransactWriteItem>) -> Result<(), Hindered> {
        let key = keys::drain(&self.tenant, &self.drainer);
        let held = "fence = :fence AND attribute_exists(#owner)";
        let guard = if opened == 0 {
            let check = self.dispatch.control.check_for_transaction(&key).condition_expression(held);
            let check = check.expression_attribute_names("#owner", "owner");
            let check = check.expression_attribute_values(":fence", number(self.fence)).build();
            TransactWriteItem::builder().condition_check(check.map_err(built)?).build()
        } else {
            let change = aws_sdk_dynamodb::types::AttributeValue::N(opened.to_string());
            let update = self.dispatch.control.update_for_transaction(&key).condition_expression(held);
            let update = update
                .update_expression("SET blocks = if_not_exists(blocks, :zero) + :opened")
                .expression_attribute_names("#owner", "owner")
                .expression_attribute_values(":fence", number(self.fence))
                .expression_attribute_values(":zero", number(0))
                .expression_attribute_values(":opened", change)
                .build();
            TransactWriteItem::builder().update(update.map_err(built)?).build()
        };
        let transaction = self.dispatch.control.transaction().transact_items(guard);
        let transaction = writes.into_iter().fold(transaction, |all, write| all.transact_items(write));
        let mut patience = Patience::default();
        loop {
            match cancelled(transaction.clone().send().await)? {
                None => return Ok(()),
                Some(Cancelled::Refused(which)) if which.contains(&0) => return Err(Hindered::Lost),
                // What is in memory is not what is stored: the next pass reads it anew.
                Some(Cancelled::Refused(_)) => {
                    let message = "the blocked starts are not as they were read";
                    let conflict = "ConditionalCheckFailed";
                    return Err(
                        StoreError::told("TransactWriteItems", Fault::Refused, conflict, message).into()
                    );
                }
                Some(Cancelled::Busy(why)) => busy(&mut patience, why).await?,
            }
        }
    }
}
