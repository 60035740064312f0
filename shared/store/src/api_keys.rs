//! API keys: `ll_<id>_<secret>`. The id finds the record; of the secret only a hash is kept,
//! and it is compared in constant time. 256 random bits need no slow hash.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ledgerline_event::{Millis, Name};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{ControlTable, Fault, StoreError, keys, number};

/// What a key may do. Each includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// Every GET.
    Read,
    /// Tasks, jobs, runs, sent events.
    Write,
    /// Everything else.
    Admin,
}

impl KeyScope {
    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for KeyScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A key as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Not secret; names the key in lists.
    pub key_id: String,
    /// The one tenant that it belongs to.
    pub tenant_id: Name,
    /// What it may do.
    pub scope: KeyScope,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When it was made.
    pub created_at: Millis,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Millis>,
    /// SHA-256 of the secret.
    pub secret_hash: String,
}

/// Why a presented key does not open anything.
#[derive(Debug, thiserror::Error)]
pub enum KeyRefused {
    /// Not of the form of a key, unknown, or with the wrong secret: one answer for all three.
    #[error("the key is not valid")]
    Unknown,
    /// Revoked.
    #[error("the key {0} has been revoked")]
    Revoked(String),
    /// The table did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What became of revoking a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// The key is revoked, now or since an earlier request.
    Revoked,
    /// There is no such key.
    Unknown,
}

/// The API keys of all tenants.
#[derive(Clone, Debug)]
pub struct ApiKeys {
    table: ControlTable,
}

impl ApiKeys {
    /// The keys in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// Makes a key and returns it with the text that is shown once and never again.
    pub async fn create(
        &self,
        tenant: &Name,
        scope: KeyScope,
        label: Option<String>,
        now: Millis,
    ) -> Result<(ApiKey, String), StoreError> {
        let key_id = random_text::<9>();
        let secret = random_text::<32>();
        let key = ApiKey {
            secret_hash: hash(&secret),
            key_id: key_id.clone(),
            tenant_id: tenant.clone(),
            scope,
            label,
            created_at: now,
            revoked_at: None,
        };
        if !self.table.put_new(&keys::api_key(&key_id), &key).await? {
            return Err(StoreError::unreadable("PutItem", "a random key id was already taken"));
        }
        Ok((key, format!("ll_{key_id}_{secret}")))
    }

    /// The key that `presented` is, if it is one and still holds.
    pub async fn verify(&self, presented: &str) -> Result<ApiKey, KeyRefused> {
        // The id has a fixed length; base64url itself may hold a `_`.
        let (id, secret) = presented
            .strip_prefix("ll_")
            .and_then(|rest| rest.split_at_checked(12))
            .and_then(|(id, rest)| rest.strip_prefix('_').map(|secret| (id, secret)))
            .ok_or(KeyRefused::Unknown)?;
        let key: ApiKey = self.table.get(&keys::api_key(id)).await?.ok_or(KeyRefused::Unknown)?;
        let right: bool = hash(secret).as_bytes().ct_eq(key.secret_hash.as_bytes()).into();
        match (right, key.revoked_at) {
            (false, _) => Err(KeyRefused::Unknown),
            (true, Some(_)) => Err(KeyRefused::Revoked(key.key_id)),
            (true, None) => Ok(key),
        }
    }

    /// All keys of one tenant, or of all tenants; oldest first.
    pub async fn list(&self, tenant: Option<&Name>) -> Result<Vec<ApiKey>, StoreError> {
        let mut keys: Vec<ApiKey> = self.table.all(keys::API_KEYS).await?;
        keys.retain(|key| tenant.is_none_or(|tenant| key.tenant_id == *tenant));
        keys.sort_by_key(|key| key.created_at);
        Ok(keys)
    }

    /// Revokes a key. A second time changes nothing.
    pub async fn revoke(&self, key_id: &str, now: Millis) -> Result<Revocation, StoreError> {
        let update = self
            .table
            .update(&keys::api_key(key_id))
            .condition_expression("attribute_exists(PK)")
            .update_expression("SET revokedAt = if_not_exists(revokedAt, :now)")
            .expression_attribute_values(":now", number(now.get()));
        match update.send().await.map_err(|error| StoreError::new("UpdateItem", error)) {
            Ok(_) => Ok(Revocation::Revoked),
            Err(error) if error.fault == Fault::ConditionFailed => Ok(Revocation::Unknown),
            Err(error) => Err(error),
        }
    }
}

fn random_text<const BYTES: usize>() -> String {
    let mut bytes = [0; BYTES];
    // Without randomness there is no key to be made: stopping is the only safe answer.
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    URL_SAFE_NO_PAD.encode(bytes)
}

fn hash(secret: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(secret))
}
