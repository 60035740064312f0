//! What operators ask about blocked starts. The holder of the lease alone changes a block, so that its order holds:
//! an operator leaves a mark, and the drainer does what it says.

use ledgerline_event::{Millis, Name};
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
}

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
        let asked =
            Asked { start_id: start.id.clone(), block_name: block.to_owned(), ask, asked_at: self.now() };
        let put = self.control.put(&keys::asked(tenant, drainer, &start.id), &asked)?.send().await;
        put.map_err(|error| StoreError::new("PutItem", error))?;
        // If this process dies now, the mark brings the next sweep.
        let fence = self.records.get(tenant, drainer).await?.map_or(0, |record| record.fence);
        self.mark_dirty(tenant, drainer, fence).await?;
        self.drain(tenant, drainer, deadline).await
    }
}
