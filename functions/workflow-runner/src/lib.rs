//! `workflow-runner`: takes runs from the run queue and executes them as far as they go.
//!
//! It is a library, because users write the workflows: their program registers the workflows and calls [`serve`].
//! The same program is the function on Lambda and a process anywhere else.
//!
//! ```no_run
//! use ledgerline_workflow::{Ctx, Error, Workflows};
//!
//! async fn greet(_: Ctx, name: String) -> Result<String, Error> {
//!     Ok(format!("Hello, {name}!"))
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), workflow_runner::ServeError> {
//!     workflow_runner::serve(Workflows::new().register("greet", "1", greet)).await
//! }
//! ```

mod args;
mod handler;
mod inbox;
mod on_lambda;
mod poll;
mod process;
mod serve;

pub use handler::{Handler, Seen};
pub use inbox::{Inbox, Letter};
pub use poll::{Polling, poll};
pub use serve::{ServeError, serve};
