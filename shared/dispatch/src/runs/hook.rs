//! Hooks: data from outside, by token. A token that was made here has 128 random bits and is the credential itself; one
//! that a workflow chose can be guessed, so it counts only together with an API key of its tenant.

use aws_sdk_dynamodb::types::{AttributeValue, ConditionCheck, TransactWriteItem};
use ledgerline_event::{Invalid, LogDraft, Name, RunEventType};
use ledgerline_ledger::control::keys::{self, ControlKey};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{
    outbox::check_loggable,
    wake::{FromOutside, Woken},
};
use crate::{Dispatch, DispatchError, conditional::text, transaction::built};

/// What a token that was made here begins with.
const MADE: &str = "htok_";

/// What became of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookAnswer {
    /// The run has it.
    Received {
        /// Whose it is.
        run_id: Name,
        /// The event that says so.
        event_id: Name,
    },
    /// The hook was disposed, or its run has ended.
    Gone,
    /// No hook has such a token.
    Unknown,
}

/// A hook as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HookRow {
    tenant_id: Name,
    run_id: Name,
    hook_id: Name,
    token_digest: String,
    /// The token itself where it is part of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default)]
    external: bool,
    #[serde(default)]
    disposed: bool,
}

impl HookRow {
    pub(super) fn new(tenant: &Name, run_id: &Name, hook_id: &Name, token: &str, external: bool) -> Self {
        Self {
            tenant_id: tenant.clone(),
            run_id: run_id.clone(),
            hook_id: hook_id.clone(),
            token_digest: digest(token),
            name: (!is_made(token)).then(|| token.to_owned()),
            external,
            disposed: false,
        }
    }

    pub(super) fn key(&self) -> ControlKey {
        match &self.name {
            Some(name) => keys::named_hook(&self.tenant_id, name),
            None => keys::hook(&self.token_digest),
        }
    }
}

/// Whether a workflow may choose this token: one of the form of those that are made here would be taken for a credential.
pub fn check_chosen_token(field: &'static str, token: &str) -> Result<(), Invalid> {
    match token.starts_with(MADE) {
        true => {
            let reason = format!("`{MADE}…` are the tokens that are made up here: leave it out to get one");
            Err(Invalid::new(field, reason))
        }
        false => Name::new(field, token).map(drop),
    }
}

/// The record of the token that an event asks for.
pub(super) fn token_key(tenant: &Name, draft: &LogDraft) -> Option<ControlKey> {
    if draft.event_type != RunEventType::HookCreated {
        return None;
    }
    let token = draft.event_data.get("token").and_then(Value::as_str)?;
    Some(HookRow::new(tenant, &draft.correlation_id, &draft.correlation_id, token, false).key())
}

fn is_made(token: &str) -> bool {
    token.strip_prefix(MADE).is_some_and(|digits| {
        digits.len() == 32
            && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}

fn digest(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Dispatch {
    /// A token that nobody can guess.
    pub fn new_hook_token(&self) -> String {
        let mut bytes = [0; 16];
        // A token that could be guessed would be worse than none.
        getrandom::fill(&mut bytes).expect("the system gives random bytes");
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{MADE}{digits}")
    }

    /// Gives a payload to the hook with this token. `tenant` if the sender has shown a key of theirs.
    pub async fn receive_by_hook(
        &self,
        tenant: Option<&Name>,
        token: &str,
        payload: Value,
    ) -> Result<HookAnswer, DispatchError> {
        let expected = digest(token);
        let key = match (is_made(token), tenant) {
            (true, _) => keys::hook(&expected),
            (false, Some(tenant)) => keys::named_hook(tenant, token),
            (false, None) => return Ok(HookAnswer::Unknown),
        };
        let Some(row) = self.control.get::<HookRow>(&key).await? else { return Ok(HookAnswer::Unknown) };
        if !bool::from(row.token_digest.as_bytes().ct_eq(expected.as_bytes())) {
            return Ok(HookAnswer::Unknown);
        }
        if row.disposed {
            return Ok(HookAnswer::Gone);
        }
        let draft = LogDraft {
            event_type: RunEventType::HookReceived,
            correlation_id: row.hook_id.clone(),
            event_data: Map::from_iter([("payload".to_owned(), payload)]),
        };
        check_loggable(&draft).map_err(|invalid| Invalid::new("payload", invalid.reason))?;
        let active = self.control.check_for_transaction(&key);
        let active: ConditionCheck = active
            .condition_expression("disposed = :false AND hookId = :hook")
            .expression_attribute_values(":false", AttributeValue::Bool(false))
            .expression_attribute_values(":hook", text(&row.hook_id))
            .build()
            .map_err(built)?;
        let woken = self
            .wake_run(FromOutside {
                tenant: &row.tenant_id,
                run_id: &row.run_id,
                draft,
                guards: vec![TransactWriteItem::builder().condition_check(active).build()],
                expected_wakes: None,
            })
            .await?;
        Ok(match woken {
            Woken::Done(event) => {
                self.go_on(&row.tenant_id, &row.run_id, row.external).await?;
                HookAnswer::Received { run_id: row.run_id, event_id: event.event_id }
            }
            Woken::Ended | Woken::Refused => HookAnswer::Gone,
        })
    }

    /// The hook stays, so that whoever still has the token is told that it is over.
    pub(super) fn dispose_write(&self, row: &HookRow) -> Result<TransactWriteItem, DispatchError> {
        let row = HookRow { disposed: true, ..row.clone() };
        let put = self.control.put_for_transaction(&row.key(), &row)?.build().map_err(built)?;
        Ok(TransactWriteItem::builder().put(put).build())
    }
}
