use std::collections::HashMap;

use aws_sdk_dynamodb::{
    Client,
    operation::{
        delete_item::builders::DeleteItemFluentBuilder, put_item::builders::PutItemFluentBuilder,
        query::builders::QueryFluentBuilder, transact_write_items::builders::TransactWriteItemsFluentBuilder,
        update_item::builders::UpdateItemFluentBuilder,
    },
    types::{
        AttributeValue, Delete, Put, Update,
        builders::{DeleteBuilder, PutBuilder, UpdateBuilder},
    },
};
use ledgerline_event::Millis;
use serde::{Serialize, de::DeserializeOwned};

use super::keys::{self, ControlKey};
use crate::StoreError;

/// The index of records that something must be done about at a time of their own: only those with
/// the attributes `dueShard` and `dueAt` are in it.
pub const DUE_INDEX: &str = "due-index";

/// The control table: reads are strongly consistent, puts say on what condition.
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
        let answer = self
            .dynamo
            .get_item()
            .table_name(&self.name)
            .set_key(Some(key_item(key)))
            .consistent_read(true)
            .send()
            .await
            .map_err(|error| StoreError::new("GetItem", error))?;
        answer.item.map(read).transpose()
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
            // Not a transaction that was in the way: that says nothing about what is there.
            Err(error) if error.code.as_deref() == Some("ConditionalCheckFailedException") => Ok(false),
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

    /// Keys of records of one shard whose time has come, oldest first. The index lags behind the
    /// table: whoever acts on a key reads the record first.
    pub async fn due(&self, shard: u8, now: Millis, limit: i32) -> Result<Vec<ControlKey>, StoreError> {
        let answer = self
            .dynamo
            .query()
            .table_name(&self.name)
            .index_name(DUE_INDEX)
            .key_condition_expression("dueShard = :shard AND dueAt <= :now")
            .expression_attribute_values(":shard", AttributeValue::S(keys::due_shard(shard)))
            .expression_attribute_values(":now", AttributeValue::N(now.to_string()))
            .limit(limit)
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        let text = |item: &Item, name: &str| item.get(name)?.as_s().ok().cloned();
        let keys = answer
            .items()
            .iter()
            .filter_map(|item| Some(ControlKey { pk: text(item, "PK")?, sk: text(item, "SK")? }));
        Ok(keys.collect())
    }

    /// A put for a transaction.
    pub fn put_for_transaction(
        &self,
        key: &ControlKey,
        record: &impl Serialize,
    ) -> Result<PutBuilder, StoreError> {
        Ok(Put::builder().table_name(&self.name).set_item(Some(item(key, record)?)))
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

pub(crate) fn item(key: &ControlKey, record: &impl Serialize) -> Result<Item, StoreError> {
    let mut item: Item = serde_dynamo::aws_sdk_dynamodb_1::to_item(record)
        .map_err(|error| StoreError::unreadable("PutItem", error.to_string()))?;
    item.extend(key_item(key));
    Ok(item)
}

/// A record from a row.
pub fn read<T: DeserializeOwned>(item: Item) -> Result<T, StoreError> {
    serde_dynamo::aws_sdk_dynamodb_1::from_item(item)
        .map_err(|error| StoreError::unreadable("reading a control record", error.to_string()))
}
