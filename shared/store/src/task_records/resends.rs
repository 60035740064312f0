//! A task's message is sent again: the record of the task becomes the claim of the message once more.

use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use ledgerline_event::Millis;

use super::{Phase, TaskRecord, TaskRecords};
use crate::{
    Claim, Conditional, StoreError, conditionally, keys::ControlKey, number, text, with_claim::with_claim,
};

impl TaskRecords {
    /// Makes the record the claim of its message because its worker is lost, once for an attempt: if the record is as it
    /// was read and has nothing unsent in it.
    pub async fn send_again(
        &self,
        key: &ControlKey,
        as_read: &TaskRecord,
        attempt: u32,
        claim: &Claim,
    ) -> Result<Conditional<TaskRecord>, StoreError> {
        let (update, condition) = unchanged(self.table.update(key), as_read);
        let update = update
            .update_expression(format!("SET givenBack = :givenBack, {}", Claim::SET))
            .condition_expression(format!(
                "{condition} AND (attribute_not_exists(givenBack) OR givenBack < :givenBack)"
            ))
            .expression_attribute_values(":givenBack", number(attempt.into()));
        conditionally(with_claim(update, claim)).await
    }

    /// Makes the record the claim of its message because no worker has taken the task: if the record is as it was read,
    /// has nothing unsent in it, and was not enqueued after `before`. `message` replaces a message that the record keeps.
    pub async fn enqueue_again(
        &self,
        key: &ControlKey,
        as_read: &TaskRecord,
        message: &str,
        now: Millis,
        before: Millis,
        claim: &Claim,
    ) -> Result<Conditional<TaskRecord>, StoreError> {
        let (mut update, condition) = unchanged(self.table.update(key), as_read);
        let mut set = format!("SET enqueuedAt = :now, {}", Claim::SET);
        if as_read.message.is_some() {
            set.push_str(", message = :message");
            update = update.expression_attribute_values(":message", text(message));
        }
        let update = update
            // Versions before 0.1.0 gave some records the expiry of their cause. A task that waits must not lose its
            // record.
            .update_expression(format!("{set} REMOVE #ttl"))
            .condition_expression(format!(
                "{condition} AND (attribute_not_exists(enqueuedAt) OR enqueuedAt <= :before)"
            ))
            .expression_attribute_names("#ttl", "ttl")
            .expression_attribute_values(":now", number(now.get()))
            .expression_attribute_values(":before", number(before.get()));
        conditionally(with_claim(update, claim)).await
    }
}

/// Holds while the record is as it was read and has nothing unsent in it. `:pending` is a value of the claim that the
/// update makes.
fn unchanged(update: UpdateItemFluentBuilder, record: &TaskRecord) -> (UpdateItemFluentBuilder, String) {
    let mut condition = "(attribute_not_exists(#state) OR #state <> :pending)".to_owned();
    let mut update = update
        .expression_attribute_names("#state", "state")
        .expression_attribute_values(":attempt", number(record.attempt.into()));
    match record.phase {
        Phase::Waiting => {
            condition.push_str(" AND (attribute_not_exists(phase) OR phase = :phase)");
            update = update.expression_attribute_values(":phase", text("waiting"));
        }
        Phase::Running | Phase::Ended => {
            // The lease too: a worker that was only slow may have renewed it since.
            condition.push_str(" AND phase = :phase AND leaseUntil = :until");
            let until = record.lease_until.map_or(0, Millis::get);
            update = update
                .expression_attribute_values(":phase", text("running"))
                .expression_attribute_values(":until", number(until));
        }
    }
    condition.push_str(match record.attempt {
        0 => " AND (attribute_not_exists(attempt) OR attempt = :attempt)",
        _ => " AND attempt = :attempt",
    });
    (update, condition)
}
