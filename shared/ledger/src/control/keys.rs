//! The one place that builds and parses the keys of control records.

use ledgerline_event::Millis;

/// Partition and sort key of a control record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlKey {
    /// The partition.
    pub pk: String,
    /// The place in it.
    pub sk: String,
}

fn key(pk: impl Into<String>, sk: impl Into<String>) -> ControlKey {
    ControlKey { pk: pk.into(), sk: sk.into() }
}

/// The partition of all tenants.
pub const TENANTS: &str = "TENANTS";
/// The partition of all API keys.
pub const API_KEYS: &str = "APIKEYS";

/// A tenant in the registry.
pub fn tenant(tenant: &str) -> ControlKey {
    key(TENANTS, tenant)
}

/// All drain records of a tenant.
pub fn drains(tenant: &str) -> String {
    format!("DRAIN#{tenant}")
}

/// One drainer's record for a tenant.
pub fn drain(tenant: &str, drainer: &str) -> ControlKey {
    key(drains(tenant), drainer)
}

/// The late lane of a tenant.
pub fn late_lane(tenant: &str) -> String {
    format!("LATE#{tenant}")
}

/// A pointer in the late lane: the stamp first, so that the lane sorts by it.
pub fn late_pointer(tenant: &str, stamp: Millis, event_sk: &str) -> ControlKey {
    key(late_lane(tenant), format!("{stamp}#{event_sk}"))
}

/// Stamp and event sort key of a pointer.
pub fn parse_late_pointer(sk: &str) -> Option<(Millis, &str)> {
    let (stamp, event_sk) = sk.split_once('#')?;
    let stamp = stamp.parse::<u64>().ok().and_then(|value| Millis::try_from(value).ok())?;
    Some((stamp, event_sk))
}

/// The marker of an idempotency key. The key comes last: it may hold anything.
pub fn marker(tenant: &str, idempotency_key: &str) -> ControlKey {
    key(format!("IDEMPOTENCY#{tenant}#{idempotency_key}"), "MARKER")
}

/// An API key by its id.
pub fn api_key(id: &str) -> ControlKey {
    key(API_KEYS, id)
}

/// All failed deliveries of a tenant.
pub fn failures(tenant: &str) -> String {
    format!("FAILED#{tenant}")
}

/// One failed delivery. Its id begins with the time, so that the partition sorts by it.
pub fn failure(tenant: &str, id: &str) -> ControlKey {
    key(failures(tenant), id)
}

/// The id of the failed delivery of a message: the same for every redelivery of it. A message id
/// comes from outside: no more of it than an id has, and nothing but what one is made of.
pub fn failure_id(sent_at: Millis, message_id: &str) -> String {
    let plain: String =
        message_id.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(80).collect();
    format!("{sent_at}-{plain}")
}

/// Whether `text` has the form of such an id.
pub fn is_failure_id(text: &str) -> bool {
    text.split_once('-').is_some_and(|(time, rest)| {
        let digits = time.len() == 13 && time.bytes().all(|byte| byte.is_ascii_digit());
        digits && rest.len() <= 80 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_pointer_parses_back() {
        let stamp = Millis::try_from(1_767_453_739_640).unwrap();
        let sk = "TIMESTAMP#1767453739640#EVENT#x";
        assert_eq!(parse_late_pointer(&late_pointer("t", stamp, sk).sk), Some((stamp, sk)));
        assert_eq!(parse_late_pointer("x#y"), None);
    }
}
