//! What operators ask about blocked starts. The holder of the lease alone changes a block, so that its order holds:
//! an operator leaves a mark, and the drainer does what it says.

use ledgerline_event::{Millis, Name, Seconds};
use ledgerline_ledger::{StoreError, control::keys};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{Dispatch, DispatchError, Drained, ParkedStart};

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ask {
    /// Try the block at once.
    Retry,
    /// Give this start up.
    Drop,
}

/// The mark that an operator leaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Asked {
    pub(crate) start_id: String,
    pub(crate) block_name: String,
    pub(crate) ask: Ask,
    pub(crate) asked_at: Millis,
    /// A mark that comes after its block has closed goes by itself.
    ttl: Seconds,
}

/// How long a mark is kept that no drainer meets.
const KEPT_SECONDS: u64 = 24 * 3_600;

impl Dispatch {
    /// Leaves a mark about a blocked start and brings the drainer to it. The answer is that of the visit.
    pub(crate) async fn ask(
        &self,
        tenant: &Name,
        start: &ParkedStart,
        block: &str,
        ask: Ask,
        deadline: Option<Instant>,
    ) -> Result<Drained, DispatchError> {
        let drainer = &start.drainer_id;
        let now = self.now();
        let asked = Asked {
            start_id: start.id.clone(),
            block_name: block.to_owned(),
            ask,
            asked_at: now,
            ttl: Seconds::new(now.seconds().get() + KEPT_SECONDS),
        };
        let put = self.control.put(&keys::asked(tenant, drainer, &start.id), &asked)?.send().await;
        put.map_err(|error| StoreError::new("PutItem", error))?;
        // If this process dies now, the mark brings the next sweep.
        let fence = self.records.get(tenant, drainer).await?.map_or(0, |record| record.fence);
        self.mark_dirty(tenant, drainer, fence).await?;
        let drained = self.drain(tenant, drainer, deadline).await?;
        // A block that closed meanwhile has no more use for the mark.
        let there: Option<ParkedStart> = self.control.get(&keys::parked_start(tenant, &start.id)).await?;
        if there.is_none_or(|there| there.block.is_none()) {
            let delete = self.control.delete(&keys::asked(tenant, drainer, &start.id)).send().await;
            delete.map_err(|error| StoreError::new("DeleteItem", error))?;
        }
        Ok(drained)
    }
}
