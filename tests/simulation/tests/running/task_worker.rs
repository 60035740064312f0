//! A worker for the tasks that runs start: takes one message and ends its task.

use std::time::Duration;

use ledgerline_event::catalogue::ErrorCategory;
use ledgerline_jobs::{Acquisition, EndAnswer, TaskEnd, TaskMessage};
use ledgerline_outbox::ComponentError;
use ledgerline_stage::Stage;
use serde_json::json;

const EXTENSION: Duration = Duration::from_secs(40);
const ATTEMPTS: u32 = 50;

pub(super) async fn work(
    stage: Stage,
    sqs: aws_sdk_sqs::Client,
    queue: String,
    fails: bool,
) -> Result<(), ComponentError> {
    let answer = sqs.receive_message().queue_url(&queue).max_number_of_messages(1).send().await;
    let Some(received) = answer.ok().and_then(|answer| answer.messages?.pop()) else { return Ok(()) };
    let body = received.body().unwrap();
    let message = TaskMessage::parse(body).unwrap();
    let is_over = match stage.tasks.acquire(&message, body, "worker", EXTENSION, ATTEMPTS).await? {
        Acquisition::Held { .. } => false,
        Acquisition::Ended => true,
        Acquisition::Exhausted { .. } => panic!("{ATTEMPTS} attempts"),
        Acquisition::Acquired(lease) => {
            let end = match fails {
                true => TaskEnd::Failed { error: "no".into(), category: ErrorCategory::Auth },
                false => TaskEnd::Completed {
                    output: json!({ "of": message.request_id }),
                    duration_ms: 1,
                    exit_code: 0,
                    usage: None,
                },
            };
            stage.tasks.end(&lease, end).await? == EndAnswer::Done
        }
    };
    if is_over {
        let _ = sqs
            .delete_message()
            .queue_url(&queue)
            .receipt_handle(received.receipt_handle().unwrap())
            .send()
            .await;
    }
    Ok(())
}
