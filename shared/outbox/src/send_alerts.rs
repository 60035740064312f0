//! Sending claimed alerts. Sweeps and health checks do that, at their end and within a budget, until a message fails. A drain
//! that was woken or asked for only claims alerts, since other events wait for its end.
//!
//! Alerts have due shards of their own, so that a Slack that is down holds up nothing else. Those of one tenant and minute
//! are one message. The claims of a message are marked as done after Slack has accepted it: if the
//! process dies in between, Slack gets the message twice.

use std::{collections::HashSet, time::Duration};

use futures::{FutureExt, StreamExt, future::join_all, stream};
use ledgerline_alert::{AlertError, Delivery};
use ledgerline_store::{
    StoreError, StoredClaim,
    keys::{self, ControlKey, DUE_SHARDS},
};
use tokio::time::{Instant, timeout_at};

use crate::{
    Claim, ClaimState, ComponentError, Outbox, POSTPONED_MS,
    merge_alerts::{MergedAlerts, PendingAlert, merge_alerts},
};

/// How long all alerts of a sweep, or of a health check, may take together.
const BUDGET: Duration = Duration::from_secs(4);
/// A sweep reads at most so many alerts of one shard; the next sweep reads the rest.
const MAX_PER_SHARD: i32 = 100;
/// So many alerts are read at the same time, some of them from the payload bucket.
const MAX_CONCURRENT: usize = 8;
/// Pause before an alert is retried whose content Slack rejected.
const REJECTED_RETRY_MS: u64 = 6 * 60 * 60_000;
const MINUTE_MS: u64 = 60_000;

impl Outbox {
    /// Sends alerts that were just claimed. What is not sent now is sent by a sweep.
    pub async fn send_alerts(&self, alerts: Vec<ControlKey>) {
        if self.slack.is_none() || alerts.is_empty() {
            return;
        }
        self.send_until_failure(alerts, Instant::now() + BUDGET).await;
    }

    /// Sends alerts that were just claimed, and those that are due. The alerts of a message that fails are postponed by some
    /// minutes, so that the next sweep begins with another message.
    pub async fn send_due_alerts(&self, claimed: Vec<ControlKey>) {
        if self.slack.is_none() {
            return;
        }
        let deadline = Instant::now() + BUDGET;
        let mut alerts = claimed;
        for shard in 0..DUE_SHARDS {
            let shard = keys::alert_due_shard(shard);
            let due = self.claims.due(&shard, self.emitter.now(), MAX_PER_SHARD);
            match timeout_at(deadline, due).await {
                Ok(Ok(due)) => alerts.extend(due),
                Ok(Err(error)) => {
                    tracing::error!(%error, "could not read due alerts; the next sweep reads them")
                }
                Err(_) => {
                    return tracing::error!("timed out reading due alerts; the next sweep reads them");
                }
            }
        }
        let mut seen = HashSet::new();
        alerts.retain(|key| seen.insert(key.clone()));
        let failed = self.send_until_failure(alerts, deadline).await;
        self.postpone_all(&failed, POSTPONED_MS).await;
    }

    async fn postpone_all(&self, alerts: impl IntoIterator<Item = &ControlKey>, ms: u64) {
        let mut postponing = Vec::new();
        for key in alerts {
            postponing.push(self.postpone_for(key, ms).boxed());
        }
        for postponed in join_all(postponing).await {
            if let Err(error) = postponed {
                tracing::error!(%error, "could not postpone an alert");
            }
        }
    }

    /// Sends messages until one fails or `deadline` has passed. Returns the alerts of the one that failed.
    async fn send_until_failure(&self, alerts: Vec<ControlKey>, deadline: Instant) -> Vec<ControlKey> {
        let Some(slack) = &self.slack else { return Vec::new() };
        let pending = match self.pending_alerts(&alerts, Instant::now() + BUDGET / 2).await {
            Ok(pending) => pending,
            Err(error) => {
                tracing::error!(%error, "could not read claimed alerts; a sweep sends them");
                return Vec::new();
            }
        };
        for MergedAlerts { claims, text } in merge_alerts(pending) {
            if Instant::now() >= deadline {
                return Vec::new();
            }
            let failure = match timeout_at(deadline, slack.send(&text)).await {
                Ok(Ok(Delivery::Sent)) => None,
                Ok(Ok(Delivery::NoWebhook)) => {
                    tracing::error!(alert = text, "no Slack webhook is set; this is the alert");
                    None
                }
                Ok(Err(AlertError::ContentRejected(status))) => {
                    tracing::error!(
                        status,
                        alert = text,
                        "Slack rejected the content of this alert; it is in this log line"
                    );
                    self.postpone_all(claims.iter().map(|(key, _)| key), REJECTED_RETRY_MS).await;
                    continue;
                }
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("Slack did not answer in time".to_owned()),
            };
            if let Some(error) = failure {
                tracing::error!(error, "could not send an alert; a later sweep sends it");
                return claims.into_iter().map(|(key, _)| key).collect();
            }
            let mut finishing = Vec::with_capacity(claims.len());
            for (key, id) in &claims {
                finishing.push(self.finish(key, id.as_deref()).boxed());
            }
            for finished in join_all(finishing).await {
                if let Err(error) = finished {
                    tracing::error!(%error, "could not mark a sent alert as done; Slack gets it twice");
                }
            }
        }
        Vec::new()
    }

    /// The alerts among these claims that are not sent yet, as many as can be read until `deadline`. One that cannot be
    /// read is postponed and keeps no other from being sent.
    async fn pending_alerts(
        &self,
        alerts: &[ControlKey],
        deadline: Instant,
    ) -> Result<Vec<PendingAlert>, ComponentError> {
        let claims = timeout_at(deadline, self.claims.get_all(alerts)).await;
        let Ok(claims) = claims else { return Ok(Vec::new()) };
        let mut reading = Vec::new();
        for StoredClaim { key, claim } in claims? {
            let pending = async move {
                match timeout_at(deadline, self.pending_alert(key.clone(), claim)).await {
                    Ok(Ok(pending)) => pending,
                    Ok(Err(error)) => {
                        tracing::error!(claim = key.pk, %error, "could not read an alert; it is postponed");
                        self.postpone_all([&key], POSTPONED_MS).await;
                        None
                    }
                    Err(_) => None,
                }
            };
            reading.push(pending.boxed());
        }
        let read = stream::iter(reading).buffer_unordered(MAX_CONCURRENT);
        let mut pending: Vec<PendingAlert> =
            read.filter_map(|pending| async move { pending }).collect().await;
        pending.sort_by(|one, other| (&one.key.pk, &one.key.sk).cmp(&(&other.key.pk, &other.key.sk)));
        Ok(pending)
    }

    async fn pending_alert(
        &self,
        key: ControlKey,
        claim: Result<Claim, StoreError>,
    ) -> Result<Option<PendingAlert>, ComponentError> {
        let claim = claim?;
        if claim.state != ClaimState::Pending {
            return Ok(None);
        }
        let Some(text) = self.effects_of(&claim).await?.alert else { return Ok(None) };
        let tenant = keys::parse_claim(&key.pk).unwrap_or_default().to_owned();
        let minute = claim.claimed_at.get() / MINUTE_MS;
        Ok(Some(PendingAlert { key, claim_id: claim.claim_id, tenant, minute, text }))
    }
}
