//! Short names for texts of any length.

use sha2::{Digest, Sha256};

/// A short name for several texts together.
pub fn short_hash(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::short_hash;

    #[test]
    fn texts_that_join_alike_have_different_hashes() {
        assert_ne!(short_hash(&["ab", "c"]), short_hash(&["a", "bc"]));
    }
}
