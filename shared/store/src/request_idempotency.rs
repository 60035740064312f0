//! What the first request under an idempotency key made. The record is written in the transaction that makes the thing itself:
//! either both are there or neither is.

use aws_sdk_dynamodb::types::TransactWriteItem;
use ledgerline_event::{Millis, Name, Seconds};
use serde::{Deserialize, Serialize};

use crate::{
    Cancelled, Claim, ControlKey, ControlTable, IDEMPOTENCY_TTL_SECONDS, RetryCause, StoreError, TableWrite,
    build_error, cancelled, number,
};

/// When an idempotency key that is used now expires: then another request may use it.
pub fn idempotency_expires_at(now: Millis) -> Seconds {
    now.seconds().plus(IDEMPOTENCY_TTL_SECONDS)
}

/// A request under a key.
#[derive(Clone, Debug)]
pub struct KeyedRequest {
    /// The record of the key.
    pub row: ControlKey,
    /// A digest of what is asked for.
    pub content_hash: String,
    /// Whether a repeat may ask for something else.
    pub any_content: bool,
}

/// What the first request under a key made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct FirstRequest {
    /// The id of what it made. A start that an operator has dropped has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<Name>,
    /// The run that received it, of a hook's payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<Name>,
    /// The claim that holds its effects, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim_pk: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim_sk: Option<String>,
    pub content_hash: String,
    /// When the key is free again. DynamoDB may delete later than that, so compare.
    ttl: Seconds,
}

impl FirstRequest {
    /// A request that made `made` at `now`.
    pub fn new(keyed: &KeyedRequest, made: Option<Name>, now: Millis) -> Self {
        Self {
            made,
            run_id: None,
            claim_pk: None,
            claim_sk: None,
            content_hash: keyed.content_hash.clone(),
            ttl: idempotency_expires_at(now),
        }
    }

    /// The same for a request whose payload a run received.
    pub fn for_run(self, run_id: &Name) -> Self {
        Self { run_id: Some(run_id.clone()), ..self }
    }

    /// The same for a request whose effects a claim holds.
    pub fn claimed_by(self, claim: &ControlKey) -> Self {
        Self { claim_pk: Some(claim.pk.clone()), claim_sk: Some(claim.sk.clone()), ..self }
    }

    /// The claim that holds its effects, if there is one.
    pub fn claim(&self) -> Option<ControlKey> {
        Some(ControlKey { pk: self.claim_pk.clone()?, sk: self.claim_sk.clone()? })
    }
}

/// What became of writing the record of a key together with a claim.
#[derive(Debug)]
pub enum KeyedPut {
    /// Everything is written.
    Applied,
    /// An earlier request has the key, or its row has just expired.
    KeyTaken,
    /// The key was free, and the claim is there already.
    ClaimTaken(Box<Claim>),
    /// Nothing is written: another writer, or throttling, was in the way.
    Busy(RetryCause),
}

/// The first requests under all keys.
#[derive(Clone, Debug)]
pub struct FirstRequests {
    table: ControlTable,
}

impl FirstRequests {
    /// The first requests in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// The first request under a key, unless the key is free.
    pub async fn get(&self, row: &ControlKey, now: Millis) -> Result<Option<FirstRequest>, StoreError> {
        let first: Option<FirstRequest> = self.table.get(row).await?;
        Ok(first.filter(|first| first.ttl > now.seconds()))
    }

    /// The part of a transaction that writes the record of a key: refused if the key is not free.
    pub fn put_new(
        &self,
        row: &ControlKey,
        first: &FirstRequest,
        now: Millis,
    ) -> Result<TableWrite, StoreError> {
        Ok(self.write(row, first, now)?.into())
    }

    fn write(
        &self,
        row: &ControlKey,
        first: &FirstRequest,
        now: Millis,
    ) -> Result<TransactWriteItem, StoreError> {
        let put = self
            .table
            .put_for_transaction(row, first)?
            .condition_expression("attribute_not_exists(PK) OR #ttl <= :now")
            .expression_attribute_names("#ttl", "ttl")
            .expression_attribute_values(":now", number(now.seconds().get()))
            .build()
            .map_err(build_error)?;
        Ok(TransactWriteItem::builder().put(put).build())
    }

    /// Writes the record of a key, and with it a claim if one is given, both or neither. One attempt.
    pub async fn put_new_with_claim(
        &self,
        row: &ControlKey,
        first: &FirstRequest,
        claim: Option<(&ControlKey, &Claim)>,
        now: Millis,
    ) -> Result<KeyedPut, StoreError> {
        let mut transaction = self.table.transaction().transact_items(self.write(row, first, now)?);
        if let Some((key, claim)) = claim {
            let put = self.table.put_for_transaction(key, claim)?;
            let put = put.condition_expression("attribute_not_exists(PK)").build().map_err(build_error)?;
            transaction = transaction.transact_items(TransactWriteItem::builder().put(put).build());
        }
        let refused = match cancelled(transaction.send().await)? {
            None => return Ok(KeyedPut::Applied),
            Some(Cancelled::Busy(why)) => return Ok(KeyedPut::Busy(why)),
            Some(Cancelled::Refused(positions)) => positions,
        };
        let Some((key, _)) = claim.filter(|_| !refused.contains(&0)) else { return Ok(KeyedPut::KeyTaken) };
        let there: Option<Claim> = self.table.get(key).await?;
        let missing =
            || StoreError::unreadable("TransactWriteItems", "a claim refused another and is not there");
        Ok(KeyedPut::ClaimTaken(Box::new(there.ok_or_else(missing)?)))
    }
}
