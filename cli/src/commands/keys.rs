//! `ledgerline keys`

use std::process::ExitCode;

use ledgerline_ledger::system_clock;
use ledgerline_store::{ApiKey, Revocation};
use serde_json::{Value, json};

use crate::{args::KeysCommand, output::Output, target::Target};

pub(super) async fn run(target: &Target, command: KeysCommand, output: Output) -> anyhow::Result<ExitCode> {
    let api_keys = target.api_keys();
    let now = system_clock()();
    match command {
        KeysCommand::Create { scope, label } => {
            let (key, text) = api_keys.create(target.tenant()?, scope.into(), label, now).await?;
            if output.is_json() {
                let mut shown = public(&key);
                shown["key"] = json!(text);
                output.json_line(&shown)?;
            } else {
                output.line(&text)?;
                eprintln!(
                    "{} key {} for tenant {}. It is shown only this once.",
                    key.scope, key.key_id, key.tenant_id
                );
            }
        }
        KeysCommand::List => {
            let keys = api_keys.list(target.tenant_if_given()).await?;
            if output.is_json() {
                keys.iter().try_for_each(|key| output.json_line(&public(key)))?;
            } else {
                let rows = keys.iter().map(row).collect();
                output.table(
                    &["id", "tenant", "scope", "label", "created", "revoked"],
                    rows,
                    "No keys. Make one with `keys create`.",
                )?;
            }
        }
        KeysCommand::Revoke { id } => {
            let known = api_keys.list(target.tenant_if_given()).await?.iter().any(|key| key.key_id == id);
            if !known || api_keys.revoke(&id, now).await? == Revocation::Unknown {
                anyhow::bail!("no key has the id {id}; `keys list` shows them");
            }
            match output.is_json() {
                true => output.json_line(&json!({ "revoked": id }))?,
                false => output.line(&format!("{id} is revoked"))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A key without the hash of its secret.
fn public(key: &ApiKey) -> Value {
    json!({
        "keyId": key.key_id,
        "tenantId": key.tenant_id,
        "scope": key.scope,
        "label": key.label,
        "createdAt": key.created_at,
        "revokedAt": key.revoked_at,
    })
}

fn row(key: &ApiKey) -> Vec<String> {
    vec![
        key.key_id.clone(),
        key.tenant_id.to_string(),
        key.scope.to_string(),
        key.label.clone().unwrap_or_default(),
        key.created_at.to_rfc3339(),
        key.revoked_at.map(|time| time.to_rfc3339()).unwrap_or_default(),
    ]
}
