//! Claims: the effects of everything that must happen once, stored before any of them is sent.

use aws_sdk_dynamodb::{
    error::SdkError,
    operation::{put_item::PutItemError, update_item::builders::UpdateItemFluentBuilder},
    types::{AttributeValue, ReturnValuesOnConditionCheckFailure},
};
use ledgerline_event::{Millis, Name, Seconds};
use serde::{Deserialize, Serialize};

use crate::keys::{self, ControlKey};
use crate::table::key_of;
use crate::{ControlTable, Fault, Item, StoreError, number, read, text};

/// A claim as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Claim {
    pub state: ClaimState,
    /// Identifies the claim: a task's record is one claim at its start and another at its end.
    #[serde(default)]
    pub claim_id: Option<Name>,
    /// What it started, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effects: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effects_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_shard: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Millis>,
    pub claimed_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
}

impl Claim {
    /// What an update of a record sets to make it this claim; the values go with [`Claim::values`].
    pub const SET: &str = "#state = :pending, claimId = :claimId, dueShard = :dueShard, dueAt = :dueAt, \
                                  claimedAt = :claimedAt, effects = :effects, effectsKey = :effectsKey";

    /// The claim in a record; `None` if it holds none. A task or a job that another system emitted has a record before
    /// it has a claim, or never gets one.
    pub fn in_row(row: Item) -> Result<Option<Self>, StoreError> {
        if row.contains_key("state") { read(row).map(Some) } else { Ok(None) }
    }

    /// The values of [`Claim::SET`].
    pub fn values(&self) -> Vec<(&'static str, AttributeValue)> {
        let text_or_null = |value: Option<&str>| value.map_or(AttributeValue::Null(true), text);
        vec![
            (":pending", text("pending")),
            (":claimId", text_or_null(self.claim_id.as_deref())),
            (":dueShard", text_or_null(self.due_shard.as_deref())),
            (":dueAt", number(self.due_at.unwrap_or(self.claimed_at).get())),
            (":claimedAt", number(self.claimed_at.get())),
            (":effects", text_or_null(self.effects.as_deref())),
            (":effectsKey", text_or_null(self.effects_key.as_deref())),
        ]
    }
}

/// Where a claim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimState {
    /// Its effects may not have been sent yet.
    Pending,
    /// They have.
    Done,
    /// It has no effects and never will: an operator dropped the parked start.
    Dropped,
}

/// Which request made the claim.
#[derive(Clone, Debug)]
pub enum Claimed {
    /// This one.
    New,
    /// An earlier one; the claim as it is stored.
    Before(Claim),
    /// The key has a record without a claim in it: nothing is pending.
    Recorded,
}

/// A claim with its key.
#[derive(Debug)]
pub struct StoredClaim {
    /// Its key.
    pub key: ControlKey,
    /// The claim; an error if the record is not one.
    pub claim: Result<Claim, StoreError>,
}

/// What became of a change of a pending claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimChange {
    /// The claim is changed.
    Applied,
    /// The claim is no longer pending, or the record is another claim by now.
    Superseded,
}

/// The claims of the control table: records of their own, or parts of the records of tasks and jobs.
#[derive(Clone, Debug)]
pub struct Claims {
    table: ControlTable,
}

impl Claims {
    /// The claims in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// The claim of a record; `None` if there is no record, or if it holds no claim.
    pub async fn get(&self, key: &ControlKey) -> Result<Option<Claim>, StoreError> {
        let row = self.table.get_row(key).await?;
        Ok(row.map(Claim::in_row).transpose()?.flatten())
    }

    /// Several records that are claims, in no order; those that are not there are left out.
    pub async fn get_all(&self, keys: &[ControlKey]) -> Result<Vec<StoredClaim>, StoreError> {
        let stored = |row: Item| {
            let key =
                key_of(&row).ok_or_else(|| StoreError::unreadable("reading a claim", "it has no key"))?;
            Ok(StoredClaim { key, claim: read(row) })
        };
        self.table.get_all(keys).await?.into_iter().map(stored).collect()
    }

    /// Keys of at most `limit` claims of one shard that are due, oldest first. The index lags behind the table.
    pub async fn due(&self, shard: &str, now: Millis, limit: i32) -> Result<Vec<ControlKey>, StoreError> {
        self.table.due(shard, now, limit).await
    }

    /// Keys of at most `limit` claims of one shard that are due between `from` and `until`, oldest first, each with its
    /// time.
    pub async fn due_between(
        &self,
        shard: &str,
        from: Millis,
        until: Millis,
        limit: i32,
    ) -> Result<Vec<(ControlKey, Millis)>, StoreError> {
        self.table.due_between(shard, from, until, limit).await
    }

    /// Puts a record that is a claim, unless the key has a record.
    pub async fn put_new(&self, key: &ControlKey, record: &impl Serialize) -> Result<Claimed, StoreError> {
        let put = self
            .table
            .put(key, record)?
            .condition_expression("attribute_not_exists(PK)")
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        let there = match put {
            Ok(_) => return Ok(Claimed::New),
            Err(SdkError::ServiceError(refused)) if refused.err().is_conditional_check_failed_exception() => {
                let PutItemError::ConditionalCheckFailedException(there) = refused.into_err() else {
                    unreachable!("checked by the guard");
                };
                there.item
            }
            Err(error) => return Err(StoreError::new("PutItem", error)),
        };
        let there = match there {
            Some(row) => Some(row),
            None => self.table.get_row(key).await?,
        };
        // Gone between two requests: it expired, and its event with it.
        let there = there
            .ok_or_else(|| StoreError::unreadable("PutItem", "a claim refused another and is not there"))?;
        Ok(Claim::in_row(there)?.map_or(Claimed::Recorded, Claimed::Before))
    }

    /// Postpones a pending claim.
    pub async fn postpone(&self, key: &ControlKey, until: Millis) -> Result<ClaimChange, StoreError> {
        let update = self
            .table
            .update(key)
            .update_expression("SET dueAt = :later")
            .condition_expression("#state = :pending")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":pending", text("pending"))
            .expression_attribute_values(":later", number(until.get()));
        change(update).await
    }

    /// Marks a claim as done once its effects are sent. The claim stays, so that no other process sends them
    /// again. `id` must match: the record may be another claim by now.
    pub async fn finish(&self, key: &ControlKey, id: Option<&str>) -> Result<ClaimChange, StoreError> {
        let mut update = self
            .table
            .update(key)
            .update_expression("SET #state = :done REMOVE effects, effectsKey, dueShard, dueAt")
            .condition_expression(match id {
                Some(_) => "#state = :pending AND claimId = :id",
                None => "#state = :pending AND attribute_not_exists(claimId)",
            })
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":done", text("done"))
            .expression_attribute_values(":pending", text("pending"));
        if let Some(id) = id {
            update = update.expression_attribute_values(":id", text(id));
        }
        change(update).await
    }

    /// Moves a pending alert, which versions before 0.1.0 put among the other claims, into the shards of alerts.
    pub async fn move_to_alert_shard(&self, key: &ControlKey) -> Result<ClaimChange, StoreError> {
        let update = self
            .table
            .update(key)
            .update_expression("SET dueShard = :shard")
            .condition_expression("#state = :pending")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":pending", text("pending"))
            .expression_attribute_values(":shard", text(&keys::alert_due_shard_of(key)));
        change(update).await
    }
}

async fn change(update: UpdateItemFluentBuilder) -> Result<ClaimChange, StoreError> {
    match update.send().await.map_err(|error| StoreError::new("UpdateItem", error)) {
        Ok(_) => Ok(ClaimChange::Applied),
        Err(error) if error.fault == Fault::ConditionFailed => Ok(ClaimChange::Superseded),
        Err(error) => Err(error),
    }
}
