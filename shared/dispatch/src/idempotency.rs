//! The idempotency key of a request: a row that says what its first request made, and what that request asked for.
//!
//! The row is written in the transaction that makes the thing itself: either both are there or neither is. So of two
//! requests with one key one makes something and the other finds what it made, and a repeat after any error answers
//! the ids of the first request and finishes what that request left undone.

use aws_sdk_dynamodb::types::TransactWriteItem;
use ledgerline_event::{Invalid, Millis, Name, Seconds};
use ledgerline_ledger::{
    StoreError,
    control::{keys::ControlKey, marker::LIFETIME_SECONDS},
};
use serde::{Deserialize, Serialize};

use crate::{
    Dispatch, DispatchError,
    claim::{Claimed, Intent},
    conditional::number,
    transaction::{Cancelled, Hindrance, Patience, built, busy, cancelled},
};

/// The longest key, in bytes.
const KEY_BYTES: usize = 255;

/// Whether a caller may use this key: 1 to 255 bytes of visible characters. The error names `field`.
pub fn check_idempotency_key(field: &'static str, key: &str) -> Result<(), Invalid> {
    if key.is_empty() || key.len() > KEY_BYTES {
        let reason = format!("has {} bytes; 1 to {KEY_BYTES} are allowed", key.len());
        return Err(Invalid::new(field, reason));
    }
    match key.chars().find(|c| c.is_control() || c.is_whitespace() && *c != ' ') {
        Some(hidden) => {
            let reason = format!("contains the invisible character {}", hidden.escape_unicode());
            Err(Invalid::new(field, reason))
        }
        None => Ok(()),
    }
}

/// When a key that is used now is free again.
pub(crate) fn free_at(now: Millis) -> Seconds {
    now.seconds().plus(LIFETIME_SECONDS)
}

/// A request under a key.
#[derive(Clone, Debug)]
pub(crate) struct Keyed {
    /// The row of the key.
    pub(crate) row: ControlKey,
    /// A digest of what is asked for.
    pub(crate) content_hash: String,
    /// Whether a repeat may ask for something else.
    pub(crate) any_content: bool,
}

/// What the first request under a key made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FirstRequest {
    /// The id of what it made. A start that an operator has dropped has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) made: Option<Name>,
    /// The run that received it, of a hook's payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run_id: Option<Name>,
    /// The claim that holds its effects, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim_pk: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim_sk: Option<String>,
    pub(crate) content_hash: String,
    /// When the key is free again. DynamoDB may delete later than that, so compare.
    ttl: Seconds,
}

impl FirstRequest {
    /// A request that made `made` at `now`.
    pub(crate) fn new(keyed: &Keyed, made: Option<Name>, now: Millis) -> Self {
        Self {
            made,
            run_id: None,
            claim_pk: None,
            claim_sk: None,
            content_hash: keyed.content_hash.clone(),
            ttl: free_at(now),
        }
    }

    pub(crate) fn for_run(self, run_id: &Name) -> Self {
        Self { run_id: Some(run_id.clone()), ..self }
    }

    fn claimed_by(self, claim: &ControlKey) -> Self {
        Self { claim_pk: Some(claim.pk.clone()), claim_sk: Some(claim.sk.clone()), ..self }
    }

    fn claim(&self) -> Option<ControlKey> {
        Some(ControlKey { pk: self.claim_pk.clone()?, sk: self.claim_sk.clone()? })
    }

    /// Refuses a request that asks for something else than the first one did.
    pub(crate) fn check(&self, keyed: &Keyed) -> Result<(), DispatchError> {
        match keyed.any_content || self.content_hash == keyed.content_hash {
            true => Ok(()),
            false => {
                let made = self.made.as_deref().unwrap_or("nothing");
                let reason = format!(
                    "the idempotency key was used for a request with other content, which made {made}; use a new key"
                );
                Err(DispatchError::Refused(reason))
            }
        }
    }
}

/// Which request made it.
#[derive(Clone, Debug)]
pub(crate) enum Made {
    /// This one.
    Now,
    /// One before it; the id of what that one made, if it made anything.
    Before(Option<Name>),
}

impl Dispatch {
    /// What the first request under a key made, unless the key is free.
    pub(crate) async fn first_request(
        &self,
        row: &ControlKey,
    ) -> Result<Option<FirstRequest>, DispatchError> {
        let first: Option<FirstRequest> = self.control.get(row).await?;
        Ok(first.filter(|first| first.ttl > self.now().seconds()))
    }

    /// Writes the row of a key if the key is free.
    pub(crate) fn first_request_write(
        &self,
        row: &ControlKey,
        first: &FirstRequest,
    ) -> Result<TransactWriteItem, DispatchError> {
        let put = self
            .control
            .put_for_transaction(row, first)?
            .condition_expression("attribute_not_exists(PK) OR #ttl <= :now")
            .expression_attribute_names("#ttl", "ttl")
            .expression_attribute_values(":now", number(self.now().seconds().get()))
            .build()
            .map_err(built)?;
        Ok(TransactWriteItem::builder().put(put).build())
    }

    /// What an earlier request under this key made, with everything that the earlier request left undone finished.
    pub(crate) async fn repeated(&self, keyed: &Keyed) -> Result<Option<FirstRequest>, DispatchError> {
        let Some(first) = self.first_request(&keyed.row).await? else { return Ok(None) };
        self.finish_first(&first, keyed).await?;
        Ok(Some(first))
    }

    async fn finish_first(&self, first: &FirstRequest, keyed: &Keyed) -> Result<(), DispatchError> {
        first.check(keyed)?;
        if let Some(claim) = first.claim() {
            self.repeat(&claim).await?;
        }
        Ok(())
    }

    /// Makes a claim and sends its effects, once per key. What an earlier request claimed is finished instead.
    pub(crate) async fn carry_out_once(
        &self,
        intent: Intent,
        keyed: Option<&Keyed>,
    ) -> Result<Made, DispatchError> {
        let Some(keyed) = keyed else {
            let claimed = self.carry_out(std::slice::from_ref(&intent)).await?;
            return Ok(match claimed.into_iter().next() {
                // A put that was sent twice finds itself.
                Some(Claimed::Before(claim))
                    if claim.started.is_none() || claim.started != intent.started =>
                {
                    Made::Before(claim.started)
                }
                _ => Made::Now,
            });
        };
        match self.claim_once(&intent, keyed).await? {
            None => {
                self.repeat(&intent.key).await?;
                Ok(Made::Now)
            }
            Some(first) => {
                self.finish_first(&first, keyed).await?;
                Ok(Made::Before(first.made))
            }
        }
    }

    /// Makes a claim together with the row of its key; what the first request made if this is not the first.
    async fn claim_once(
        &self,
        intent: &Intent,
        keyed: &Keyed,
    ) -> Result<Option<FirstRequest>, DispatchError> {
        let claim = self.pending(intent).await?;
        let mut first = FirstRequest::new(keyed, intent.started.clone(), self.now()).claimed_by(&intent.key);
        // Whether the claim is there already: the key of a workflow type has made it before.
        let mut claimed_before = false;
        let mut patience = Patience::default();
        loop {
            let mut transaction =
                self.control.transaction().transact_items(self.first_request_write(&keyed.row, &first)?);
            if !claimed_before {
                let put = self.control.put_for_transaction(&intent.key, &claim)?;
                let put = put.condition_expression("attribute_not_exists(PK)").build().map_err(built)?;
                transaction = transaction.transact_items(TransactWriteItem::builder().put(put).build());
            }
            match cancelled(transaction.send().await)? {
                None if claimed_before => return Ok(Some(first)),
                None => return Ok(None),
                Some(Cancelled::Refused(positions)) if positions.contains(&0) => {
                    match self.first_request(&keyed.row).await? {
                        // It was done, and only the answer was lost.
                        Some(there) if there.made == intent.started => return Ok(None),
                        Some(there) => return Ok(Some(there)),
                        None => busy(&mut patience, Hindrance::Behind).await?,
                    }
                }
                Some(Cancelled::Refused(_)) => {
                    let there: Option<crate::claim::Claim> = self.control.get(&intent.key).await?;
                    let there = there.ok_or_else(|| {
                        StoreError::unreadable(
                            "TransactWriteItems",
                            "a claim refused another and is not there",
                        )
                    })?;
                    first.made = there.started;
                    claimed_before = true;
                }
                Some(Cancelled::Busy(why)) => busy(&mut patience, why).await?,
            }
        }
    }
}
