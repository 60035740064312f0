//! Lists of tasks, jobs and runs by state, page by page. A page reads at most one row more than it returns.

use crate::{Item, key_item, keys::ControlKey, read};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ledgerline_event::Invalid;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::text;
use crate::{ControlTable, StoreError};

/// The largest page, in rows.
const MAX_LIMIT: usize = 1_000;

/// Where the next page of several lists begins, which are read one after the other. It holds no tenant: that is always the
/// caller's. Its JSON is the array `[list, after]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "(usize, Option<String>)", into = "(usize, Option<String>)")]
pub struct ListCursor {
    /// The position of the list among those that are read.
    list: usize,
    /// The `listAt` of the last row that was returned; `None` begins the list.
    after: Option<String>,
}

impl From<(usize, Option<String>)> for ListCursor {
    fn from((list, after): (usize, Option<String>)) -> Self {
        Self { list, after }
    }
}

impl From<ListCursor> for (usize, Option<String>) {
    fn from(cursor: ListCursor) -> Self {
        (cursor.list, cursor.after)
    }
}

impl ListCursor {
    /// Reads a cursor that a list gave.
    pub fn decode(text: Option<&str>) -> Result<Self, Invalid> {
        let Some(text) = text else { return Ok(Self::default()) };
        let wrong = || Invalid::new("cursor", "is not one that a list gave");
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong())?;
        let cursor: Self = serde_json::from_slice(&bytes).map_err(|_| wrong())?;
        match cursor.after.as_ref().is_none_or(|after| after.contains('#')) {
            true => Ok(cursor),
            false => Err(wrong()),
        }
    }

    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
}

impl ControlTable {
    /// One page of records from several lists, which are read one after the other, and the cursor of the next page.
    /// `key_of` makes the key of a record from the id in its `listAt`.
    pub async fn list_pages<T: DeserializeOwned>(
        &self,
        lists: &[String],
        limit: usize,
        cursor: ListCursor,
        key_of: impl Fn(&str) -> ControlKey,
    ) -> Result<(Vec<T>, Option<String>), StoreError> {
        let limit = limit.clamp(1, MAX_LIMIT);
        let ListCursor { list: first, mut after } = cursor;
        let mut found: Vec<(usize, String, Item)> = Vec::new();
        for (position, list) in lists.iter().enumerate().skip(first) {
            let mut start = after.take().map(|list_at| start_key(list, &list_at, &key_of));
            // One more than asked for tells whether there is a next page.
            while found.len() <= limit {
                let wanted = i32::try_from(limit + 1 - found.len()).unwrap_or(i32::MAX);
                let (rows, next) = self.listed(list, start.take(), wanted).await?;
                for row in rows {
                    let list_at = row.get("listAt").and_then(|list_at| list_at.as_s().ok()).cloned();
                    found.push((position, list_at.unwrap_or_default(), row));
                }
                match next {
                    Some(next) => start = Some(next),
                    None => break,
                }
            }
            if found.len() > limit {
                break;
            }
        }
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more);
        let next =
            next.map(|(list, list_at, _)| ListCursor { list: *list, after: Some(list_at.clone()) }.encode());
        let items = found.into_iter().map(|(_, _, row)| read(row)).collect::<Result<_, _>>()?;
        Ok((items, next))
    }
}

fn start_key(list: &str, list_at: &str, key_of: &impl Fn(&str) -> ControlKey) -> Item {
    let (_, id) = list_at.split_once('#').unwrap_or_default();
    let mut key = key_item(&key_of(id));
    key.insert("listIn".into(), text(list));
    key.insert("listAt".into(), text(list_at));
    key
}
