//! What the functions share at their edge. A `main` reads its [`Environment`] and makes a handler; the handler translates
//! between Lambda and the ledger, and names in its answer the messages that come again ([`item_failure`]).
//!
//! It stores nothing. Only functions call it.

mod batch;
mod deadline;
mod environment;

pub use batch::{item_failure, serve_queue};
pub use deadline::deadline;
pub use environment::Environment;
