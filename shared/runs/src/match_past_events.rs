//! Which of the events that were sent a wait takes: the oldest that fits and that its run has not had.
//!
//! A run remembers for each name and criteria how far it has looked, and continues from there. That is never beyond the
//! watermark of the name, behind which no event is accepted any more ([`super::sent_order`]).

use std::collections::BTreeMap;

use ledgerline_event::{Name, RunHistory, WaitFor, containment::contains, match_index::index_leaf};
use ledgerline_store::{RunRecord, SentEventRecord, keys};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::SentEvent;
use crate::SentEvents;
use ledgerline_outbox::{ComponentError, short_hash};

/// The most pairs of name and criteria that a run remembers. It looks through the events of a forgotten pair again.
const MAX_POSITIONS: usize = 32;

/// How far a run has looked, by name and criteria.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LookPositions(BTreeMap<String, Looked>);

/// A range of places, without a gap, in which the run has taken every event that fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Looked {
    after: String,
    up_to: String,
}

impl LookPositions {
    /// Where a look for events after `start` begins.
    fn begin(&self, key: &str, start: &str) -> String {
        match self.0.get(key) {
            Some(looked) if looked.after.as_str() <= start && looked.up_to.as_str() > start => {
                looked.up_to.clone()
            }
            Some(_) | None => start.to_owned(),
        }
    }

    /// Everything after `from` and up to `up_to` was looked at.
    fn advance(&mut self, key: &str, from: &str, up_to: &str) {
        if up_to <= from {
            return;
        }
        match self.0.get_mut(key) {
            Some(looked) if looked.after.as_str() <= from && from <= looked.up_to.as_str() => {
                if *up_to > *looked.up_to {
                    looked.up_to = up_to.to_owned();
                }
            }
            Some(_) | None => {
                while self.0.len() >= MAX_POSITIONS && !self.0.contains_key(key) {
                    let oldest = self.0.iter().min_by_key(|(_, looked)| looked.up_to.clone());
                    let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
                    self.0.remove(&oldest);
                }
                self.0.insert(key.to_owned(), Looked { after: from.to_owned(), up_to: up_to.to_owned() });
            }
        }
    }

    /// How far the waits of a run have looked.
    pub fn of(run: &RunRecord) -> Self {
        Self::parse(run.looks.as_deref())
    }

    /// As it is stored with the run.
    pub fn parse(json: Option<&str>) -> Self {
        // What cannot be read is looked at again.
        json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
    }

    /// The positions as they are stored.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The event that a wait takes next.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct PastEvent {
    pub wait_id: Name,
    pub event: SentEvent,
    /// Its place among the events of its name.
    place: String,
    /// What the run may remember of the look.
    looked: Option<Looking>,
}

/// Where a look began, for which name and criteria, and how far it may be remembered.
#[derive(Clone, Debug)]
struct Looking {
    positions_key: String,
    from: String,
    watermark: String,
}

impl PastEvent {
    /// Its time among sent events, and its id.
    pub fn place(&self) -> &str {
        &self.place
    }
}

impl SentEvents {
    /// The oldest event that fits an open wait and that its run has not had.
    pub async fn find_past_event(
        &self,
        tenant: &Name,
        history: &RunHistory,
        wait_id: &Name,
        positions: &mut LookPositions,
    ) -> Result<Option<PastEvent>, ComponentError> {
        let Some(wait) = history.waits().get(wait_id).filter(|wait| !wait.state.is_terminal()) else {
            return Ok(None);
        };
        let WaitFor::Event { event_name, match_criteria, since, .. } = &wait.target else { return Ok(None) };
        if let Some(since) = since {
            // An answer from now on lies after it, whatever the clock of its sender shows.
            self.raise_sent_floor(tenant, (*since).min(self.emitter.now())).await?;
        }
        // Read the watermark before the rows: an event that is accepted later lies after every row that is read now.
        let order = self.sent_order(tenant, event_name).await?;
        let in_order = self.senders_keep_order().await?;
        let settled = order.watermark.filter(|_| in_order);
        let start = since.map_or_else(|| "0".to_owned(), |since| since.to_string());
        let positions_key = short_hash(&[event_name, &match_criteria.to_string()]);
        let from = match settled {
            Some(_) => positions.begin(&positions_key, &start),
            None => start,
        };
        let leaf = index_leaf(match_criteria);
        let mut rows = self.records.after(tenant, event_name, leaf, &from);
        while let Some(row) = rows.next().await? {
            let place = keys::sent_place(row.timestamp, &row.event_id);
            if fits(&row, match_criteria, history)
                && let Some(event) = self.sent_event(tenant, event_name, row).await?
            {
                let looked = settled.map(|watermark| Looking { positions_key, from, watermark });
                return Ok(Some(PastEvent { wait_id: wait_id.clone(), event, place, looked }));
            }
        }
        if let Some(watermark) = &settled {
            positions.advance(&positions_key, &from, watermark);
        }
        Ok(None)
    }
}

impl LookPositions {
    /// The wait has taken the event.
    pub fn taken(&mut self, past: &PastEvent) {
        if let Some(Looking { positions_key, from, watermark }) = &past.looked {
            self.advance(positions_key, from, past.place.as_str().min(watermark));
        }
    }
}

/// Whether a sent event fits the criteria, and the run has not had it.
fn fits(row: &SentEventRecord, criteria: &Value, history: &RunHistory) -> bool {
    !history.has_had(&row.event_id)
        && serde_json::from_str(&row.sent_match).is_ok_and(|sent: Value| contains(&sent, criteria))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_goes_on_where_the_last_one_ended_unless_it_begins_earlier() {
        let mut positions = LookPositions::default();
        assert_eq!(positions.begin("k", "0"), "0");
        positions.advance("k", "0", "5#a");
        assert_eq!(positions.begin("k", "0"), "5#a");
        assert_eq!(positions.begin("k", "3"), "5#a");
        assert_eq!(positions.begin("k", "7"), "7");
        assert_eq!(positions.begin("other", "0"), "0");
        positions.advance("k", "5#a", "6#a");
        assert_eq!(positions.begin("k", "0"), "6#a");
    }

    #[test]
    fn what_lies_before_a_gap_is_looked_at_again() {
        let mut positions = LookPositions::default();
        positions.advance("k", "7", "9#a");
        assert_eq!(positions.begin("k", "0"), "0");
        assert_eq!(positions.begin("k", "7"), "9#a");
        positions.advance("k", "0", "3#a");
        assert_eq!(positions.begin("k", "0"), "3#a");
        assert_eq!(positions.begin("k", "7"), "7");
    }

    #[test]
    fn positions_do_not_grow_without_end() {
        let mut positions = LookPositions::default();
        for n in 0..100 {
            positions.advance(&format!("k{n}"), "0", &format!("{n:03}#a"));
        }
        assert_eq!(positions.0.len(), MAX_POSITIONS);
        assert_eq!(positions.begin("k99", "0"), "099#a");
        assert_eq!(LookPositions::parse(Some(&positions.to_json())), positions);
        assert_eq!(LookPositions::parse(Some("?")), LookPositions::default());
    }
}
