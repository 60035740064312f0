//! Sending claimed alerts: last, within a budget, and no further than the first failure. Sweeps and health checks do that; a
//! drain that was woken or asked for only claims them, since other events wait for its end.
//!
//! Alerts have due shards of their own, so that a Slack that is down holds up nothing else. Those of one tenant and minute
//! are one message. A message that was sent is finished after that: a process that dies in between sends it twice.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::join_all, stream};
use ledgerline_alert::AlertError;
use ledgerline_event::Name;
use ledgerline_store::{
    StoreError, StoredClaim,
    keys::{self, ControlKey, DUE_SHARDS},
};
use tokio::time::{Instant, timeout_at};

use crate::{Claim, ClaimState, DispatchError, Outbox, POSTPONED_MS};

/// How long all alerts of a sweep, or of a health check, may take together.
const BUDGET: Duration = Duration::from_secs(4);
/// Alerts of one shard and one sweep; the next sweep takes the rest.
const AT_ONCE: i32 = 100;
/// A longer message is split: Slack cuts what has more than 40,000 characters.
const MAX_BYTES: usize = 20_000;
/// The longest text of one alert: a reason may quote what a producer sent.
const MAX_CHARS: usize = 3_000;
/// Alerts that are read at the same time, some of them from the payload bucket.
const READ_AT_ONCE: usize = 8;
/// How long a message waits that Slack refuses for what it says.
const UNFIT_MS: u64 = 6 * 60 * 60_000;
const MINUTE_MS: u64 = 60_000;

/// An alert that is not sent yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pending {
    key: ControlKey,
    claim_id: Option<Name>,
    tenant: String,
    minute: u64,
    text: String,
}

/// Several alerts as one message.
#[derive(Debug, Default, PartialEq, Eq)]
struct Merged {
    claims: Vec<(ControlKey, Option<Name>)>,
    text: String,
}

/// The text of an alert as it is claimed: a long one is cut.
pub fn alert_text(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// One message per tenant and minute, the oldest first.
fn merge(pending: Vec<Pending>) -> Vec<Merged> {
    let mut groups: BTreeMap<(u64, String), Vec<Merged>> = BTreeMap::new();
    for Pending { key, claim_id, tenant, minute, text } in pending {
        let messages = groups.entry((minute, tenant)).or_default();
        match messages.last_mut().filter(|last| last.text.len() + text.len() <= MAX_BYTES) {
            Some(last) => {
                last.text.push_str("\n\n");
                last.text.push_str(&text);
                last.claims.push((key, claim_id));
            }
            None => messages.push(Merged { claims: vec![(key, claim_id)], text }),
        }
    }
    groups.into_values().flatten().collect()
}

impl Outbox {
    /// Sends alerts that were just claimed. What is not sent now is sent by a sweep.
    pub async fn send_alerts(&self, alerts: Vec<ControlKey>) {
        if self.slack.is_none() || alerts.is_empty() {
            return;
        }
        self.send_until_failure(alerts, Instant::now() + BUDGET).await;
    }

    /// Sends alerts that were just claimed, and those whose time has come. A message that fails waits for some minutes, so
    /// that the next sweep begins with another one.
    pub async fn send_due_alerts(&self, claimed: Vec<ControlKey>) {
        if self.slack.is_none() {
            return;
        }
        let deadline = Instant::now() + BUDGET;
        let mut alerts = claimed;
        for shard in 0..DUE_SHARDS {
            let shard = keys::alert_due_shard(shard);
            let due = self.claims.due(&shard, self.emitter.now(), AT_ONCE);
            match timeout_at(deadline, due).await {
                Ok(Ok(due)) => alerts.extend(due),
                Ok(Err(error)) => tracing::error!(%error, "alerts were not read; the next sweep reads them"),
                Err(_) => {
                    return tracing::error!("there was no time to read alerts; the next sweep reads them");
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
                tracing::error!(%error, "an alert could not be postponed");
            }
        }
    }

    /// Sends messages until one fails or `deadline` has passed. Answers the alerts of the one that failed.
    async fn send_until_failure(&self, alerts: Vec<ControlKey>, deadline: Instant) -> Vec<ControlKey> {
        let Some(slack) = &self.slack else { return Vec::new() };
        let pending = match self.pending_alerts(&alerts, Instant::now() + BUDGET / 2).await {
            Ok(pending) => pending,
            Err(error) => {
                tracing::error!(%error, "alerts were not read; a sweep sends them");
                return Vec::new();
            }
        };
        for Merged { claims, text } in merge(pending) {
            if Instant::now() >= deadline {
                return Vec::new();
            }
            let failure = match timeout_at(deadline, slack.send(&text)).await {
                Ok(Ok(true)) => None,
                Ok(Ok(false)) => {
                    tracing::error!(alert = text, "no Slack webhook is set; this is the alert");
                    None
                }
                Ok(Err(AlertError::Unfit(status))) => {
                    tracing::error!(status, alert = text, "Slack refuses this alert; the log has it");
                    self.postpone_all(claims.iter().map(|(key, _)| key), UNFIT_MS).await;
                    continue;
                }
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("Slack did not answer in time".to_owned()),
            };
            if let Some(error) = failure {
                tracing::error!(error, "an alert was not sent; a later sweep sends it");
                return claims.into_iter().map(|(key, _)| key).collect();
            }
            let mut finishing = Vec::with_capacity(claims.len());
            for (key, id) in &claims {
                finishing.push(self.finish(key, id.as_deref()).boxed());
            }
            for finished in join_all(finishing).await {
                if let Err(error) = finished {
                    tracing::error!(%error, "an alert that was sent is still pending; it is sent again");
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
    ) -> Result<Vec<Pending>, DispatchError> {
        let claims = timeout_at(deadline, self.claims.get_all(alerts)).await;
        let Ok(claims) = claims else { return Ok(Vec::new()) };
        let mut reading = Vec::new();
        for StoredClaim { key, claim } in claims? {
            let pending = async move {
                match timeout_at(deadline, self.pending_alert(key.clone(), claim)).await {
                    Ok(Ok(pending)) => pending,
                    Ok(Err(error)) => {
                        tracing::error!(claim = key.pk, %error, "an alert cannot be read");
                        self.postpone_all([&key], POSTPONED_MS).await;
                        None
                    }
                    Err(_) => None,
                }
            };
            reading.push(pending.boxed());
        }
        let read = stream::iter(reading).buffer_unordered(READ_AT_ONCE);
        let mut pending: Vec<Pending> = read.filter_map(|pending| async move { pending }).collect().await;
        pending.sort_by(|one, other| (&one.key.pk, &one.key.sk).cmp(&(&other.key.pk, &other.key.sk)));
        Ok(pending)
    }

    async fn pending_alert(
        &self,
        key: ControlKey,
        claim: Result<Claim, StoreError>,
    ) -> Result<Option<Pending>, DispatchError> {
        let claim = claim?;
        if claim.state != ClaimState::Pending {
            return Ok(None);
        }
        let Some(text) = self.effects_of(&claim).await?.alert else { return Ok(None) };
        let tenant = keys::parse_claim(&key.pk).unwrap_or_default().to_owned();
        let minute = claim.claimed_at.get() / MINUTE_MS;
        Ok(Some(Pending { key, claim_id: claim.claim_id, tenant, minute, text }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(tenant: &str, minute: u64, text: &str) -> Pending {
        let key = ControlKey { pk: format!("CLAIM#{tenant}#{text}"), sk: "ALERT".to_owned() };
        Pending { key, claim_id: None, tenant: tenant.to_owned(), minute, text: text.to_owned() }
    }

    #[test]
    fn alerts_of_one_tenant_and_minute_are_one_message() {
        let merged = merge(vec![
            pending("a", 2, "late"),
            pending("a", 1, "one"),
            pending("b", 1, "other"),
            pending("a", 1, "two"),
        ]);
        let texts: Vec<&str> = merged.iter().map(|message| message.text.as_str()).collect();
        assert_eq!(texts, ["one\n\ntwo", "other", "late"]);
        assert_eq!(merged[0].claims.len(), 2);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(alert_text("short".into()), "short");
        let cut = alert_text("é".repeat(MAX_CHARS + 1));
        assert_eq!((cut.chars().count(), cut.ends_with('…')), (MAX_CHARS + 1, true));
    }

    #[test]
    fn a_message_that_would_be_too_long_is_split_and_loses_nothing() {
        let long = "x".repeat(MAX_BYTES / 2);
        let merged = merge((0..5).map(|_| pending("a", 1, &long)).collect());
        assert!(merged.iter().all(|message| message.text.len() <= MAX_BYTES + 2));
        assert_eq!(merged.iter().map(|message| message.claims.len()).sum::<usize>(), 5);
    }
}
