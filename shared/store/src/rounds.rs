//! A drainer's round: it visits every tenant once, over as many sweeps as that takes. A sweep writes its id into the round as
//! the holder, and each later write is on condition of that id: so a sweep that was overtaken changes nothing.

use std::collections::BTreeSet;

use ledgerline_event::{Millis, Name};
use serde::{Deserialize, Serialize};

use crate::{ControlTable, Fault, StoreError, keys, text};

/// A round as it is stored. Versions before 0.1.0 store only `visitedAt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoundRecord {
    /// When the last completed round began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visited_at: Option<Millis>,
    /// When the round under way began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began_at: Option<Millis>,
    /// The round began with the tenant after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began_after: Option<Name>,
    /// The last tenant that it has passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Name>,
    /// Tenants that it has passed, but whose visits did not finish.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub left: BTreeSet<Name>,
    /// The id of the last sweep that took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Name>,
    /// Until then no other sweep takes the round, unless the holder releases it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_until: Option<Millis>,
}

/// What became of a write of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundWrite {
    /// It is written.
    Done,
    /// Another sweep has taken the round.
    Taken,
}

/// Reads and changes rounds.
#[derive(Clone, Debug)]
pub struct RoundRecords {
    table: ControlTable,
}

impl RoundRecords {
    /// The rounds of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// The round of a drainer.
    pub async fn get(&self, drainer: &Name) -> Result<Option<RoundRecord>, StoreError> {
        self.table.get(&keys::schedule(drainer)).await
    }

    /// Writes a round if its stored holder is `holder`; `None`: if no sweep has ever held it.
    pub async fn put(
        &self,
        drainer: &Name,
        round: &RoundRecord,
        holder: Option<&Name>,
    ) -> Result<RoundWrite, StoreError> {
        let put = self.table.put(&keys::schedule(drainer), round)?;
        let put = match holder {
            Some(holder) => put
                .condition_expression("holder = :holder")
                .expression_attribute_values(":holder", text(holder)),
            None => put.condition_expression("attribute_not_exists(holder)"),
        };
        match put.send().await.map_err(|error| StoreError::new("PutItem", error)) {
            Ok(_) => Ok(RoundWrite::Done),
            Err(error) if error.fault == Fault::ConditionFailed => Ok(RoundWrite::Taken),
            Err(error) => Err(error),
        }
    }
}
