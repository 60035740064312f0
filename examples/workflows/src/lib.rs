//! Durable workflows to read, to run, and to replace by your own.
//!
//! A workflow is an ordinary async function. What it does through its [`Ctx`](ledgerline_workflow::Ctx) is recorded in
//! the log of its run; when the process dies, or the run has nothing to do for three days, the function is later called
//! again and fed from that log, and goes on where it was. Two rules follow:
//!
//! - What touches the world belongs into a step: a request, a clock, a file, chance. The function around the steps must
//!   do the same when it is called again.
//! - A step runs *at least* once. Its result is recorded after it has run, so a crash in between runs it again: what it
//!   does should bear that, and an id from `ctx.id()` helps.
//!
//! This crate is also how your own looks: a library with the workflows, and a `main` of one line. To run it beside
//! `ledgerline local`:
//!
//! ```sh
//! cargo run --package example-workflows -- --local
//! ```
//!
//! On AWS `template.yaml` deploys the same program as the function `runner`.

mod approval;
mod fan_out;
mod order;
mod saga;

use ledgerline_workflow::Workflows;

pub use approval::{Answer, Decision, Request, approval};
pub use fan_out::{Documents, Words, fan_out};
pub use order::{Fulfilment, Line, Order, order};
pub use saga::{Booking, Trip, saga};

/// What this program can run, by name and version.
///
/// A run stays with the version that began it. When the code of a workflow changes in what it does or in what order,
/// register it under the next version *beside* the old one, and take the old one away when its last run has ended.
pub fn workflows() -> Workflows {
    Workflows::new()
        .register("order", "1", order)
        .register("approval", "1", approval)
        .register("fan_out", "1", fan_out)
        .register("saga", "1", saga)
}
