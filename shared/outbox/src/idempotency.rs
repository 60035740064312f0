//! The idempotency key of a request: a row that says what its first request made, and what that request asked for.
//!
//! The row is written in the transaction that makes the thing itself: either both are there or neither is. So of two
//! requests with one key one makes something and the other finds what it made. A repeat after any error returns the
//! ids of the first request, and finishes what that request left undone.

use ledgerline_event::{Invalid, Name};
use ledgerline_store::{
    Fault, FirstRequest, KeyedPut, KeyedRequest, RequestRetry, RetryCause, TableWrite, back_off,
    keys::ControlKey,
};

use crate::{Claimed, ComponentError, Outbox, PendingEffects};

/// The longest key, in bytes.
const KEY_BYTES: usize = 255;

/// Whether a caller may use this key: 1 to 255 bytes of visible characters and spaces. The error names `field`.
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

/// Refuses a request whose content is not that of the first one.
fn check_same_content(first: &FirstRequest, keyed: &KeyedRequest) -> Result<(), ComponentError> {
    if keyed.any_content || first.content_hash == keyed.content_hash {
        return Ok(());
    }
    let made = first.made.as_deref().unwrap_or("nothing");
    Err(ComponentError::Refused(format!(
        "the idempotency key was used for a request with other content, which made {made}; use a new key"
    )))
}

/// Which request under an idempotency key made the thing.
#[derive(Clone, Debug)]
pub enum Made {
    /// This one.
    Now,
    /// One before it; the id of what that one made, if it made anything.
    Before(Option<Name>),
}

/// What a request has sent; `None` if it sent an event to runs and some of them could not be notified, because too many senders
/// notify one of them at once or the table throttles. That event is accepted, whichever request under the key sent it first, and
/// the sweep notifies the other runs: after an error the sender would send it twice.
fn accepted<T>(sent: Result<T, ComponentError>) -> Result<Option<T>, ComponentError> {
    match sent {
        Err(ComponentError::NotNotified(error))
            if matches!(error.fault, Fault::Conflict | Fault::Throttled) =>
        {
            tracing::warn!(%error, "some runs were not notified of an event; the sweep notifies them");
            Ok(None)
        }
        other => other.map(Some),
    }
}

impl Outbox {
    /// What the first request under a key made, unless the key is free.
    pub async fn first_request(&self, row: &ControlKey) -> Result<Option<FirstRequest>, ComponentError> {
        Ok(self.first_requests.get(row, self.emitter.now()).await?)
    }

    /// The write that puts the row of a key if the key is free; the caller makes it part of a transaction.
    pub fn first_request_write(
        &self,
        row: &ControlKey,
        first: &FirstRequest,
    ) -> Result<TableWrite, ComponentError> {
        Ok(self.first_requests.put_new(row, first, self.emitter.now())?)
    }

    /// What an earlier request under this key made. First finishes what that request left undone.
    pub async fn repeated(&self, keyed: &KeyedRequest) -> Result<Option<FirstRequest>, ComponentError> {
        let Some(first) = self.first_request(&keyed.row).await? else { return Ok(None) };
        self.finish_first(&first, keyed).await?;
        Ok(Some(first))
    }

    async fn finish_first(&self, first: &FirstRequest, keyed: &KeyedRequest) -> Result<(), ComponentError> {
        check_same_content(first, keyed)?;
        if let Some(claim) = first.claim() {
            accepted(self.resume(&claim).await)?;
        }
        Ok(())
    }

    /// Makes a claim and sends its effects, once per key. What an earlier request claimed is finished instead.
    pub async fn execute_once(
        &self,
        pending: PendingEffects,
        keyed: Option<&KeyedRequest>,
    ) -> Result<Made, ComponentError> {
        let Some(keyed) = keyed else {
            return Ok(match accepted(self.execute(&pending).await)? {
                Some(Claimed::Before(claim))
                    if claim.started.is_none() || claim.started != pending.started =>
                {
                    Made::Before(claim.started)
                }
                // The claim may also be this one: the SDK sent the put twice, and the second found the first.
                Some(Claimed::Before(_) | Claimed::New | Claimed::Recorded) | None => Made::Now,
            });
        };
        match self.claim_once(&pending, keyed).await? {
            ClaimedOnce::Now => {
                accepted(self.resume(&pending.key).await)?;
                Ok(Made::Now)
            }
            ClaimedOnce::Before(first) => {
                self.finish_first(&first, keyed).await?;
                Ok(Made::Before(first.made))
            }
        }
    }

    /// Makes a claim together with the row of its key.
    async fn claim_once(
        &self,
        pending: &PendingEffects,
        keyed: &KeyedRequest,
    ) -> Result<ClaimedOnce, ComponentError> {
        let claim = self.new_claim(pending).await?;
        let mut first =
            FirstRequest::new(keyed, pending.started.clone(), self.emitter.now()).claimed_by(&pending.key);
        let mut new_claim = Some((&pending.key, &claim));
        let mut retries = RequestRetry::default();
        loop {
            let now = self.emitter.now();
            match self.first_requests.put_new_with_claim(&keyed.row, &first, new_claim, now).await? {
                KeyedPut::Applied if new_claim.is_some() => return Ok(ClaimedOnce::Now),
                KeyedPut::Applied => return Ok(ClaimedOnce::Before(first)),
                KeyedPut::KeyTaken => match self.first_request(&keyed.row).await? {
                    // It was done, and only the answer was lost.
                    Some(there) if there.made == pending.started => return Ok(ClaimedOnce::Now),
                    Some(there) => return Ok(ClaimedOnce::Before(there)),
                    None => back_off(&mut retries, RetryCause::LostRace).await?,
                },
                // The claim is there already: the key of a workflow type has made it before.
                KeyedPut::ClaimTaken(there) => {
                    first.made = there.started;
                    new_claim = None;
                }
                KeyedPut::Busy(why) => back_off(&mut retries, why).await?,
            }
        }
    }
}

/// Which request made a claim under a key.
enum ClaimedOnce {
    /// This one.
    Now,
    /// The first one; what it made.
    Before(FirstRequest),
}
