use std::collections::HashMap;

use aws_sdk_dynamodb::{
    Client,
    operation::{
        delete_item::builders::DeleteItemFluentBuilder, put_item::builders::PutItemFluentBuilder,
        query::builders::QueryFluentBuilder, transact_write_items::builders::TransactWriteItemsFluentBuilder,
        update_item::builders::UpdateItemFluentBuilder,
    },
    types::{
        AttributeValue, ConditionCheck, Delete, KeysAndAttributes, Put, PutRequest, Update, WriteRequest,
        builders::{ConditionCheckBuilder, DeleteBuilder, PutBuilder, UpdateBuilder},
    },
};
use ledgerline_event::Millis;
use serde::{Serialize, de::DeserializeOwned};

use crate::keys::{self, ControlKey};
use crate::{Fault, RequestRetry, RetryCause, StoreError};

/// The index of records that something must be done about at a time of their own: only those with
/// the attributes `dueShard` and `dueAt` are in it.
pub const DUE_INDEX: &str = "due-index";

/// The index of records that people list: only those with the attributes `listIn` and `listAt` are in it.
pub const LIST_INDEX: &str = "list-index";

/// DynamoDB takes this many keys in one read…
const READ_AT_ONCE: usize = 100;
/// …and this many puts in one write.
const WRITTEN_AT_ONCE: usize = 25;

/// The control table: reads are strongly consistent, except for queries of its indexes; puts say on what condition.
#[derive(Clone, Debug)]
pub struct ControlTable {
    /// For the requests that are particular to one kind of record.
    pub(crate) dynamo: Client,
    /// The table's name.
    pub(crate) name: String,
}

/// A row.
pub type Item = HashMap<String, AttributeValue>;

impl ControlTable {
    /// The table called `name`.
    pub fn new(dynamo: Client, name: impl Into<String>) -> Self {
        Self { dynamo, name: name.into() }
    }

    /// One record.
    pub async fn get<T: DeserializeOwned>(&self, key: &ControlKey) -> Result<Option<T>, StoreError> {
        self.get_row(key).await?.map(read).transpose()
    }

    /// One record as it is stored.
    pub async fn get_row(&self, key: &ControlKey) -> Result<Option<Item>, StoreError> {
        let answer = self
            .dynamo
            .get_item()
            .table_name(&self.name)
            .set_key(Some(key_item(key)))
            .consistent_read(true)
            .send()
            .await
            .map_err(|error| StoreError::new("GetItem", error))?;
        Ok(answer.item)
    }

    /// Puts a record if none is there; `false` if one is.
    pub async fn put_new(&self, key: &ControlKey, record: &impl Serialize) -> Result<bool, StoreError> {
        let put = self
            .dynamo
            .put_item()
            .table_name(&self.name)
            .set_item(Some(item(key, record)?))
            .condition_expression("attribute_not_exists(PK)")
            .send()
            .await
            .map_err(|error| StoreError::new("PutItem", error));
        match put {
            Ok(_) => Ok(true),
            // A conflict says nothing about what is there.
            Err(error) if error.fault == Fault::ConditionFailed => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A put of a record, for the caller to say on what condition.
    pub fn put(&self, key: &ControlKey, record: &impl Serialize) -> Result<PutItemFluentBuilder, StoreError> {
        Ok(self.dynamo.put_item().table_name(&self.name).set_item(Some(item(key, record)?)))
    }

    /// A change of one record, for the caller to say which and on what condition.
    pub fn update(&self, key: &ControlKey) -> UpdateItemFluentBuilder {
        self.dynamo.update_item().table_name(&self.name).set_key(Some(key_item(key)))
    }

    /// A deletion of one record.
    pub fn delete(&self, key: &ControlKey) -> DeleteItemFluentBuilder {
        self.dynamo.delete_item().table_name(&self.name).set_key(Some(key_item(key)))
    }

    /// Several writes, all or none.
    pub fn transaction(&self) -> TransactWriteItemsFluentBuilder {
        self.dynamo.transact_write_items()
    }

    /// An update for a transaction.
    pub fn update_for_transaction(&self, key: &ControlKey) -> UpdateBuilder {
        Update::builder().table_name(&self.name).set_key(Some(key_item(key)))
    }

    /// A deletion for a transaction.
    pub fn delete_for_transaction(&self, key: &ControlKey) -> DeleteBuilder {
        Delete::builder().table_name(&self.name).set_key(Some(key_item(key)))
    }

    /// A condition on a record that a transaction does not change.
    pub fn check_for_transaction(&self, key: &ControlKey) -> ConditionCheckBuilder {
        ConditionCheck::builder().table_name(&self.name).set_key(Some(key_item(key)))
    }

    /// Keys of at most `limit` records of one shard that are due, oldest first. The index lags behind the
    /// table: read the record before you act on its key.
    pub async fn due(&self, shard: &str, now: Millis, limit: i32) -> Result<Vec<ControlKey>, StoreError> {
        let answer = self.due_query(shard, now).limit(limit).send().await;
        let answer = answer.map_err(|error| StoreError::new("Query", error))?;
        Ok(answer.items().iter().filter_map(key_of).collect())
    }

    /// Keys of all records of one shard that are due at `until` or before.
    pub async fn all_due(&self, shard: &str, until: Millis) -> Result<Vec<ControlKey>, StoreError> {
        let mut pages = self.due_query(shard, until).into_paginator().send();
        let mut keys = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            keys.extend(page.items().iter().filter_map(key_of));
        }
        Ok(keys)
    }

    /// Keys of at most `limit` records of one shard that are due between `from` and `until`, oldest first, each with
    /// its time.
    pub async fn due_between(
        &self,
        shard: &str,
        from: Millis,
        until: Millis,
        limit: i32,
    ) -> Result<Vec<(ControlKey, Millis)>, StoreError> {
        if from > until {
            return Ok(Vec::new());
        }
        let answer = self
            .due_query(shard, until)
            .key_condition_expression("dueShard = :shard AND dueAt BETWEEN :from AND :until")
            .expression_attribute_values(":from", AttributeValue::N(from.to_string()))
            .limit(limit)
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        let time = |item: &Item| Millis::try_from(item.get("dueAt")?.as_n().ok()?.parse::<u64>().ok()?).ok();
        Ok(answer.items().iter().filter_map(|item| Some((key_of(item)?, time(item)?))).collect())
    }

    fn due_query(&self, shard: &str, until: Millis) -> QueryFluentBuilder {
        self.dynamo
            .query()
            .table_name(&self.name)
            .index_name(DUE_INDEX)
            .key_condition_expression("dueShard = :shard AND dueAt <= :until")
            .expression_attribute_values(":shard", AttributeValue::S(shard.to_owned()))
            .expression_attribute_values(":until", AttributeValue::N(until.to_string()))
    }

    /// Some records of a list, the newest first, and whether there may be more. The index lags a little behind the
    /// table: it is for people, not for decisions.
    pub async fn listed(
        &self,
        list: &str,
        start_key: Option<Item>,
        limit: i32,
    ) -> Result<(Vec<Item>, Option<Item>), StoreError> {
        let answer = self
            .dynamo
            .query()
            .table_name(&self.name)
            .index_name(LIST_INDEX)
            .key_condition_expression("listIn = :list")
            .expression_attribute_values(":list", AttributeValue::S(list.to_owned()))
            .scan_index_forward(false)
            .set_exclusive_start_key(start_key)
            .limit(limit)
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        Ok((answer.items.unwrap_or_default(), answer.last_evaluated_key))
    }

    /// The records that have been in a list for the longest, and whether there may be more.
    pub async fn listed_oldest_first(&self, list: &str, limit: i32) -> Result<(Vec<Item>, bool), StoreError> {
        let answer = self
            .dynamo
            .query()
            .table_name(&self.name)
            .index_name(LIST_INDEX)
            .key_condition_expression("listIn = :list")
            .expression_attribute_values(":list", AttributeValue::S(list.to_owned()))
            .limit(limit)
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        Ok((answer.items.unwrap_or_default(), answer.last_evaluated_key.is_some()))
    }

    /// Several records, strongly consistent, in no order; those that are not there are left out.
    pub async fn get_all(&self, keys: &[ControlKey]) -> Result<Vec<Item>, StoreError> {
        let mut found = Vec::new();
        for keys in keys.chunks(READ_AT_ONCE) {
            let mut wanted: Vec<Item> = keys.iter().map(key_item).collect();
            let mut retries = RequestRetry::default();
            while !wanted.is_empty() {
                let some = KeysAndAttributes::builder().consistent_read(true).set_keys(Some(wanted)).build();
                let some = some.map_err(|error| StoreError::unreadable("BatchGetItem", error.to_string()))?;
                let answer = self.dynamo.batch_get_item().request_items(&self.name, some).send().await;
                let answer = answer.map_err(|error| StoreError::new("BatchGetItem", error))?;
                found.extend(answer.responses.unwrap_or_default().remove(&self.name).unwrap_or_default());
                let rest = answer.unprocessed_keys.unwrap_or_default().remove(&self.name);
                wanted = rest.map(|rest| rest.keys).unwrap_or_default();
                wait_for_rest("BatchGetItem", &mut retries, wanted.len()).await?;
            }
        }
        Ok(found)
    }

    /// Puts records whatever is there: for those that are the same however often they are put.
    pub async fn put_all(&self, records: Vec<Item>) -> Result<(), StoreError> {
        for records in records.chunks(WRITTEN_AT_ONCE) {
            let put = |item: &Item| {
                let put = PutRequest::builder().set_item(Some(item.clone())).build();
                put.map(|put| WriteRequest::builder().put_request(put).build())
                    .map_err(|error| StoreError::unreadable("BatchWriteItem", error.to_string()))
            };
            let mut wanted: Vec<WriteRequest> = records.iter().map(put).collect::<Result<_, _>>()?;
            let mut retries = RequestRetry::default();
            while !wanted.is_empty() {
                let answer = self.dynamo.batch_write_item().request_items(&self.name, wanted).send().await;
                let answer = answer.map_err(|error| StoreError::new("BatchWriteItem", error))?;
                wanted = answer.unprocessed_items.unwrap_or_default().remove(&self.name).unwrap_or_default();
                wait_for_rest("BatchWriteItem", &mut retries, wanted.len()).await?;
            }
        }
        Ok(())
    }

    /// A put for a transaction.
    pub fn put_for_transaction(
        &self,
        key: &ControlKey,
        record: &impl Serialize,
    ) -> Result<PutBuilder, StoreError> {
        Ok(Put::builder().table_name(&self.name).set_item(Some(item(key, record)?)))
    }

    /// A put of a row for a transaction.
    pub fn put_row_for_transaction(&self, row: Item) -> PutBuilder {
        Put::builder().table_name(&self.name).set_item(Some(row))
    }

    /// A strongly consistent query of one partition, from its beginning.
    pub fn partition(&self, pk: &str) -> QueryFluentBuilder {
        self.dynamo
            .query()
            .table_name(&self.name)
            .consistent_read(true)
            .key_condition_expression("PK = :pk")
            .expression_attribute_values(":pk", AttributeValue::S(pk.to_owned()))
    }

    /// Writes a record and reads it again: an error says why the table cannot be worked with.
    pub async fn probe(&self, now: Millis) -> Result<(), StoreError> {
        let key = keys::health_probe();
        let put = self.put(&key, &HashMap::from([("at", now)]))?.send().await;
        put.map_err(|error| StoreError::new("PutItem", error))?;
        match self.get_row(&key).await? {
            Some(_) => Ok(()),
            None => Err(StoreError::unreadable("GetItem", "a record that was written is not there")),
        }
    }

    /// Every record of one partition, page by page.
    pub async fn all<T: DeserializeOwned>(&self, pk: &str) -> Result<Vec<T>, StoreError> {
        let mut pages = self.partition(pk).into_paginator().send();
        let mut records = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            for found in page.items.unwrap_or_default() {
                records.push(read(found)?);
            }
        }
        Ok(records)
    }
}

/// A key as DynamoDB takes it.
pub fn key_item(key: &ControlKey) -> Item {
    let text = |value: &String| AttributeValue::S(value.clone());
    HashMap::from([("PK".to_owned(), text(&key.pk)), ("SK".to_owned(), text(&key.sk))])
}

pub(crate) fn key_of(item: &Item) -> Option<ControlKey> {
    let text = |name: &str| item.get(name)?.as_s().ok().cloned();
    Some(ControlKey { pk: text("PK")?, sk: text("SK")? })
}

/// A table that does part of a batch throttles: the caller asks for the rest after a pause, and not for ever.
async fn wait_for_rest(
    operation: &'static str,
    retries: &mut RequestRetry,
    rest: usize,
) -> Result<(), StoreError> {
    if rest == 0 {
        return Ok(());
    }
    let waited = retries.wait(operation, RetryCause::Throttled).await;
    waited.map_err(|error| StoreError { message: format!("{rest} of a batch were not done"), ..error })
}

/// A record as a row.
pub fn item(key: &ControlKey, record: &impl Serialize) -> Result<Item, StoreError> {
    let mut item = item_of(record)?;
    item.extend(key_item(key));
    Ok(item)
}

/// A record as a row, with the keys that it has itself.
pub fn item_of(record: &impl Serialize) -> Result<Item, StoreError> {
    serde_dynamo::aws_sdk_dynamodb_1::to_item(record)
        .map_err(|error| StoreError::unreadable("PutItem", error.to_string()))
}

/// A record from a row.
pub fn read<T: DeserializeOwned>(item: Item) -> Result<T, StoreError> {
    serde_dynamo::aws_sdk_dynamodb_1::from_item(item)
        .map_err(|error| StoreError::unreadable("reading a control record", error.to_string()))
}
