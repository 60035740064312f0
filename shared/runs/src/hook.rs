//! Hooks: external data, by token. A token that the system made has 128 random bits and is the credential itself; one
//! that a workflow chose can be guessed, so it counts only together with an API key of its tenant.

use ledgerline_event::{Invalid, LogDraft, Name, RunEventType};
use ledgerline_store::keys::{self, ControlKey};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{
    emit_log::check_loggable,
    wake::{ExternalAppend, Woken},
};
use crate::{Hooks, RunDriver, RunLogs};
use ledgerline_outbox::{ComponentError, FirstRequest, KeyedRequest, check_idempotency_key};
use ledgerline_store::{HookRecord, LogGuard};

/// What a token that the system made begins with.
const SYSTEM_PREFIX: &str = "htok_";

/// What became of a payload that was sent to a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookAnswer {
    /// The run has it.
    Received {
        /// The run of the hook.
        run_id: Name,
        /// The id of the `hook_received` event.
        event_id: Name,
        /// Whether an earlier request with the same key brought it.
        collapsed: bool,
    },
    /// The hook was disposed, or its run has ended.
    Gone,
    /// No hook has such a token.
    Unknown,
}

/// What a sender gives to a hook.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct HookPayload {
    pub payload: Value,
    /// A payload that is sent again under this key is not received again.
    pub idempotency_key: Option<String>,
}

impl From<Value> for HookPayload {
    fn from(payload: Value) -> Self {
        Self { payload, idempotency_key: None }
    }
}

/// The record of a hook with this token.
pub(crate) fn hook_record(
    tenant: &Name,
    run_id: &Name,
    hook_id: &Name,
    token: &str,
    driver: RunDriver,
) -> HookRecord {
    HookRecord {
        tenant_id: tenant.clone(),
        run_id: run_id.clone(),
        hook_id: hook_id.clone(),
        token_digest: digest(token),
        name: (!is_system_token(token)).then(|| token.to_owned()),
        external: driver.is_external(),
        disposed: false,
    }
}

/// Whether a workflow may choose this token: one that begins like a token of the system would be taken for a
/// credential.
pub fn check_chosen_token(field: &'static str, token: &str) -> Result<(), Invalid> {
    match token.starts_with(SYSTEM_PREFIX) {
        true => {
            let reason =
                format!("only the system makes tokens like `{SYSTEM_PREFIX}…`: leave it out to get one");
            Err(Invalid::new(field, reason))
        }
        false => Name::new(field, token).map(drop),
    }
}

/// The key of the record of the token with which an event creates a hook.
pub(crate) fn token_key(tenant: &Name, draft: &LogDraft) -> Option<ControlKey> {
    if draft.event_type != RunEventType::HookCreated {
        return None;
    }
    let token = draft.event_data.get("token").and_then(Value::as_str)?;
    Some(hook_record(tenant, &draft.correlation_id, &draft.correlation_id, token, RunDriver::Runner).key())
}

fn is_system_token(token: &str) -> bool {
    token.strip_prefix(SYSTEM_PREFIX).is_some_and(|digits| {
        digits.len() == 32
            && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}

fn digest(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl RunLogs {
    /// A new token with 128 random bits.
    pub fn new_hook_token(&self) -> String {
        let mut bytes = [0; 16];
        // A token that could be guessed would be worse than none.
        getrandom::fill(&mut bytes).expect("the system gives random bytes");
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{SYSTEM_PREFIX}{digits}")
    }
}

impl Hooks {
    /// Gives a payload to the hook with this token. `tenant` is set if the sender has presented an API key of
    /// that tenant.
    pub async fn receive_by_hook(
        &self,
        tenant: Option<&Name>,
        token: &str,
        payload: impl Into<HookPayload>,
    ) -> Result<HookAnswer, ComponentError> {
        let HookPayload { payload, idempotency_key } = payload.into();
        if let Some(key) = &idempotency_key {
            check_idempotency_key("idempotencyKey", key)?;
        }
        let expected = digest(token);
        let key = match (is_system_token(token), tenant) {
            (true, _) => keys::hook(&expected),
            (false, Some(tenant)) => keys::named_hook(tenant, token),
            (false, None) => return Ok(HookAnswer::Unknown),
        };
        let Some(hook) = self.records.get(&key).await? else { return Ok(HookAnswer::Unknown) };
        if !bool::from(hook.token_digest.as_bytes().ct_eq(expected.as_bytes())) {
            return Ok(HookAnswer::Unknown);
        }
        let keyed = idempotency_key.map(|idempotency_key| KeyedRequest {
            row: keys::hook_request(&key, &idempotency_key),
            content_hash: ledgerline_outbox::short_hash(&[&payload.to_string()]),
            any_content: false,
        });
        // Before anything else: what was received stays received after the hook is disposed.
        if let Some(answer) = self.received_before(&hook, keyed.as_ref()).await? {
            return Ok(answer);
        }
        if hook.disposed {
            return Ok(HookAnswer::Gone);
        }
        let draft = LogDraft {
            event_type: RunEventType::HookReceived,
            correlation_id: hook.hook_id.clone(),
            event_data: Map::from_iter([("payload".to_owned(), payload)]),
        };
        check_loggable(&draft).map_err(|invalid| Invalid::new("payload", invalid.reason))?;
        let event_id = self.emitter.new_event_id();
        let mut guards = vec![LogGuard::HookIsActive { key, hook_id: hook.hook_id.clone() }];
        if let Some(keyed) = &keyed {
            let first =
                FirstRequest::new(keyed, Some(event_id.clone()), self.emitter.now()).for_run(&hook.run_id);
            guards.push(LogGuard::Write(self.outbox.first_request_write(&keyed.row, &first)?));
        }
        let append = ExternalAppend {
            tenant: &hook.tenant_id,
            run_id: &hook.run_id,
            draft,
            guards,
            expected_wake_count: None,
        };
        match self.runs.logs.wake_run_as(event_id, append).await? {
            Woken::Appended(event) => {
                self.runs.continue_run(&hook.tenant_id, &hook.run_id, RunDriver::of(hook.external)).await?;
                let event_id = event.event_id;
                Ok(HookAnswer::Received { run_id: hook.run_id, event_id, collapsed: false })
            }
            // Another request with the same key may have come first, and the run may have ended since.
            Woken::Ended | Woken::Refused => {
                let before = self.received_before(&hook, keyed.as_ref()).await?;
                Ok(before.unwrap_or(HookAnswer::Gone))
            }
        }
    }

    /// The answer to an earlier payload with this key, if there was one. Continues the run, in case the earlier process
    /// died before it did.
    async fn received_before(
        &self,
        hook: &HookRecord,
        keyed: Option<&KeyedRequest>,
    ) -> Result<Option<HookAnswer>, ComponentError> {
        let Some(keyed) = keyed else { return Ok(None) };
        let Some(first) = self.outbox.repeated(keyed).await? else { return Ok(None) };
        let (Some(event_id), Some(run_id)) = (first.made, first.run_id) else { return Ok(None) };
        // A hook of another run may have the chosen token by now.
        if run_id == hook.run_id {
            self.runs.continue_run(&hook.tenant_id, &run_id, RunDriver::of(hook.external)).await?;
        }
        Ok(Some(HookAnswer::Received { run_id, event_id, collapsed: true }))
    }
}
