//! Records of one query, read page by page as they are asked for.

use std::{marker::PhantomData, vec};

use aws_sdk_dynamodb::operation::query::builders::QueryFluentBuilder;
use serde::de::DeserializeOwned;

use crate::{Item, StoreError, read};

/// The records of a query, one after the other. A record that cannot be read is an error in its turn.
#[must_use]
pub struct RecordStream<T> {
    query: QueryFluentBuilder,
    page: PageSize,
    rows: vec::IntoIter<Item>,
    next: NextPage,
    of: PhantomData<fn() -> T>,
}

/// How many rows a page has at most.
#[derive(Clone, Copy)]
enum PageSize {
    /// As many as DynamoDB returns.
    Full,
    /// This many, and more in each page that follows.
    Growing { rows: i32, most: i32 },
}

enum NextPage {
    First,
    After(Item),
    None,
}

impl<T: DeserializeOwned> RecordStream<T> {
    /// All records of `query`.
    pub(crate) fn new(query: QueryFluentBuilder) -> Self {
        let rows = Vec::new().into_iter();
        Self { query, page: PageSize::Full, rows, next: NextPage::First, of: PhantomData }
    }

    /// The same in pages of `first` rows, and then of ever more, up to `most`: for a reader that may find soon what it
    /// looks for.
    pub(crate) fn growing(query: QueryFluentBuilder, first: i32, most: i32) -> Self {
        Self { page: PageSize::Growing { rows: first, most }, ..Self::new(query) }
    }

    /// The next record, if there is one.
    pub async fn next(&mut self) -> Result<Option<T>, StoreError> {
        loop {
            if let Some(row) = self.rows.next() {
                return read(row).map(Some);
            }
            let start = match std::mem::replace(&mut self.next, NextPage::None) {
                NextPage::First => None,
                NextPage::After(place) => Some(place),
                NextPage::None => return Ok(None),
            };
            let mut query = self.query.clone().set_exclusive_start_key(start);
            if let PageSize::Growing { rows, most } = self.page {
                query = query.limit(rows);
                self.page = PageSize::Growing { rows: (rows * 4).min(most), most };
            }
            let page = query.send().await.map_err(|error| StoreError::new("Query", error))?;
            // The last page of a query says so by an absent or empty key.
            self.next =
                page.last_evaluated_key.filter(|key| !key.is_empty()).map_or(NextPage::None, NextPage::After);
            self.rows = page.items.unwrap_or_default().into_iter();
        }
    }
}
