//! Records of any kind, read for a comparison: several at once, by partition, or by list.

use serde::de::DeserializeOwned;

use crate::table::key_of;
use crate::{ControlKey, ControlTable, Item, StoreError, read};

/// A record as it is stored, with its key.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its key.
    pub key: ControlKey,
    item: Item,
}

impl Row {
    fn of(item: Item) -> Option<Self> {
        Some(Self { key: key_of(&item)?, item })
    }

    /// The record.
    pub fn read<T: DeserializeOwned>(self) -> Result<T, StoreError> {
        read(self.item)
    }

    /// One view of the record, where another is read too.
    pub fn view<T: DeserializeOwned>(&self) -> Result<T, StoreError> {
        read(self.item.clone())
    }
}

/// The key after which the next page of a list begins.
#[derive(Debug)]
pub struct ListStartKey(Item);

/// Some keys of a list, the newest first.
#[derive(Debug)]
pub struct ListedKeys {
    /// The keys.
    pub keys: Vec<ControlKey>,
    /// Where the next page begins; `None` on the last page.
    pub next: Option<ListStartKey>,
}

/// Reads records of any kind.
#[derive(Clone, Debug)]
pub struct Rows {
    table: ControlTable,
}

impl Rows {
    /// The records of this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// One record.
    pub async fn get<T: DeserializeOwned>(&self, key: &ControlKey) -> Result<Option<T>, StoreError> {
        self.table.get(key).await
    }

    /// Several records, in no order; those that are not there are left out.
    pub async fn get_all(&self, keys: &[ControlKey]) -> Result<Vec<Row>, StoreError> {
        Ok(self.table.get_all(keys).await?.into_iter().filter_map(Row::of).collect())
    }

    /// Calls `take_in` with every record of one partition, page by page: a partition may be large.
    pub async fn read_partition(
        &self,
        pk: &str,
        mut take_in: impl FnMut(Row) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut pages = self.table.partition(pk).into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            page.items.unwrap_or_default().into_iter().filter_map(Row::of).try_for_each(&mut take_in)?;
        }
        Ok(())
    }

    /// At most `limit` keys of a list, the newest first. The list lags behind the records: read a record before you act on
    /// its key.
    pub async fn listed(
        &self,
        list: &str,
        start: Option<ListStartKey>,
        limit: i32,
    ) -> Result<ListedKeys, StoreError> {
        let (items, next) = self.table.listed(list, start.map(|start| start.0), limit).await?;
        Ok(ListedKeys { keys: items.iter().filter_map(key_of).collect(), next: next.map(ListStartKey) })
    }

    /// The records that have been in a list for the longest, and whether there may be more.
    pub async fn oldest_listed<T: DeserializeOwned>(
        &self,
        list: &str,
        limit: i32,
    ) -> Result<(Vec<T>, bool), StoreError> {
        let (items, more) = self.table.listed_oldest_first(list, limit).await?;
        Ok((items.into_iter().map(read).collect::<Result<_, _>>()?, more))
    }
}
