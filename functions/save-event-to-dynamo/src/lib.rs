//! The function `save-event-to-dynamo`: it saves the events of the ingest queue in the events table, each once. What
//! can never be saved goes to the dead-letter queue with the reason. Lambda calls it, and local mode in process.

mod handler;

pub use handler::Handler;
