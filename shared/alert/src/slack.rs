//! Telling Slack. The webhook is a secret: it is read from SSM when it is needed, and never logged.

use std::time::{Duration, Instant};

use ledgerline_ledger::{Fault, StoreError};
use reqwest::{StatusCode, header::RETRY_AFTER};
use serde_json::json;
use tokio::sync::OnceCell;

/// All attempts together; the function has 30 s.
const PATIENCE: Duration = Duration::from_secs(18);
const ONE_ATTEMPT: Duration = Duration::from_secs(6);

/// Sends messages to a webhook.
#[derive(Debug)]
pub struct Slack {
    ssm: aws_sdk_ssm::Client,
    parameter: String,
    /// Made when there is somebody to tell: it is the slowest part of a start.
    http: OnceCell<reqwest::Client>,
    patience: Duration,
}

/// Why nobody was told.
#[derive(Debug, thiserror::Error)]
pub enum AlertError {
    /// The webhook could not be read.
    #[error("reading the webhook: {0}")]
    Parameter(#[from] StoreError),
    /// Slack refused, or was not there. The webhook's address is left out on purpose.
    #[error("Slack did not take the message: {0}")]
    Slack(String),
}

impl Slack {
    /// `parameter` is the SSM SecureString that holds the webhook.
    pub fn new(ssm: aws_sdk_ssm::Client, parameter: String) -> Self {
        Self { ssm, parameter, http: OnceCell::new(), patience: PATIENCE }
    }

    /// The same with another limit to all attempts together.
    pub fn patient_for(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sends `text`; `false` if no webhook is set, and the log is all there is.
    pub async fn send(&self, text: &str) -> Result<bool, AlertError> {
        let Some(webhook) = self.webhook().await? else { return Ok(false) };
        let client = async || reqwest::Client::builder().timeout(ONE_ATTEMPT).build();
        let http =
            self.http.get_or_try_init(client).await.map_err(|error| AlertError::Slack(error.to_string()))?;
        let deadline = Instant::now() + self.patience;
        let mut backoff = Duration::from_millis(500);
        loop {
            let answer = http.post(&webhook).json(&json!({ "text": text })).send().await;
            let (trouble, wait) = match answer {
                Ok(answer) if answer.status().is_success() => return Ok(true),
                Ok(answer) => {
                    let status = answer.status();
                    let passing = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
                    if !passing {
                        return Err(AlertError::Slack(format!("it answered {status}; check the webhook")));
                    }
                    let asked =
                        answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                    // Longer than our patience is as good as never.
                    (
                        format!("it answered {status}"),
                        asked.map_or(backoff, Duration::from_secs).min(self.patience),
                    )
                }
                Err(error) => (error.without_url().to_string(), backoff),
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
