//! The lease on a task. The number of the attempt is its fence: a worker that wakes up after another one has acquired
//! the task has an older number, and the table refuses its writes.

use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use ledgerline_event::{Millis, catalogue::ErrorCategory};

use super::{TaskRecord, TaskRecords};
use crate::{
    Claim, Conditional, StoreError, conditionally, keys::ControlKey, number, text, with_claim::with_claim,
};

/// What a worker asks for when it acquires a task.
#[derive(Clone, Copy, Debug)]
pub struct AcquireRequest<'a> {
    /// The worker.
    pub worker_id: &'a str,
    /// The request: a worker whose answer was lost recognises itself by it.
    pub request: &'a str,
    /// The time.
    pub now: Millis,
    /// When its lease expires.
    pub until: Millis,
    /// How many attempts may count.
    pub max_attempts: u32,
    /// The message, if the record is to keep it.
    pub message: Option<&'a str>,
}

impl TaskRecords {
    /// Gives a task to a worker if no worker holds it, it has not ended, and it may be tried again.
    pub async fn acquire(
        &self,
        key: &ControlKey,
        asked: &AcquireRequest<'_>,
    ) -> Result<Conditional<TaskRecord>, StoreError> {
        let mut set = "SET phase = :running, attempt = if_not_exists(attempt, :zero) + :one, \
                       counted = if_not_exists(counted, :zero) + :one, leaseUntil = :until, workerId = :worker, \
                       takenBy = :me"
            .to_owned();
        let mut update = self
            .table
            .update(key)
            .condition_expression(
                "(attribute_not_exists(phase) OR phase <> :ended) \
                 AND (attribute_not_exists(leaseUntil) OR leaseUntil <= :now) \
                 AND (attribute_not_exists(counted) OR counted < :max)",
            )
            .expression_attribute_values(":running", text("running"))
            .expression_attribute_values(":ended", text("ended"))
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":now", number(asked.now.get()))
            .expression_attribute_values(":until", number(asked.until.get()))
            .expression_attribute_values(":max", number(asked.max_attempts.into()))
            .expression_attribute_values(":worker", text(asked.worker_id))
            .expression_attribute_values(":me", text(asked.request));
        if let Some(body) = asked.message {
            set.push_str(", message = if_not_exists(message, :message)");
            update = update.expression_attribute_values(":message", text(body));
        }
        // Versions before 0.1.0 gave some records the expiry of their cause. A task that runs must not lose its record;
        // its end says how long the record is kept.
        set.push_str(" REMOVE #ttl");
        conditionally(update.expression_attribute_names("#ttl", "ttl").update_expression(set)).await
    }

    /// Renews the lease of an attempt.
    pub async fn renew(
        &self,
        key: &ControlKey,
        attempt: u32,
        until: Millis,
    ) -> Result<Conditional<TaskRecord>, StoreError> {
        let update = self
            .table
            .update(key)
            .update_expression("SET leaseUntil = :until")
            // Never back: an earlier renewal may be on its way still, and come after this one.
            .condition_expression("phase = :running AND attempt = :attempt AND leaseUntil <= :until")
            .expression_attribute_values(":until", number(until.get()))
            .expression_attribute_values(":running", text("running"))
            .expression_attribute_values(":attempt", number(attempt.into()));
        conditionally(update).await
    }

    /// Releases a task whose attempt failed, and makes the record the claim of the event that says so.
    pub async fn release_failed(
        &self,
        key: &ControlKey,
        attempt: u32,
        error: &str,
        category: ErrorCategory,
        claim: &Claim,
    ) -> Result<Conditional<TaskRecord>, StoreError> {
        let also =
            format!("failedAttempt = :attempt, lastError = :error, lastCategory = :category, {}", Claim::SET);
        let update = self
            .release(key, attempt, &also)
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":error", text(error))
            .expression_attribute_values(":category", text(category.as_str()))
            .condition_expression(
                "phase = :running AND attempt = :attempt AND (attribute_not_exists(#state) OR #state <> :pending)",
            );
        conditionally(with_claim(update, claim)).await
    }

    /// Releases a task that nothing is wrong with: the attempt does not count.
    pub async fn release_uncounted(
        &self,
        key: &ControlKey,
        attempt: u32,
    ) -> Result<Conditional<TaskRecord>, StoreError> {
        let update = self
            .release(key, attempt, "counted = counted - :one")
            .expression_attribute_values(":one", number(1))
            .condition_expression("phase = :running AND attempt = :attempt");
        conditionally(update).await
    }

    fn release(&self, key: &ControlKey, attempt: u32, also: &str) -> UpdateItemFluentBuilder {
        self.table
            .update(key)
            .update_expression(format!(
                "SET phase = :waiting, letGo = :attempt, {also} REMOVE leaseUntil, takenBy"
            ))
            .expression_attribute_values(":waiting", text("waiting"))
            .expression_attribute_values(":running", text("running"))
            .expression_attribute_values(":attempt", number(attempt.into()))
    }
}
