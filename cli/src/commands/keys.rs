//! `ledgerline keys`

use std::process::ExitCode;

use ledgerline_ledger::{control::api_key::ApiKey, system_clock};
use serde_json::{Value, json};

use crate::{args::KeysCommand, output::Output, target::Target};

pub(super) async fn run(target: &Target, command: KeysCommand, output: Output) -> anyhow::Result<ExitCode> {
    let control = target.control();
    let now = system_clock()();
    match command {
        KeysCommand::Create { scope, label } => {
            let (key, text) = control.create_api_key(target.tenant()?, scope.into(), label, now).await?;
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
            let keys = control.api_keys(target.tenant_if_said()).await?;
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
            let known = control.api_keys(target.tenant_if_said()).await?.iter().any(|key| key.key_id == id);
            if !known || !control.revoke_api_key(&id, now).await? {
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
