//! `POST /api/hooks/{token}`: a sender that knows the token sends data to a run.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header::AUTHORIZATION},
};
use ledgerline_event::Name;
use ledgerline_runs::{HookAnswer, HookPayload};
use ledgerline_store::KeyScope;
use serde::Serialize;

use crate::{Api, idempotency_key, json_body, problem::Problem, query_params::PathId};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Received {
    run_id: Name,
    event_id: Name,
    collapsed: bool,
}

pub(crate) async fn receive(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    token: Result<PathId, Problem>,
    body: Body,
) -> Result<(StatusCode, Json<Received>), Problem> {
    let unknown = || Problem::new(StatusCode::NOT_FOUND, "hooks: no hook has this token");
    // No hook has a token that is not a valid name. The sender gets the same answer as for an unknown token.
    let token = token.ok().and_then(|PathId(token)| Name::new("token", token).ok()).ok_or_else(unknown)?;
    let caller = match headers.contains_key(AUTHORIZATION) {
        true => Some(api.caller(&headers, KeyScope::Write).await),
        false => None,
    };
    let tenant = caller.as_ref().and_then(|caller| caller.as_ref().ok());
    let idempotency_key = idempotency_key::read(&headers)?;
    let payload = HookPayload { payload: json_body::read_any(body).await?, idempotency_key };
    match api.stage.hooks.receive_by_hook(tenant, &token, payload).await? {
        HookAnswer::Received { run_id, event_id, collapsed } => {
            Ok((StatusCode::ACCEPTED, Json(Received { run_id, event_id, collapsed })))
        }
        HookAnswer::Gone => {
            Err(Problem::new(StatusCode::GONE, "hooks: the hook was disposed of, or its run has ended"))
        }
        // A sender may set an `Authorization` header for its own purposes. A token that is a credential works
        // whatever the header says, so a bad key is reported only if no hook was found.
        HookAnswer::Unknown => Err(caller.and_then(Result::err).unwrap_or_else(unknown)),
    }
}
