//! `save-event-to-dynamo`: from the ingest queue into the events table.

mod handler;

pub use handler::Handler;
