//! The runner takes messages from the run queue and executes their runs as far as they go; once a minute it sweeps the
//! runs whose time has come. A message only names a run: `ledgerline-workflow` and the crates below it store the run
//! and its log.
//!
//! The crate is a library, because users write the workflows: their program registers the workflows and calls
//! [`serve`]. The same program is the function `runner` on Lambda and a process anywhere else. Local mode runs [`poll`]
//! in process.
//!
//! ```no_run
//! use ledgerline_workflow::{Ctx, Error, Workflows};
//!
//! async fn greet(_: Ctx, name: String) -> Result<String, Error> {
//!     Ok(format!("Hello, {name}!"))
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), ledgerline_runner::ServeError> {
//!     ledgerline_runner::serve(Workflows::new().register("greet", "1", greet)).await
//! }
//! ```

mod args;
mod handler;
mod lambda;
mod poll;
mod process;
mod run_queue;
mod serve;

pub use handler::{Handler, MessageOutcome};
pub use poll::{Polling, poll};
pub use run_queue::{QueueMessage, RunQueue};
pub use serve::{ServeError, serve};
