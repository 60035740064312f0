//! The end of a generation. It has at most one.

use ledgerline_event::{Millis, Name, Seconds};

use super::{TaskRecord, TaskRecords};
use crate::{
    Claim, Conditional, StoreError, conditionally, keys::ControlKey, number, text, with_claim::with_claim,
};

/// On what condition a task may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCondition {
    /// This attempt holds it.
    HeldBy {
        /// The attempt.
        attempt: u32,
    },
    /// The record is as it was read: no worker has acquired the task since, and none holds it.
    HeldByNone {
        /// The last attempt as it was read.
        attempt: u32,
        /// The time.
        now: Millis,
    },
}

impl TaskRecords {
    /// Ends a generation, and makes its record the claim of the terminal event. Refused too while the record is a
    /// pending claim.
    pub async fn end(
        &self,
        key: &ControlKey,
        condition: EndCondition,
        end_event: &Name,
        claim: &Claim,
    ) -> Result<Conditional<TaskRecord>, StoreError> {
        let update = self.table.update(key);
        let (update, attempt, also, condition) = match condition {
            EndCondition::HeldBy { attempt } => (
                update.expression_attribute_values(":running", text("running")),
                attempt,
                ", endAttempt = :attempt",
                "phase = :running AND attempt = :attempt",
            ),
            EndCondition::HeldByNone { attempt, now } => (
                update.expression_attribute_values(":now", number(now.get())),
                attempt,
                "",
                match attempt {
                    0 => {
                        "(attribute_not_exists(phase) OR phase <> :ended) \
                         AND (attribute_not_exists(leaseUntil) OR leaseUntil <= :now) \
                         AND (attribute_not_exists(attempt) OR attempt = :attempt)"
                    }
                    _ => {
                        "(attribute_not_exists(phase) OR phase <> :ended) \
                         AND (attribute_not_exists(leaseUntil) OR leaseUntil <= :now) AND attempt = :attempt"
                    }
                },
            ),
        };
        let update = update
            .update_expression(format!(
                "SET phase = :ended, endEvent = :endEvent{also}, {} REMOVE leaseUntil, takenBy, message, messageKey",
                Claim::SET
            ))
            .condition_expression(format!(
                "{condition} AND (attribute_not_exists(#state) OR #state <> :pending)"
            ))
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":ended", text("ended"))
            .expression_attribute_values(":endEvent", text(end_event))
            .expression_attribute_values(":attempt", number(attempt.into()));
        conditionally(with_claim(update, claim)).await
    }

    /// Ends a generation by a terminal event that is in the ledger, unless another event has ended it. The record keeps
    /// an expiry that it has.
    pub async fn note_end(
        &self,
        key: &ControlKey,
        end_event: &Name,
        ttl: Option<Seconds>,
    ) -> Result<Conditional<TaskRecord>, StoreError> {
        let mut set = "SET phase = :ended, endEvent = :endEvent".to_owned();
        let mut update = self
            .table
            .update(key)
            .condition_expression("attribute_not_exists(endEvent) OR endEvent = :endEvent")
            .expression_attribute_values(":ended", text("ended"))
            .expression_attribute_values(":endEvent", text(end_event));
        if let Some(ttl) = ttl {
            set.push_str(", #ttl = if_not_exists(#ttl, :ttl)");
            update = update
                .expression_attribute_names("#ttl", "ttl")
                .expression_attribute_values(":ttl", number(ttl.get()));
        }
        let update =
            update.update_expression(format!("{set} REMOVE leaseUntil, takenBy, message, messageKey"));
        conditionally(update).await
    }
}
