//! Lists the starts that did not work: those that wait in a block or at which the drain is halted, and those that are
//! parked.

use ledgerline_event::Name;
use ledgerline_store::{Block, ParkedFilter, ParkedPage, ParkedStart};

use crate::ParkedStarts;
use ledgerline_outbox::ComponentError;

impl ParkedStarts {
    /// A tenant's parked starts, by the time of their events, newest first.
    pub async fn parked(
        &self,
        tenant: &Name,
        filter: ParkedFilter,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<ParkedPage, ComponentError> {
        let page = self.records.page(tenant, filter, limit, cursor).await?;
        Ok(ParkedPage { items: self.with_block_details(tenant, page.items).await?, cursor: page.cursor })
    }

    /// Fills in attempts, reason and next attempt of starts that wait in a block, since the block's record has them.
    async fn with_block_details(
        &self,
        tenant: &Name,
        mut starts: Vec<ParkedStart>,
    ) -> Result<Vec<ParkedStart>, ComponentError> {
        let block_of = |start: &ParkedStart| Some((start.drainer_id.clone(), start.block.clone()?));
        let mut wanted: Vec<(Name, String)> = starts.iter().filter_map(block_of).collect();
        wanted.sort();
        wanted.dedup();
        let blocks: Vec<Block> = self.blocks.get_some(tenant, &wanted).await?;
        for start in &mut starts {
            let block = blocks.iter().find(|block| {
                Some(&block.name) == start.block.as_ref() && block.drainer_id == start.drainer_id
            });
            let Some(block) = block else { continue };
            start.next_attempt_at = Some(block.next_attempt_at);
            if block.head.start_id == start.id {
                start.reason.clone_from(&block.reason);
                start.attempts = block.attempts;
            } else {
                start.reason = format!("waits for {}: {}", block.head.event_id, block.reason);
                start.waits_for = Some(block.head.event_id.clone());
            }
        }
        Ok(starts)
    }

    /// One parked start.
    pub async fn parked_start(&self, tenant: &Name, id: &str) -> Result<ParkedStart, ComponentError> {
        let found = match id.len() {
            1..=64 => self.records.get(tenant, id).await?,
            _ => None,
        };
        let shown = self.with_block_details(tenant, found.into_iter().collect()).await?;
        shown.into_iter().next().ok_or_else(|| ComponentError::Unknown {
            what: "parked",
            id: id.to_owned(),
            hint: "; `ledgerline parked list` shows those that there are".into(),
        })
    }
}
