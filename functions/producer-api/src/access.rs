//! Who calls, and whether they may.

use axum::http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use ledgerline_event::Name;
use ledgerline_ledger::control::api_key::KeyScope;

use crate::{Api, problem::Problem};

impl Api {
    /// The tenant of the caller's key, if the key may do what `needed` covers.
    pub(crate) async fn caller(&self, headers: &HeaderMap, needed: KeyScope) -> Result<Name, Problem> {
        let missing = || Problem::new(StatusCode::UNAUTHORIZED, "Authorization: `Bearer <key>` is expected");
        let presented = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, key)| key.trim())
            .ok_or_else(missing)?;
        let key = self.control.verify_api_key(presented).await?;
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
