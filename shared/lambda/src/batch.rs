//! Batches of a queue. The answer names the messages that are not done; only those come again.

use aws_lambda_events::event::sqs::{BatchItemFailure, SqsBatchResponse, SqsEvent, SqsMessage};
use lambda_runtime::{LambdaEvent, service_fn};

/// Handles batches of a queue for as long as Lambda sends some.
pub async fn serve_queue<F>(handle: impl Fn(SqsEvent) -> F) -> Result<(), lambda_runtime::Error>
where
    F: Future<Output = SqsBatchResponse>,
{
    let handle = &handle;
    lambda_runtime::run(service_fn(|event: LambdaEvent<SqsEvent>| async move {
        Ok::<_, std::convert::Infallible>(handle(event.payload).await)
    }))
    .await
}

/// The answer for a message that is not done: the queue delivers it again.
pub fn item_failure(message: &SqsMessage) -> BatchItemFailure {
    let mut failure = BatchItemFailure::default();
    failure.item_identifier = message.message_id.clone().unwrap_or_default();
    failure
}
