//! The function `task-dlq`: it reads the dead-letter queue of the task queue and ends each task with `Task Failed`,
//! since its retries are exhausted; a task that still runs goes back to the task queue. Lambda calls it, and local mode
//! in process.

mod handler;

pub use handler::Handler;
