//! Merging alerts: those of one tenant and minute are one message.

use std::collections::BTreeMap;

use ledgerline_event::Name;
use ledgerline_store::keys::ControlKey;

/// A longer message is split: Slack cuts what has more than 40,000 characters.
const MAX_BYTES: usize = 20_000;
/// The longest text of one alert: a reason may quote what a producer sent.
const MAX_CHARS: usize = 3_000;

/// An alert that is not sent yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingAlert {
    pub(crate) key: ControlKey,
    pub(crate) claim_id: Option<Name>,
    pub(crate) tenant: String,
    pub(crate) minute: u64,
    pub(crate) text: String,
}

/// Several alerts as one message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MergedAlerts {
    pub(crate) claims: Vec<(ControlKey, Option<Name>)>,
    pub(crate) text: String,
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
pub(crate) fn merge_alerts(pending: Vec<PendingAlert>) -> Vec<MergedAlerts> {
    let mut groups: BTreeMap<(u64, String), Vec<MergedAlerts>> = BTreeMap::new();
    for PendingAlert { key, claim_id, tenant, minute, text } in pending {
        let messages = groups.entry((minute, tenant)).or_default();
        match messages.last_mut().filter(|last| last.text.len() + text.len() <= MAX_BYTES) {
            Some(last) => {
                last.text.push_str("\n\n");
                last.text.push_str(&text);
                last.claims.push((key, claim_id));
            }
            None => messages.push(MergedAlerts { claims: vec![(key, claim_id)], text }),
        }
    }
    groups.into_values().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(tenant: &str, minute: u64, text: &str) -> PendingAlert {
        let key = ControlKey { pk: format!("CLAIM#{tenant}#{text}"), sk: "ALERT".to_owned() };
        PendingAlert { key, claim_id: None, tenant: tenant.to_owned(), minute, text: text.to_owned() }
    }

    #[test]
    fn alerts_of_one_tenant_and_minute_are_one_message() {
        let merged = merge_alerts(vec![
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
        let merged = merge_alerts((0..5).map(|_| pending("a", 1, &long)).collect());
        assert!(merged.iter().all(|message| message.text.len() <= MAX_BYTES + 2));
        assert_eq!(merged.iter().map(|message| message.claims.len()).sum::<usize>(), 5);
    }
}
