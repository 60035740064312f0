//! One embedded AWS with clients for it and a clock that the test moves.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_sqs::config::Credentials;
use ledgerline_embedded::{Embedded, Interceptor, Options};

pub(crate) struct World {
    pub(crate) embedded: Embedded,
    pub(crate) dynamo: aws_sdk_dynamodb::Client,
    pub(crate) sqs: aws_sdk_sqs::Client,
    pub(crate) events: aws_sdk_eventbridge::Client,
    pub(crate) s3: aws_sdk_s3::Client,
    pub(crate) ssm: aws_sdk_ssm::Client,
    now: Arc<AtomicU64>,
}

impl World {
    pub(crate) async fn in_memory() -> Self {
        Self::start(None, None).await
    }

    pub(crate) async fn with_interceptor(interceptor: Interceptor) -> Self {
        Self::start(None, Some(interceptor)).await
    }

    pub(crate) async fn in_folder(folder: &Path) -> Self {
        Self::start(Some(folder), None).await
    }

    async fn start(folder: Option<&Path>, interceptor: Option<Interceptor>) -> Self {
        let now = Arc::new(AtomicU64::new(1_767_453_739_000));
        let clock = now.clone();
        let options = Options {
            data: folder.map(Into::into),
            clock: Arc::new(move || clock.load(Ordering::SeqCst)),
            interceptor,
            ..Options::default()
        };
        let embedded = Embedded::start(options).await.unwrap();
        let config = sdk_config(&embedded.endpoint()).await;
        let s3 = aws_sdk_s3::config::Builder::from(&config).force_path_style(true).build();
        Self {
            dynamo: aws_sdk_dynamodb::Client::new(&config),
            sqs: aws_sdk_sqs::Client::new(&config),
            events: aws_sdk_eventbridge::Client::new(&config),
            s3: aws_sdk_s3::Client::from_conf(s3),
            ssm: aws_sdk_ssm::Client::new(&config),
            embedded,
            now,
        }
    }

    /// Moves the clock on by a number of seconds.
    pub(crate) fn pass(&self, seconds: u64) {
        self.now.fetch_add(seconds * 1000, Ordering::SeqCst);
        self.embedded.clock_moved();
    }

    pub(crate) async fn queue(&self, name: &str) -> String {
        self.queue_with(name, &[]).await
    }

    pub(crate) async fn queue_with(&self, name: &str, attributes: &[(&str, &str)]) -> String {
        let mut create = self.sqs.create_queue().queue_name(name);
        for (name, value) in attributes {
            create = create.attributes((*name).into(), *value);
        }
        create.send().await.unwrap().queue_url.unwrap()
    }

    pub(crate) async fn send(&self, queue: &str, body: &str) {
        self.sqs.send_message().queue_url(queue).message_body(body).send().await.unwrap();
    }

    /// Receives up to ten messages without waiting.
    pub(crate) async fn receive(&self, queue: &str) -> Vec<aws_sdk_sqs::types::Message> {
        self.sqs
            .receive_message()
            .queue_url(queue)
            .max_number_of_messages(10)
            .message_system_attribute_names("All".into())
            .message_attribute_names("All")
            .send()
            .await
            .unwrap()
            .messages
            .unwrap_or_default()
    }

    pub(crate) async fn bodies(&self, queue: &str) -> Vec<String> {
        self.receive(queue).await.into_iter().map(|message| message.body.unwrap()).collect()
    }
}

/// Without retries, so that each fault is seen.
async fn sdk_config(endpoint: &str) -> SdkConfig {
    aws_config::defaults(BehaviorVersion::latest())
        .endpoint_url(endpoint)
        .region("us-east-1")
        .credentials_provider(Credentials::new("any", "any", None, None, "test"))
        .retry_config(aws_config::retry::RetryConfig::disabled())
        .load()
        .await
}
