//! Messages to Slack. The webhook is a secret: each message reads it from SSM, and no log has it.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use ledgerline_store::{Fault, StoreError};
use reqwest::header::RETRY_AFTER;
use serde_json::json;
use tokio::{sync::OnceCell, time::Instant};

/// The time for all attempts together; an invocation of `eventbridge-dlq-alert` has 30 s.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(18);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(6);

/// Posts a text (the second argument) to a webhook (the first). Returns what Slack answered, or why there is no answer.
pub type Post = Arc<dyn Fn(String, String) -> BoxFuture<'static, Result<Answer, String>> + Send + Sync>;

/// What Slack answered to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// How long Slack asks to wait before the next attempt.
    pub retry_after: Option<Duration>,
}

/// Sends messages to a webhook.
pub struct Slack {
    ssm: aws_sdk_ssm::Client,
    parameter: String,
    post: Post,
    total_timeout: Duration,
}

impl std::fmt::Debug for Slack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slack").field("parameter", &self.parameter).finish_non_exhaustive()
    }
}

/// What became of a message, if there was no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Slack has accepted it.
    Sent,
    /// No webhook is set: the message went nowhere.
    NoWebhook,
}

/// Why an alert was not delivered.
#[derive(Debug, thiserror::Error)]
pub enum AlertError {
    /// The webhook could not be read.
    #[error("reading the webhook: {0}")]
    Parameter(#[from] StoreError),
    /// Slack refused the message or did not answer. The text leaves the address of the webhook out: it is a secret.
    #[error("Slack did not take the message: {0}")]
    Slack(String),
    /// Slack refuses the content of this message, and would each time; it may accept others.
    #[error("Slack refuses the message: it answered {0}")]
    ContentRejected(u16),
}

impl Slack {
    /// `parameter` is the SSM SecureString that holds the webhook.
    pub fn new(ssm: aws_sdk_ssm::Client, parameter: String) -> Self {
        Self::with_post(ssm, parameter, over_http())
    }

    /// The same with another transport.
    pub fn with_post(ssm: aws_sdk_ssm::Client, parameter: String, post: Post) -> Self {
        Self { ssm, parameter, post, total_timeout: TOTAL_TIMEOUT }
    }

    /// The same with another time for all attempts together.
    pub fn with_total_timeout(self, total_timeout: Duration) -> Self {
        Self { total_timeout, ..self }
    }

    /// Sends `text`, unless no webhook is set: then the caller logs the text.
    pub async fn send(&self, text: &str) -> Result<Delivery, AlertError> {
        let Some(webhook) = self.webhook().await? else { return Ok(Delivery::NoWebhook) };
        let deadline = Instant::now() + self.total_timeout;
        let mut backoff = Duration::from_millis(500);
        loop {
            let (trouble, wait) = match (self.post)(webhook.clone(), text.to_owned()).await {
                Ok(Answer { status: 200..300, .. }) => return Ok(Delivery::Sent),
                Ok(Answer { status: status @ (400 | 413), .. }) => {
                    return Err(AlertError::ContentRejected(status));
                }
                Ok(Answer { status, retry_after }) => {
                    if !(status == 429 || status >= 500) {
                        return Err(AlertError::Slack(format!("it answered {status}; check the webhook")));
                    }
                    // A wait beyond the total timeout ends the attempts.
                    (format!("it answered {status}"), retry_after.unwrap_or(backoff).min(self.total_timeout))
                }
                Err(error) => (error, backoff),
            };
            if Instant::now() + wait >= deadline {
                return Err(AlertError::Slack(trouble));
            }
            tokio::time::sleep(wait).await;
            backoff *= 2;
        }
    }

    async fn webhook(&self) -> Result<Option<String>, StoreError> {
        let answer = self.ssm.get_parameter().name(&self.parameter).with_decryption(true).send().await;
        match answer.map_err(|error| StoreError::new("GetParameter", error)) {
            Ok(found) => {
                Ok(found.parameter.and_then(|parameter| parameter.value).filter(|url| !url.is_empty()))
            }
            Err(error) if error.fault == Fault::Missing => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Posts over HTTP.
fn over_http() -> Post {
    // The first message makes the client: that is the slowest part of a cold start.
    let http: Arc<OnceCell<reqwest::Client>> = Arc::default();
    Arc::new(move |webhook, text| {
        let http = http.clone();
        Box::pin(async move {
            let client = async || reqwest::Client::builder().timeout(ATTEMPT_TIMEOUT).build();
            let http = http.get_or_try_init(client).await.map_err(|error| error.to_string())?;
            let answer = http.post(&webhook).json(&json!({ "text": text })).send().await;
            let answer = answer.map_err(|error| error.without_url().to_string())?;
            let seconds =
                answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            Ok(Answer { status: answer.status().as_u16(), retry_after: seconds.map(Duration::from_secs) })
        })
    })
}
