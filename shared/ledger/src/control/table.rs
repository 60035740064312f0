use std::collections::HashMap;

use aws_sdk_dynamodb::{
    Client,
    operation::query::builders::QueryFluentBuilder,
    types::{AttributeValue, Put},
};
use serde::{Serialize, de::DeserializeOwned};

use super::keys::ControlKey;
use crate::{Fault, StoreError};

/// The control table: reads are strongly consistent, puts say on what condition.
#[derive(Clone, Debug)]
pub struct ControlTable {
    /// For the requests that are particular to one kind of record.
    pub(crate) dynamo: Client,
    /// The table's name.
    pub(crate) name: String,
}

pub(crate) type Item = HashMap<String, AttributeValue>;

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
            Err(error) if error.fault == Fault::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A put for a transaction.
    pub(crate) fn put_for_transaction(
        &self,
        key: &ControlKey,
        record: &impl Serialize,
    ) -> Result<PutBuilder, StoreError> {
        Ok(Put::builder().table_name(&self.name).set_item(Some(item(key, record)?)))
    }

    /// A strongly consistent query of one partition, from its beginning.
    pub(crate) fn partition(&self, pk: &str) -> QueryFluentBuilder {
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

type PutBuilder = aws_sdk_dynamodb::types::builders::PutBuilder;

pub(crate) fn key_item(key: &ControlKey) -> Item {
    let text = |value: &String| AttributeValue::S(value.clone());
    HashMap::from([("PK".to_owned(), text(&key.pk)), ("SK".to_owned(), text(&key.sk))])
}

pub(crate) fn item(key: &ControlKey, record: &impl Serialize) -> Result<Item, StoreError> {
    let mut item: Item = serde_dynamo::aws_sdk_dynamodb_1::to_item(record)
        .map_err(|error| StoreError::unreadable("PutItem", error.to_string()))?;
    item.extend(key_item(key));
    Ok(item)
}

pub(crate) fn read<T: DeserializeOwned>(item: Item) -> Result<T, StoreError> {
    serde_dynamo::aws_sdk_dynamodb_1::from_item(item)
        .map_err(|error| StoreError::unreadable("reading a control record", error.to_string()))
}
