//! Human approval: the workflow sends the approver a link, reminds once, and waits for the answer until a deadline.
//!
//! ```sh
//! ledgerline --local run start approval --input '{"document": "budget.pdf", "approver": "ada@example.com"}'
//! ledgerline --local run show RUN        # the hook and its token
//! curl -X POST http://127.0.0.1:8787/api/hooks/TOKEN -d '{"approved": true, "by": "ada"}'
//! ```

use futures::FutureExt;
use ledgerline_workflow::{Ctx, Error, Hook, Millis, first};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The document that the approver decides about, and the time limits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Request {
    pub document: String,
    pub approver: String,
    /// After how long the workflow reminds the approver.
    #[serde(default = "a_day")]
    pub remind_after_seconds: u64,
    /// After how long the request expires.
    #[serde(default = "a_week")]
    pub expire_after_seconds: u64,
}

fn a_day() -> u64 {
    24 * 60 * 60
}

fn a_week() -> u64 {
    7 * a_day()
}

/// What the approver sends to the hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Answer {
    pub approved: bool,
    pub by: String,
}

/// What became of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
#[allow(missing_docs)]
pub enum Decision {
    Approved { by: String },
    Rejected { by: String },
    Expired,
}

/// Ask, remind, and take the answer, whichever of answer and time is first.
pub async fn approval(ctx: Ctx, request: Request) -> Result<Decision, Error> {
    // The hook's token cannot be guessed: every sender that has it may answer, without an API key.
    let hook = ctx.hook().metadata(json!({ "document": request.document })).await?;
    ctx.step("tell the approver", || tell(&request, hook.token())).await?;

    let asked_at = ctx.now();
    let remind_at = asked_at.plus(request.remind_after_seconds * 1_000);
    let expire_at = asked_at.plus(request.expire_after_seconds * 1_000);
    let mut answer = None;
    if remind_at < expire_at {
        answer = answer_by(&ctx, &hook, remind_at).await?;
        if answer.is_none() {
            ctx.step("remind the approver", || tell(&request, hook.token())).await?;
        }
    }
    if answer.is_none() {
        answer = answer_by(&ctx, &hook, expire_at).await?;
    }
    // From here on the API answers 410 to the token, as it would after the end of the run.
    hook.dispose().await?;
    Ok(match answer {
        Some(Answer { approved: true, by }) => Decision::Approved { by },
        Some(Answer { approved: false, by }) => Decision::Rejected { by },
        None => Decision::Expired,
    })
}

/// The answer, unless the time comes first. The loser is abandoned: a timer that lost does not wake the run.
async fn answer_by(ctx: &Ctx, hook: &Hook, time: Millis) -> Result<Option<Answer>, Error> {
    let answer = async { hook.next().await.map(Some) }.boxed();
    let deadline = async { ctx.sleep_until(time).await.map(|()| None) }.boxed();
    let (_, outcome) = first([answer, deadline]).await;
    outcome
}

/// Stands for a mail with a link.
async fn tell(request: &Request, token: &str) -> Result<String, Error> {
    Ok(format!("{}: please decide about {} at /api/hooks/{token}", request.approver, request.document))
}
