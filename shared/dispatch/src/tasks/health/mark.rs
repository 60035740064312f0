//! The mark that a tenant has tasks under way, and what the last check remembered beside it.
//!
//! The drainer puts the mark, with a new stamp, before any row says that a task is being worked on. The list of
//! such tasks is an index, which is behind its table: the mark is taken away only after the list was empty for
//! a while under one and the same stamp.

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_event::Millis;
use ledgerline_ledger::{Fault, StoreError, control::keys};
use serde::Deserialize;

use super::news::Unwell;
use crate::{
    Dispatch, DispatchError,
    conditional::{Answer, conditionally, number, text},
};

/// How long a list must have been empty: many times what an index has ever been behind, and longer than a dispatcher
/// may take from its mark to its row.
const QUIET_MS: u64 = 10 * 60_000;
/// More than this is remembered in the payload bucket: an item has 400 KB.
const INLINE_BYTES: usize = 100_000;

/// A mark as it is stored.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct BusyMark {
    #[serde(rename = "SK")]
    pub(super) tenant: String,
    /// The drainer's: rises whenever a task begins to be worked on.
    stamp: u64,
    /// Ours: rises with every change of what follows.
    version: u64,
    /// Tasks that were not healthy, as JSON: one attribute, whatever it holds.
    unwell: Option<String>,
    /// Where that lies if it is large.
    unwell_key: Option<String>,
    /// The stamp under which the list was first found empty, and when.
    quiet_stamp: Option<u64>,
    quiet_since: Option<Millis>,
}

impl Dispatch {
    /// What the last check remembered.
    pub(super) async fn unwell_before(&self, mark: &BusyMark) -> Result<Unwell, DispatchError> {
        let json = match (&mark.unwell, &mark.unwell_key) {
            (Some(json), _) => Some(json.clone().into_bytes()),
            (None, Some(key)) => self.payloads.get(key).await?,
            (None, None) => None,
        };
        // What cannot be read is told once more.
        Ok(json.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default())
    }

    /// Remembers the tasks that are not healthy, unless another check has changed the mark since it was read.
    pub(super) async fn note_unwell(
        &self,
        mark: &mut BusyMark,
        before: &Unwell,
        unwell: &Unwell,
    ) -> Result<(), DispatchError> {
        if before == unwell {
            return Ok(());
        }
        let json = serde_json::to_string(unwell)
            .map_err(|error| StoreError::unreadable("UpdateItem", error.to_string()))?;
        let (change, value) = if unwell.is_empty() {
            (" REMOVE unwell, unwellKey", None)
        } else if json.len() <= INLINE_BYTES {
            (", unwell = :unwell REMOVE unwellKey", Some(json))
        } else {
            let key = format!("claims/{}.json", self.new_event_id());
            self.payloads.put(&key, json.into_bytes()).await?;
            (", unwellKey = :unwell REMOVE unwell", Some(key))
        };
        self.change_mark(mark, change, value.iter().map(|value| (":unwell", text(value)))).await
    }

    /// Notes that the tenant has nothing under way; takes the mark away if that has been so for long enough.
    pub(super) async fn note_quiet(&self, mark: &mut BusyMark, now: Millis) -> Result<(), DispatchError> {
        let since = mark.quiet_since.filter(|_| mark.quiet_stamp == Some(mark.stamp));
        let Some(since) = since else {
            let values = [(":stamp", number(mark.stamp)), (":now", number(now.get()))];
            return self.change_mark(mark, ", quietStamp = :stamp, quietSince = :now", values).await;
        };
        if since > now.minus(QUIET_MS) {
            return Ok(());
        }
        let delete = self
            .control
            .delete(&keys::busy_mark(&mark.tenant))
            .condition_expression("stamp = :stamp AND version = :version")
            .expression_attribute_values(":stamp", number(mark.stamp))
            .expression_attribute_values(":version", number(mark.version));
        match delete.send().await.map_err(|error| StoreError::new("DeleteItem", error)) {
            // A task has begun since.
            Err(error) if error.fault == Fault::Refused => Ok(()),
            other => Ok(other.map(|_| ())?),
        }
    }

    /// Changes the part of a mark that belongs to the check, if it is as it was read. If not, another process
    /// was faster and has checked the same tasks.
    async fn change_mark(
        &self,
        mark: &mut BusyMark,
        change: &str,
        values: impl IntoIterator<Item = (&'static str, AttributeValue)>,
    ) -> Result<(), DispatchError> {
        let unchanged = match mark.version {
            0 => "attribute_exists(PK) AND attribute_not_exists(version)",
            _ => "version = :version",
        };
        let mut update = self
            .control
            .update(&keys::busy_mark(&mark.tenant))
            .update_expression(format!("SET version = :next{change}"))
            .condition_expression(unchanged)
            .expression_attribute_values(":next", number(mark.version + 1));
        if mark.version > 0 {
            update = update.expression_attribute_values(":version", number(mark.version));
        }
        for (name, value) in values {
            update = update.expression_attribute_values(name, value);
        }
        if let Answer::Done(changed) = conditionally(update).await? {
            *mark = changed;
        }
        Ok(())
    }
}
