//! `local.json`: how other processes find a running local mode.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::Context;
use ledgerline_event::{Millis, Name};
use ledgerline_ledger::control::{ControlTable, api_key::KeyScope};
use serde::{Deserialize, Serialize};

/// Where a local mode answers, and the key to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct LocalState {
    pub aws_endpoint: String,
    pub api_url: String,
    pub api_key: String,
    pub tenant: String,
    pub stage: String,
    pub region: String,
}

impl LocalState {
    /// What the local mode with this folder wrote when it was ready.
    pub fn read(data: &Path) -> anyhow::Result<Self> {
        let path = file(data);
        let text = fs::read_to_string(&path).with_context(|| {
            format!("no local mode has written {}: start one with `ledgerline local`, or name its folder with --data", path.display())
        })?;
        serde_json::from_str(&text).with_context(|| format!("{} is not readable", path.display()))
    }

    /// Replaces the file as a whole; only its owner may read the key in it.
    pub(super) fn write(&self, data: &Path) -> anyhow::Result<()> {
        let path = file(data);
        let fresh = path.with_extension("json.new");
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut out = options.open(&fresh).with_context(|| format!("writing {}", fresh.display()))?;
        out.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
        out.write_all(b"\n")?;
        out.sync_all()?;
        fs::rename(&fresh, &path).with_context(|| format!("writing {}", path.display()))
    }
}

fn file(data: &Path) -> PathBuf {
    data.join("local.json")
}

/// The key of an earlier start if it still holds, so that scripts keep working; else a new one.
pub(super) async fn kept_key(
    data: &Path,
    control: &ControlTable,
    tenant: &Name,
    scope: KeyScope,
    now: Millis,
) -> anyhow::Result<String> {
    if let Ok(earlier) = LocalState::read(data)
        && let Ok(key) = control.verify_api_key(&earlier.api_key).await
        && key.scope == scope
        && key.tenant_id == *tenant
    {
        return Ok(earlier.api_key);
    }
    let (_, text) = control.create_api_key(tenant, scope, Some("local mode".into()), now).await?;
    Ok(text)
}
