//! The function `task-dlq`: it ends the tasks whose messages are in the dead-letter queue of the task queue with `Task Failed`, since
//! their retries are exhausted. Lambda calls it, and local mode in process.

mod handler;

pub use handler::Handler;
