//! The condition under which a task's record becomes the claim of its message once more.

use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use ledgerline_event::Millis;

use super::record::{Phase, TaskRecord};
use crate::conditional::{number, text};

/// Holds while the record is as it was read and has nothing unsent in it. `:pending` is a value of the claim that the
/// update makes.
pub(super) fn as_read(
    update: UpdateItemFluentBuilder,
    record: &TaskRecord,
) -> (UpdateItemFluentBuilder, String) {
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
