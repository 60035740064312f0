//! `task-dlq`: tasks whose retries are exhausted become `Task Failed`, from the task queue's dead letters.

mod handler;

pub use handler::Handler;
