//! Writes `local.json`, by which other processes find this local mode.

use std::{fs, io::Write, path::Path};

use anyhow::Context;
use ledgerline_event::{Millis, Name};
use ledgerline_ledger::LocalState;
use ledgerline_store::{ApiKeys, KeyScope};

/// Replaces the file atomically; only its owner can read it, since it holds an API key.
pub(super) fn write(state: &LocalState, data: &Path) -> anyhow::Result<()> {
    let path = LocalState::file(data);
    let fresh = path.with_extension("json.new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut out = options.open(&fresh).with_context(|| format!("writing {}", fresh.display()))?;
    out.write_all(serde_json::to_string_pretty(state)?.as_bytes())?;
    out.write_all(b"\n")?;
    out.sync_all()?;
    fs::rename(&fresh, &path).with_context(|| format!("writing {}", path.display()))
}

/// The API key of an earlier start if it is still valid, so that scripts keep working; else a new one.
pub(super) async fn kept_key(
    data: &Path,
    api_keys: &ApiKeys,
    tenant: &Name,
    scope: KeyScope,
    now: Millis,
) -> anyhow::Result<String> {
    if let Ok(earlier) = LocalState::read(data)
        && let Ok(key) = api_keys.verify(&earlier.api_key).await
        && key.scope == scope
        && key.tenant_id == *tenant
    {
        return Ok(earlier.api_key);
    }
    let (_, text) = api_keys.create(tenant, scope, Some("local mode".into()), now).await?;
    Ok(text)
}
