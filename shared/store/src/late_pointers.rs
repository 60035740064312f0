//! Pointers to late arrivals, as drainers read them: events that were saved behind a watermark.

use ledgerline_event::{Millis, Name};

use crate::{ControlTable, StoreError, keys, text};

/// A pointer to a late arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatePointer {
    /// Its place among the late arrivals: what a cursor holds.
    pub key: String,
    /// Above every watermark of late arrivals when the saver looked.
    pub stamp: Millis,
    /// The sort key of the event.
    pub event_sk: String,
}

/// Some pointers, in their order.
#[derive(Clone, Debug)]
pub struct LatePointerPage {
    /// The pointers.
    pub pointers: Vec<LatePointer>,
    /// Whether there may be more.
    pub more: bool,
}

/// Reads the pointers to late arrivals.
#[derive(Clone, Debug)]
pub struct LatePointers {
    table: ControlTable,
}

impl LatePointers {
    /// The pointers of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// A tenant's pointers after a cursor.
    pub async fn after(
        &self,
        tenant: &Name,
        cursor: &str,
        limit: i32,
    ) -> Result<LatePointerPage, StoreError> {
        let answer = self
            .table
            .partition(&keys::late_lane(tenant))
            .key_condition_expression("PK = :pk AND SK > :after")
            .expression_attribute_values(":after", text(if cursor.is_empty() { "0" } else { cursor }))
            .limit(limit)
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        let pointer = |key: &String| {
            let (stamp, event_sk) = keys::parse_late_pointer(key)?;
            Some(LatePointer { key: key.clone(), stamp, event_sk: event_sk.to_owned() })
        };
        let pointers = answer.items().iter().map(|item| {
            let key = item.get("SK").and_then(|sk| sk.as_s().ok());
            key.and_then(pointer).ok_or_else(|| {
                StoreError::unreadable("Query", "a row among the late arrivals is not a pointer")
            })
        });
        let pointers = pointers.collect::<Result<_, _>>()?;
        Ok(LatePointerPage { pointers, more: answer.last_evaluated_key.is_some() })
    }
}
