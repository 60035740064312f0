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
use crate::{
    Dispatch, DispatchError,
    conditional::text,
    idempotency::{FirstRequest, Keyed, check_idempotency_key},
    transaction::built,
};

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
        /// Whether an earlier request with the same key brought it.
        collapsed: bool,
    },
    /// The hook was disposed, or its run has ended.
    Gone,
    /// No hook has such a token.
    Unknown,
}

/// What is given to a hook.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct HookPayload {
    pub payload: Value,
    /// Given once more under this key, the payload is not received again.
    pub idempotency_key: Option<String>,
}

impl From<Value> for HookPayload {
    fn from(payload: Value) -> Self {
        Self { payload, idempotency_key: None }
    }
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
    /// A new token with 128 random bits.
    pub fn new_hook_token(&self) -> String {
        let mut bytes = [0; 16];
        // A token that could be guessed would be worse than none.
        getrandom::fill(&mut bytes).expect("the system gives random bytes");
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{MADE}{digits}")
    }

    /// Gives a payload to the hook with this token. `tenant` is set if the sender has presented an API key of
    /// that tenant.
    pub async fn receive_by_hook(
        &self,
        tenant: Option<&Name>,
        token: &str,
        payload: impl Into<HookPayload>,
    ) -> Result<HookAnswer, DispatchError> {
        let HookPayload { payload, idempotency_key } = payload.into();
        if let Some(key) = &idempotency_key {
            check_idempotency_key("idempotencyKey", key)?;
        }
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
        let keyed = idempotency_key.map(|idempotency_key| Keyed {
            row: keys::hook_request(&key, &idempotency_key),
            content_hash: crate::parked::digest(&[&payload.to_string()]),
            any_content: false,
        });
        // Before anything else: what was received stays received when the hook is gone.
        if let Some(answer) = self.received_before(&row, keyed.as_ref()).await? {
            return Ok(answer);
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
        let event_id = self.new_event_id();
        let mut guards = vec![TransactWriteItem::builder().condition_check(active).build()];
        if let Some(keyed) = &keyed {
            let first = FirstRequest::new(keyed, Some(event_id.clone()), self.now()).for_run(&row.run_id);
            guards.push(self.first_request_write(&keyed.row, &first)?);
        }
        let outside =
            FromOutside { tenant: &row.tenant_id, run_id: &row.run_id, draft, guards, expected_wakes: None };
        match self.wake_run_as(event_id, outside).await? {
            Woken::Done(event) => {
                self.go_on(&row.tenant_id, &row.run_id, row.external).await?;
                let event_id = event.event_id;
                Ok(HookAnswer::Received { run_id: row.run_id, event_id, collapsed: false })
            }
            // Another request with the same key may have come first, and may have been the last before the end.
            Woken::Ended | Woken::Refused => {
                let before = self.received_before(&row, keyed.as_ref()).await?;
                Ok(before.unwrap_or(HookAnswer::Gone))
            }
        }
    }

    /// What was answered when a payload with this key came first; the run goes on if it has not since.
    async fn received_before(
        &self,
        row: &HookRow,
        keyed: Option<&Keyed>,
    ) -> Result<Option<HookAnswer>, DispatchError> {
        let Some(keyed) = keyed else { return Ok(None) };
        let Some(first) = self.repeated(keyed).await? else { return Ok(None) };
        let (Some(event_id), Some(run_id)) = (first.made, first.run_id) else { return Ok(None) };
        // A token that was chosen may be that of another run's hook by now.
        if run_id == row.run_id {
            self.go_on(&row.tenant_id, &run_id, row.external).await?;
        }
        Ok(Some(HookAnswer::Received { run_id, event_id, collapsed: true }))
    }

    /// Marks a hook as disposed. Its row stays, so that a sender that still has the token gets the answer `Gone`.
    pub(super) fn dispose_write(&self, row: &HookRow) -> Result<TransactWriteItem, DispatchError> {
        let row = HookRow { disposed: true, ..row.clone() };
        let put = self.control.put_for_transaction(&row.key(), &row)?.build().map_err(built)?;
        Ok(TransactWriteItem::builder().put(put).build())
    }
}
