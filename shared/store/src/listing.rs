//! Lists of tasks and jobs by state, page by page: as many rows are read as are answered.

use crate::{Item, key_item, keys::ControlKey, read};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ledgerline_event::Invalid;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::text;
use crate::{ControlTable, StoreError};

/// Rows of one answer at most.
const MAX_LIMIT: usize = 1_000;

/// A place in some lists that are read one after the other. It holds no tenant: that is always the asker's own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListCursor(usize, Option<String>);

impl ListCursor {
    /// Reads a cursor that a list gave.
    pub fn decode(text: Option<&str>) -> Result<Self, Invalid> {
        let Some(text) = text else { return Ok(Self::default()) };
        let wrong = || Invalid::new("cursor", "is not one that a list gave");
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong())?;
        let cursor: Self = serde_json::from_slice(&bytes).map_err(|_| wrong())?;
        match cursor.1.as_ref().is_none_or(|place| place.contains('#')) {
            true => Ok(cursor),
            false => Err(wrong()),
        }
    }

    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
}

impl ControlTable {
    /// Some records of lists that follow each other; `key_of` makes the key of a record from the id in its place.
    pub async fn list_pages<T: DeserializeOwned>(
        &self,
        lists: &[String],
        limit: usize,
        cursor: ListCursor,
        key_of: impl Fn(&str) -> ControlKey,
    ) -> Result<(Vec<T>, Option<String>), StoreError> {
        let limit = limit.clamp(1, MAX_LIMIT);
        let ListCursor(first, mut after) = cursor;
        let mut found: Vec<(usize, String, Item)> = Vec::new();
        for (position, list) in lists.iter().enumerate().skip(first) {
            let mut before = after.take().map(|place| start_key(list, &place, &key_of));
            // One more than asked for tells whether there is a next page.
            while found.len() <= limit {
                let wanted = i32::try_from(limit + 1 - found.len()).unwrap_or(i32::MAX);
                let (rows, next) = self.listed(list, before.take(), wanted).await?;
                for row in rows {
                    let place = row.get("listAt").and_then(|place| place.as_s().ok()).cloned();
                    found.push((position, place.unwrap_or_default(), row));
                }
                match next {
                    Some(next) => before = Some(next),
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
        let next = next.map(|(position, place, _)| ListCursor(*position, Some(place.clone())).encode());
        let items = found.into_iter().map(|(_, _, row)| read(row)).collect::<Result<_, _>>()?;
        Ok((items, next))
    }
}

fn start_key(list: &str, place: &str, key_of: &impl Fn(&str) -> ControlKey) -> Item {
    let (_, id) = place.split_once('#').unwrap_or_default();
    let mut key = key_item(&key_of(id));
    key.insert("listIn".into(), text(list));
    key.insert("listAt".into(), text(place));
    key
}
