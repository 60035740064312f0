//! A wait looks back: the event that it waits for may have been sent before it was registered.

use std::collections::BTreeSet;

use ledgerline_event::{Name, WaitFor, leaves::index_leaf};
use ledgerline_ledger::{
    StoreError,
    control::{keys, read},
};

use super::{
    RunLease, RunLog,
    send::SentRow,
    side_writes::{Owner, wait_key},
};
use crate::{Dispatch, DispatchError, conditional::text};

impl Dispatch {
    /// Completes a wait that was just registered by the oldest event that it waits for and that its run has not had.
    /// Answers whether there was one: then there is news in the log. `lease` of whoever works on the run.
    pub async fn look_back(
        &self,
        log: &RunLog,
        wait_id: &Name,
        lease: Option<&RunLease>,
    ) -> Result<bool, DispatchError> {
        let Some(wait) = log.history.waits().get(wait_id) else { return Ok(false) };
        if wait.state.is_terminal() {
            return Ok(false);
        }
        let WaitFor::Event { event_name, match_criteria, since, .. } = &wait.what else { return Ok(false) };
        let had: BTreeSet<&str> =
            log.history.waits().iter().filter_map(|wait| wait.event_id.as_deref()).collect();
        let key = wait_key(&log.tenant, &log.run_id, wait_id, &wait.what);
        let owner = Owner::of_wait(&log.run_id, wait_id, match_criteria);
        let partition = keys::sent_events(&log.tenant, event_name, index_leaf(match_criteria));
        let from = since.map_or_else(|| "0".to_owned(), |since| since.to_string());
        let mut pages = self
            .control
            .partition(&partition)
            .key_condition_expression("PK = :pk AND SK >= :from")
            .expression_attribute_values(":from", text(&from))
            .into_paginator()
            .send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            for row in page.items.unwrap_or_default() {
                let row: SentRow = read(row)?;
                if had.contains(row.event_id.as_str()) || !row.matches(match_criteria) {
                    continue;
                }
                let Some(sent) = self.sent_event(&log.tenant, event_name, &row).await? else { continue };
                if self.wake_by_event(&sent, &key, &owner, lease).await? {
                    return Ok(true);
                }
                // The wait is gone, or its run had the event after all.
                if self.control.get::<Owner>(&key).await?.is_none() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
