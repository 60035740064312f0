//! Short names for texts of any length.

use sha2::{Digest, Sha256};

/// A short name for several texts together.
pub fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// What queues are fair between. SQS takes only some characters there.
pub fn group(tenant: &str) -> String {
    match tenant.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => tenant.to_owned(),
        false => digest(&[tenant]),
    }
}
