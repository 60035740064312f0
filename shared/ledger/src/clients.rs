use std::time::Duration;

use aws_config::{Region, SdkConfig, timeout::TimeoutConfig};
use aws_sdk_dynamodb::config::HttpClient;

/// The SDK clients of one account, region and endpoint. Cheap to clone.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Clients {
    pub dynamo: aws_sdk_dynamodb::Client,
    pub events: aws_sdk_eventbridge::Client,
    pub s3: aws_sdk_s3::Client,
    pub sqs: aws_sdk_sqs::Client,
    pub ssm: aws_sdk_ssm::Client,
}

impl Clients {
    /// From the usual AWS environment.
    pub async fn from_environment() -> Self {
        Self::new(&sdk_config().await)
    }

    /// For the services of a running local mode: any credentials will do there.
    pub fn at_endpoint(endpoint: &str, region: &str) -> Self {
        Self::new(&local_config(endpoint, region))
    }

    /// For the services of a local mode in this process, which `http` leads to.
    pub fn in_process(http: impl HttpClient + 'static, endpoint: &str, region: &str) -> Self {
        Self::new(&local_config(endpoint, region).into_builder().http_client(http).build())
    }

    /// From a configuration made elsewhere.
    pub fn new(config: &SdkConfig) -> Self {
        // A loopback endpoint has no name to put the bucket in front of.
        let mut s3 =
            aws_sdk_s3::config::Builder::from(config).force_path_style(config.endpoint_url().is_some());
        // A payload of some megabytes takes longer than a record.
        if let Some(timeouts) = config.timeout_config().and_then(patient) {
            s3 = s3.timeout_config(timeouts);
        }
        let s3 = s3.build();
        Self {
            dynamo: aws_sdk_dynamodb::Client::new(config),
            events: aws_sdk_eventbridge::Client::new(config),
            s3: aws_sdk_s3::Client::from_conf(s3),
            sqs: aws_sdk_sqs::Client::new(config),
            ssm: aws_sdk_ssm::Client::new(config),
        }
    }
}

fn local_config(endpoint: &str, region: &str) -> SdkConfig {
    let credentials = aws_sdk_dynamodb::config::Credentials::new("local", "local", None, None, "local");
    SdkConfig::builder()
        .behavior_version(aws_config::BehaviorVersion::latest())
        .region(Region::new(region.to_owned()))
        .endpoint_url(endpoint)
        .credentials_provider(aws_sdk_dynamodb::config::SharedCredentialsProvider::new(credentials))
        .timeout_config(timeouts(LONG_ATTEMPT))
        .retry_config(aws_config::retry::RetryConfig::standard())
        .build()
}

/// The usual AWS environment; `AWS_ENDPOINT_URL` included. A function that needs few clients makes them
/// from this, and carries no code of the others.
pub async fn sdk_config() -> SdkConfig {
    aws_config::from_env().timeout_config(timeouts(ATTEMPT)).load().await
}

/// The client for long polls: SQS holds the answer back until a message comes, for up to 20 s.
pub fn for_long_polls(sqs: &aws_sdk_sqs::Client) -> aws_sdk_sqs::Client {
    match sqs.config().timeout_config().and_then(patient) {
        Some(timeouts) => {
            aws_sdk_sqs::Client::from_conf(sqs.config().to_builder().timeout_config(timeouts).build())
        }
        None => sqs.clone(),
    }
}

/// One attempt at a request to DynamoDB, EventBridge or SQS. They answer within milliseconds: a request that has no
/// answer by then is lost, and the SDK sends it again.
const ATTEMPT: Duration = Duration::from_secs(3);
/// One attempt where a long time is normal: payloads, long polls, and services on a loaded machine of one's own.
const LONG_ATTEMPT: Duration = Duration::from_secs(25);

fn timeouts(attempt: Duration) -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(3))
        .operation_attempt_timeout(attempt)
        .build()
}

/// The same timeouts with long attempts; `None` if attempts have no timeout.
fn patient(timeouts: &TimeoutConfig) -> Option<TimeoutConfig> {
    timeouts.operation_attempt_timeout()?;
    Some(timeouts.to_builder().operation_attempt_timeout(LONG_ATTEMPT).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_payloads_and_long_polls_wait_longer_than_three_seconds() {
        let config = local_config("http://127.0.0.1:1", "us-east-1").into_builder();
        let clients = Clients::new(&config.timeout_config(timeouts(ATTEMPT)).build());
        let attempt =
            |timeouts: Option<&TimeoutConfig>| timeouts.unwrap().operation_attempt_timeout().unwrap();
        let polls = for_long_polls(&clients.sqs);
        assert_eq!(attempt(clients.dynamo.config().timeout_config()), ATTEMPT);
        assert_eq!(attempt(clients.events.config().timeout_config()), ATTEMPT);
        assert_eq!(attempt(clients.sqs.config().timeout_config()), ATTEMPT);
        assert_eq!(attempt(clients.s3.config().timeout_config()), LONG_ATTEMPT);
        assert_eq!(attempt(polls.config().timeout_config()), LONG_ATTEMPT);
    }
}
