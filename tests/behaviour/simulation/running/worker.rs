//! A worker for the tasks that runs start: takes one message and ends its task.

use std::time::Duration;

use ledgerline_dispatch::{Dispatch, DispatchError, EndAnswer, Taken, TaskEnd, TaskMessage};
use ledgerline_event::catalogue::ErrorCategory;
use serde_json::json;

const EXTENSION: Duration = Duration::from_secs(40);
const ATTEMPTS: u32 = 50;

pub(super) async fn work(
    dispatch: Dispatch,
    sqs: aws_sdk_sqs::Client,
    queue: String,
    fails: bool,
) -> Result<(), DispatchError> {
    let answer = sqs.receive_message().queue_url(&queue).max_number_of_messages(1).send().await;
    let Some(received) = answer.ok().and_then(|answer| answer.messages?.pop()) else { return Ok(()) };
    let body = received.body().unwrap();
    let message = TaskMessage::parse(body).unwrap();
    let is_over = match dispatch.take(&message, body, "worker", EXTENSION, ATTEMPTS).await? {
        Taken::Held { .. } => false,
        Taken::Ended => true,
        Taken::Exhausted { .. } => panic!("{ATTEMPTS} attempts"),
        Taken::Mine(lease) => {
            let end = match fails {
                true => TaskEnd::Failed { error: "no".into(), category: ErrorCategory::Auth },
                false => TaskEnd::Completed {
                    output: json!({ "of": message.request_id }),
                    duration_ms: 1,
                    exit_code: 0,
                    usage: None,
                },
            };
            dispatch.end(&lease, end).await? == EndAnswer::Done
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
