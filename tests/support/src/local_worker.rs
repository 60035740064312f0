//! A worker on the task queue of a running local mode, whose every step the test takes.

use ledgerline_embedded::Receive;
use ledgerline_jobs::{Acquisition, TaskEnd, TaskLease, TaskMessage};
use serde_json::Value;

use crate::{EXTENSION, World, until};

/// The next task on the queue, in a worker's hand.
pub async fn take(world: &World) -> TaskLease {
    let (queues, queue) = (world.local.embedded.queues(), &world.local.names.task_queue);
    until("a task waits for a worker", || async {
        let receive = Receive { max: 1, wait: None, visibility_seconds: None };
        let received = queues.receive_now(queue, &receive).unwrap().pop()?;
        queues.delete(queue, &received.receipt).unwrap();
        let message = TaskMessage::parse(&received.body).unwrap();
        let taken = world
            .local
            .stage
            .tasks
            .acquire(&message, &received.body, "worker-1", EXTENSION, 3)
            .await
            .unwrap();
        let Acquisition::Acquired(lease) = taken else { panic!("{taken:?}") };
        Some(*lease)
    })
    .await
}

/// Ends a task with an output.
pub async fn complete(world: &World, lease: &TaskLease, output: Value) {
    let end = TaskEnd::Completed { output, duration_ms: 7, exit_code: 0, usage: None };
    world.local.stage.tasks.end(lease, end).await.unwrap();
}

/// Ends a task for good.
pub async fn fail(world: &World, lease: &TaskLease) {
    let category = ledgerline_event::catalogue::ErrorCategory::Auth;
    world.local.stage.tasks.end(lease, TaskEnd::Failed { error: "no key".into(), category }).await.unwrap();
}
