//! A drainer's round: it visits every tenant once, over as many sweeps as that takes. A sweep takes the round by name and
//! writes on condition of that name, so that a sweep that was overtaken moves nothing.

use std::collections::BTreeSet;

use ledgerline_event::{Millis, Name};
use serde::{Deserialize, Serialize};

use crate::{ControlTable, Fault, StoreError, keys, text};

/// A round as it is stored. The version before has `visitedAt` alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoundRecord {
    /// When the last round began that is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visited_at: Option<Millis>,
    /// When the round under way began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began_at: Option<Millis>,
    /// The tenant behind which it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began_after: Option<Name>,
    /// The last tenant that it has passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Name>,
    /// Tenants that it has passed and not finished.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub left: BTreeSet<Name>,
    /// The last sweep that took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Name>,
    /// Until when that sweep keeps it.
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

    /// Writes a round if `holder` has it, or no sweep has.
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
            Err(error) if error.fault == Fault::Refused => Ok(RoundWrite::Taken),
            Err(error) => Err(error),
        }
    }
}
