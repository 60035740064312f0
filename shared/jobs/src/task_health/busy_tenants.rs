//! What a check remembers beside the mark that a tenant has tasks under way, and when it removes the mark.

use ledgerline_event::Millis;
use ledgerline_outbox::ComponentError;
use ledgerline_store::{BusyChange, BusyMark, BusyRemoval, Conditional, StoreError};

use super::alert_changes::Unwell;
use crate::Health;

/// How long a list must have been empty: many times what an index has ever been behind, and longer than a dispatcher
/// may take from its mark to its row.
const QUIET_MS: u64 = 10 * 60_000;
/// More than this is remembered in the payload bucket: an item has 400 KB.
const INLINE_BYTES: usize = 100_000;

impl Health {
    /// What the last check remembered.
    pub async fn unwell_before(&self, mark: &BusyMark) -> Result<Unwell, ComponentError> {
        let json = match (&mark.unwell, &mark.unwell_key) {
            (Some(json), _) => Some(json.clone().into_bytes()),
            (None, Some(key)) => self.payloads.get(key).await?,
            (None, None) => None,
        };
        // What cannot be read is alerted once more.
        Ok(json.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default())
    }

    /// Remembers the tasks that are not healthy, unless another check has changed the mark since it was read.
    pub async fn remember_unwell(
        &self,
        mark: &mut BusyMark,
        before: &Unwell,
        unwell: &Unwell,
    ) -> Result<(), ComponentError> {
        if before == unwell {
            return Ok(());
        }
        let json = serde_json::to_string(unwell)
            .map_err(|error| StoreError::unreadable("UpdateItem", error.to_string()))?;
        let change = if unwell.is_empty() {
            BusyChange::AllWell
        } else if json.len() <= INLINE_BYTES {
            BusyChange::Unwell(json)
        } else {
            let key = format!("claims/{}.json", self.emitter.new_event_id());
            self.payloads.put(&key, json.into_bytes()).await?;
            BusyChange::UnwellAt(key)
        };
        self.change_mark(mark, &change).await
    }

    /// Notes that the tenant has nothing under way; takes the mark away if that has been so for long enough.
    pub async fn note_nothing_under_way(
        &self,
        mark: &mut BusyMark,
        now: Millis,
    ) -> Result<(), ComponentError> {
        match quiet_step(mark, now) {
            QuietStep::Begin => {
                self.change_mark(mark, &BusyChange::Quiet { stamp: mark.stamp, since: now }).await
            }
            QuietStep::Wait => Ok(()),
            QuietStep::Remove => match self.busy.remove(mark).await? {
                BusyRemoval::Applied | BusyRemoval::Superseded => Ok(()),
            },
        }
    }

    async fn change_mark(&self, mark: &mut BusyMark, change: &BusyChange) -> Result<(), ComponentError> {
        match self.busy.change(mark, change).await? {
            Conditional::Done(changed) => *mark = changed,
            Conditional::Refused(_) => {}
        }
        Ok(())
    }
}

/// What to do with the mark of a tenant that has nothing under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuietStep {
    /// Remember since when.
    Begin,
    /// Leave it: the list may be behind.
    Wait,
    /// Remove it.
    Remove,
}

/// Compares the time since which the list is empty, under the stamp of now, with the time that an index may be behind.
fn quiet_step(mark: &BusyMark, now: Millis) -> QuietStep {
    match mark.quiet_since.filter(|_| mark.quiet_stamp == Some(mark.stamp)) {
        None => QuietStep::Begin,
        Some(since) if since > now.minus(QUIET_MS) => QuietStep::Wait,
        Some(_) => QuietStep::Remove,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_removed_only_after_the_list_was_empty_for_long_enough_under_one_stamp() {
        let now = Millis::try_from(1_767_453_739_000).unwrap();
        let quiet =
            |quiet_stamp, quiet_since| BusyMark { stamp: 3, quiet_stamp, quiet_since, ..BusyMark::default() };
        assert_eq!(quiet_step(&quiet(None, None), now), QuietStep::Begin);
        assert_eq!(quiet_step(&quiet(Some(2), Some(now.minus(2 * QUIET_MS))), now), QuietStep::Begin);
        assert_eq!(quiet_step(&quiet(Some(3), Some(now.minus(QUIET_MS - 1))), now), QuietStep::Wait);
        assert_eq!(quiet_step(&quiet(Some(3), Some(now.minus(QUIET_MS))), now), QuietStep::Remove);
    }
}
