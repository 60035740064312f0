//! What operators ask about blocked starts. The holder of the lease alone changes a block, so that its order holds:
//! an operator leaves a request, and the drainer does what it says.

use ledgerline_event::{Name, Seconds};
use ledgerline_store::{OperatorAction, OperatorRequest};
use tokio::time::Instant;

use crate::{Drained, Drains, ParkedStart};
use ledgerline_outbox::ComponentError;

/// How long a request is kept if no drainer reads it.
const KEPT_SECONDS: u64 = 24 * 3_600;

impl Drains {
    /// Leaves a request about a blocked start and drains the tenant, so that the drainer does it. Returns what the visit did.
    pub(crate) async fn ask(
        &self,
        tenant: &Name,
        start: &ParkedStart,
        block: &str,
        action: OperatorAction,
        deadline: Option<Instant>,
    ) -> Result<Drained, ComponentError> {
        let drainer = &start.drainer_id;
        let now = self.emitter.now();
        let request = OperatorRequest {
            start_id: start.id.clone(),
            block_name: block.to_owned(),
            action,
            asked_at: now,
            ttl: Seconds::new(now.seconds().get() + KEPT_SECONDS),
        };
        self.blocks.put_request(tenant, drainer, &request).await?;
        // If this process dies now, the mark brings the next sweep.
        let fence = self.states.get(tenant, drainer).await?.map_or(0, |state| state.fence);
        self.marks.mark_dirty(tenant, drainer, fence).await?;
        let drained = self.drain(tenant, drainer, deadline).await?;
        // A block that closed meanwhile has no more use for the request.
        let there = self.parked.records.get(tenant, &start.id).await?;
        if there.is_none_or(|there| there.block.is_none()) {
            self.blocks.delete_request(tenant, drainer, &start.id).await?;
        }
        Ok(drained)
    }
}
