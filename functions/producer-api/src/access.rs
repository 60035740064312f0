//! The caller's API key: its tenant and its scope. A handler takes [`MayRead`], [`MayWrite`] or [`MayAdminister`] as an argument before the
//! body, so that the API refuses a request without that scope before it reads more of it.

use std::sync::Arc;

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, StatusCode, header::AUTHORIZATION, request::Parts},
};
use ledgerline_event::Name;
use ledgerline_store::KeyScope;

use crate::{Api, problem::Problem};

impl Api {
    /// The tenant of the caller's key, if its scope is `needed` or more.
    pub(crate) async fn caller(&self, headers: &HeaderMap, needed: KeyScope) -> Result<Name, Problem> {
        let missing = || Problem::new(StatusCode::UNAUTHORIZED, "Authorization: `Bearer <key>` is expected");
        let presented = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, key)| key.trim())
            .ok_or_else(missing)?;
        let key = self.api_keys.verify(presented).await?;
        if key.scope < needed {
            let detail = format!(
                "Authorization: the key {} has the scope `{}`; `{needed}` is needed",
                key.key_id, key.scope
            );
            return Err(Problem::new(StatusCode::FORBIDDEN, detail));
        }
        Ok(key.tenant_id)
    }
}

/// The tenant of a key that may read.
pub(crate) struct MayRead(pub(crate) Name);

impl FromRequestParts<Arc<Api>> for MayRead {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        api.caller(&parts.headers, KeyScope::Read).await.map(Self)
    }
}

/// The tenant of a key that may also start work.
pub(crate) struct MayWrite(pub(crate) Name);

impl FromRequestParts<Arc<Api>> for MayWrite {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        api.caller(&parts.headers, KeyScope::Write).await.map(Self)
    }
}

/// The tenant of a key that may also change how the ledger works.
pub(crate) struct MayAdminister(pub(crate) Name);

impl FromRequestParts<Arc<Api>> for MayAdminister {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        api.caller(&parts.headers, KeyScope::Admin).await.map(Self)
    }
}
