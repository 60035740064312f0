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
        let s3 = aws_sdk_s3::config::Builder::from(config)
            .force_path_style(config.endpoint_url().is_some())
            .build();
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
        .timeout_config(timeouts())
        .retry_config(aws_config::retry::RetryConfig::standard())
        .build()
}

/// The usual AWS environment; `AWS_ENDPOINT_URL` included. A function that needs few clients makes them
/// from this, and carries no code of the others.
pub async fn sdk_config() -> SdkConfig {
    aws_config::from_env().timeout_config(timeouts()).load().await
}

/// A store that does not answer must cost one attempt, not the whole invocation.
fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(3))
        .operation_attempt_timeout(Duration::from_secs(25))
        .build()
}
