//! Starts that did not work: those that wait in a block or that the drain stands before, and those that are
//! parked, so that an operator can see why, mend the cause, and start them after all.
//!
//! One record per start and epoch, while there is something to do about it. What was started
//! or dropped after all has a claim, as every start has.

use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem};
use ledgerline_event::{Event, Millis, Name, Seconds};
use ledgerline_ledger::{
    Fault, StoreError,
    control::{Item, key_item, keys, read},
};
use ledgerline_subscription::Subscription;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    Dispatch, DispatchError, Halted,
    block::{Block, pause},
    blocks::{Blocks, Hindered},
    conditional::{number, text},
    notice::{About, Notice},
    transaction::built,
};

/// After so many attempts a start is parked.
pub const MAX_ATTEMPTS: u32 = 5;

/// The row of a start is not there, or nothing has counted an attempt or parked it since it was read.
const UNCOUNTED: &str = "attribute_not_exists(PK) OR (#state = :retrying AND attempts = :seen)";

/// Why a start is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParkedBecause {
    /// It fails each time, or failed too often.
    Failed,
    /// More subscriptions matched than may start.
    FanoutCap,
    /// Too many subscriptions led to it.
    Loop,
}

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParkedState {
    /// It is tried again: it waits in a block, or the drain stands before it.
    Retrying,
    /// The drain has gone on without it.
    Parked,
}

/// A start that did not work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct ParkedStart {
    pub id: String,
    pub state: ParkedState,
    pub because: ParkedBecause,
    /// What went wrong last.
    pub reason: String,
    pub attempts: u32,
    pub drainer_id: Name,
    pub epoch: u64,
    pub subscription_id: Name,
    pub workflow_type: Name,
    pub event_id: Name,
    pub event_type: Name,
    pub entity_type: Name,
    pub entity_id: Name,
    /// The event's place in the tenant's time line.
    pub event_place: String,
    pub first_failed_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked_at: Option<Millis>,
    /// The event whose start it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<Name>,
    /// The block that it waits in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place_in_block: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
}

/// Some of a tenant's parked starts.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct ParkedPage {
    pub items: Vec<ParkedStart>,
    pub cursor: Option<String>,
}

/// The same start always has the same id.
pub(crate) fn id(about: &About<'_>) -> String {
    let epoch = about.epoch.to_string();
    let digest = digest(&[about.drainer, &epoch, about.subscription, about.sk]);
    format!("{}-{}", about.event.timestamp, &digest[..16])
}

/// A short name for several texts together.
pub(crate) fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

impl Dispatch {
    /// One more failure of a start that the drain stands before. `None`: it was settled otherwise and the drain goes on.
    pub(crate) async fn halt(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        reason: String,
        blocks: &Blocks<'_>,
    ) -> Result<Option<Halted>, Hindered> {
        let now = self.now();
        let key = keys::parked_start(&about.event.tenant_id, &id(&about));
        let before: Option<ParkedStart> = self.control.get(&key).await?;
        let halted =
            |until, reason| Ok(Some(Halted { event_id: about.event.event_id.clone(), until, reason }));
        match &before {
            // A block that was opened before its subscription said halt goes on.
            Some(before) if before.state == ParkedState::Parked || before.block.is_some() => return Ok(None),
            Some(before) if before.next_attempt_at.is_some_and(|next| next > now) => {
                return halted(before.next_attempt_at.unwrap_or(now), reason);
            }
            Some(_) => {}
            // Started or dropped by hand in the meantime.
            None if self.claim_there(&about.start_claim()).await? => return Ok(None),
            None => {}
        }
        let attempts = before.as_ref().map_or(0, |before| before.attempts) + 1;
        let first_failed_at = before.as_ref().map_or(now, |before| before.first_failed_at);
        // This is done once, and again until it is: the record comes last.
        self.notify_failed(about, subscription, &reason).await?;
        let next = now.plus(pause(attempts));
        let start = ParkedStart {
            attempts,
            first_failed_at,
            state: ParkedState::Retrying,
            next_attempt_at: Some(next),
            ..parked_start(&about, subscription, ParkedBecause::Failed, reason.clone(), now)
        };
        // On condition of the fence: what a holder that slept past its lease leaves here, nothing would take away.
        let put = self.control.put_for_transaction(&key, &start)?;
        let put = put
            .condition_expression(UNCOUNTED)
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":retrying", text("retrying"))
            .expression_attribute_values(":seen", number(u64::from(attempts - 1)));
        let put = TransactWriteItem::builder().put(put.build().map_err(built)?).build();
        blocks.fenced(0, vec![put]).await?;
        halted(next, reason)
    }

    /// Parks a start whose event fails in the same way each time.
    pub(crate) async fn park_failed(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        reason: &str,
        alerts: &mut Vec<keys::ControlKey>,
    ) -> Result<(), DispatchError> {
        let key = keys::parked_start(&about.event.tenant_id, &id(&about));
        let before: Option<ParkedStart> = self.control.get(&key).await?;
        match &before {
            // One that waits in a block is decided anew when its turn comes.
            Some(before) if before.state == ParkedState::Parked || before.block.is_some() => return Ok(()),
            Some(_) => {}
            None if self.claim_there(&about.start_claim()).await? => return Ok(()),
            None => {}
        }
        let counted = before.as_ref().map_or(0, |before| before.attempts);
        let parked = self.parked_for_good(about, subscription, reason, counted + 1, Some(alerts)).await?;
        // If another process has written there, the next pass finds what it wrote.
        self.put_after(&about.event.tenant_id, &parked, counted).await.map(drop)
    }

    /// Puts the row of a start unless it is parked or has been tried since; `false` if so.
    async fn put_after(
        &self,
        tenant: &Name,
        start: &ParkedStart,
        counted: u32,
    ) -> Result<bool, DispatchError> {
        let put = self
            .control
            .put(&keys::parked_start(tenant, &start.id), start)?
            .condition_expression(UNCOUNTED)
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":retrying", text("retrying"))
            .expression_attribute_values(":seen", number(u64::from(counted)));
        match put.send().await.map_err(|error| StoreError::new("PutItem", error)) {
            Ok(_) => Ok(true),
            Err(error) if error.fault == Fault::Refused => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Says in the ledger that a start failed, once.
    pub(crate) async fn notify_failed(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        reason: &str,
    ) -> Result<(), DispatchError> {
        let details = json!({
            "subscriptionId": subscription.subscription_id,
            "workflowType": subscription.workflow_type,
            "reason": reason,
        });
        self.notify(Notice::Failed, about, details).await
    }

    /// Says that a start is parked, and gives the row to write for it. Without `alerts` people are not told: they have
    /// been told of the start that it waited for.
    pub(crate) async fn parked_for_good(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        reason: &str,
        attempts: u32,
        alerts: Option<&mut Vec<keys::ControlKey>>,
    ) -> Result<ParkedStart, DispatchError> {
        let now = self.now();
        self.notify_failed(about, subscription, reason).await?;
        let because = ParkedBecause::Failed;
        self.notify_parked(about, subscription, because, reason, attempts).await?;
        if let Some(alerts) = alerts {
            alerts.extend(self.alert_parked(about, subscription, reason).await?);
        }
        let start = parked_start(&about, subscription, because, reason.to_owned(), now);
        Ok(ParkedStart { attempts, parked_at: Some(now), ..start })
    }

    /// Takes away the record of a start that the drain stood before.
    pub(crate) async fn no_longer_retrying(&self, tenant: &Name, id: &str) -> Result<(), DispatchError> {
        let delete = self
            .control
            .delete(&keys::parked_start(tenant, id))
            .condition_expression("#state = :retrying AND attribute_not_exists(#block)")
            .expression_attribute_names("#block", "block")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":retrying", text("retrying"));
        match delete.send().await.map_err(|error| StoreError::new("DeleteItem", error)) {
            Err(error) if error.fault == Fault::Refused => Ok(()),
            other => Ok(other.map(|_| ())?),
        }
    }

    /// Parks a start at once: nothing about it will be different the next time.
    pub(crate) async fn park(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        because: ParkedBecause,
        reason: String,
    ) -> Result<(), DispatchError> {
        let now = self.now();
        let key = keys::parked_start(&about.event.tenant_id, &id(&about));
        let start =
            ParkedStart { parked_at: Some(now), ..parked_start(&about, subscription, because, reason, now) };
        // An operator may have started or dropped it since.
        if !self.claim_there(&about.start_claim()).await? {
            self.control.put_new(&key, &start).await?;
        }
        Ok(())
    }

    /// Says in the ledger that a start is parked, once.
    pub(crate) async fn notify_parked(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        because: ParkedBecause,
        reason: &str,
        attempts: u32,
    ) -> Result<(), DispatchError> {
        let details = json!({
            "subscriptionId": subscription.subscription_id,
            "workflowType": subscription.workflow_type,
            "because": because,
            "reason": reason,
            "attempts": attempts,
            "parkedId": id(&about),
        });
        self.notify(Notice::Parked, about, details).await
    }

    /// Writes down that people are to be told of a parked start.
    pub(crate) async fn alert_parked(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        reason: &str,
    ) -> Result<Option<keys::ControlKey>, DispatchError> {
        let id = id(&about);
        let event = about.event;
        let text = format!(
            ":warning: *A start is parked*\n*Workflow* {}\n*Event* {} {} ({}/{})\n*Tenant* {}\n*Reason* {reason}\n\
             `ledgerline {} --tenant '{}' parked show {id}`",
            subscription.workflow_type,
            event.event_type,
            event.event_id,
            event.entity_type,
            event.entity_id,
            event.tenant_id,
            self.ledger_flag,
            event.tenant_id,
        );
        self.alert(Notice::Parked, about, text).await
    }

    /// A tenant's parked starts, by the time of their events, newest first.
    pub async fn parked(
        &self,
        tenant: &Name,
        with_retrying: bool,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<ParkedPage, DispatchError> {
        let partition = keys::parked(tenant);
        let mut start: Option<Item> = cursor.map(|id| key_item(&keys::parked_start(tenant, id)));
        let mut items: Vec<ParkedStart> = Vec::new();
        loop {
            let mut query =
                self.control.partition(&partition).scan_index_forward(false).set_exclusive_start_key(start);
            if !with_retrying {
                query = query
                    .filter_expression("#state = :parked")
                    .expression_attribute_names("#state", "state")
                    .expression_attribute_values(":parked", AttributeValue::S("parked".into()));
            }
            let page = query.send().await.map_err(|error| StoreError::new("Query", error))?;
            for item in page.items.unwrap_or_default() {
                if items.len() == limit {
                    let cursor = items.last().map(|last| last.id.clone());
                    return Ok(ParkedPage { items: self.as_blocked(tenant, items).await?, cursor });
                }
                items.push(read(item)?);
            }
            start = page.last_evaluated_key;
            if start.is_none() {
                return Ok(ParkedPage { items: self.as_blocked(tenant, items).await?, cursor: None });
            }
        }
    }

    /// Those that wait in a block with what the block says: attempts are counted there.
    async fn as_blocked(
        &self,
        tenant: &Name,
        mut starts: Vec<ParkedStart>,
    ) -> Result<Vec<ParkedStart>, DispatchError> {
        let key = |start: &ParkedStart| Some(keys::block(tenant, &start.drainer_id, start.block.as_ref()?));
        let mut wanted: Vec<keys::ControlKey> = starts.iter().filter_map(key).collect();
        wanted.sort_by(|a, b| (&a.pk, &a.sk).cmp(&(&b.pk, &b.sk)));
        wanted.dedup();
        let rows = self.control.get_all(&wanted).await?;
        let blocks: Vec<Block> = rows.into_iter().map(read).collect::<Result<_, _>>()?;
        for start in &mut starts {
            let block = blocks.iter().find(|block| {
                Some(&block.name) == start.block.as_ref() && block.drainer_id == start.drainer_id
            });
            let Some(block) = block else { continue };
            start.next_attempt_at = Some(block.next_attempt_at);
            if block.head.start_id == start.id {
                start.reason.clone_from(&block.reason);
                start.attempts = block.attempts;
            } else {
                start.reason = format!("waits for {}: {}", block.head.event_id, block.reason);
                start.waits_for = Some(block.head.event_id.clone());
            }
        }
        Ok(starts)
    }

    /// One parked start.
    pub async fn parked_start(&self, tenant: &Name, id: &str) -> Result<ParkedStart, DispatchError> {
        let found = match id.len() {
            1..=64 => self.control.get(&keys::parked_start(tenant, id)).await?,
            _ => None,
        };
        let shown = self.as_blocked(tenant, found.into_iter().collect()).await?;
        shown.into_iter().next().ok_or_else(|| DispatchError::Unknown {
            what: "parked",
            id: id.to_owned(),
            hint: "; `ledgerline parked list` shows those that there are".into(),
        })
    }
}

pub(crate) fn parked_start(
    about: &About<'_>,
    subscription: &Subscription,
    because: ParkedBecause,
    reason: String,
    now: Millis,
) -> ParkedStart {
    let event: &Event = about.event;
    ParkedStart {
        id: id(about),
        state: ParkedState::Parked,
        because,
        reason,
        attempts: 0,
        drainer_id: subscription.drainer_id.clone(),
        epoch: about.epoch,
        subscription_id: subscription.subscription_id.clone(),
        workflow_type: subscription.workflow_type.clone(),
        event_id: event.event_id.clone(),
        event_type: event.event_type.clone(),
        entity_type: event.entity_type.clone(),
        entity_id: event.entity_id.clone(),
        event_place: about.sk.to_owned(),
        first_failed_at: now,
        next_attempt_at: None,
        parked_at: None,
        waits_for: None,
        block: None,
        place_in_block: None,
        ttl: event.ttl,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_join_alike_have_different_digests() {
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
    }
}
