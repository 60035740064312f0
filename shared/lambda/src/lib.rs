//! What the functions share at their edge. A `main` reads its [`Environment`], makes a handler and serves:
//! [`serve_queue`] for batches of a queue, [`serve`] for schedules, streams, and a queue and a schedule together. The
//! handler translates between Lambda and the ledger; it learns from its [`Invocation`] how long it may work, and names
//! in its answer the messages that come again ([`item_failure`]).
//!
//! It stores nothing. Only functions call it.

mod batch;
mod environment;
mod invocation;

pub use batch::{item_failure, serve_queue};
pub use environment::Environment;
pub use invocation::{Invocation, serve};
