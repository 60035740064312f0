//! Durable workflows: async functions that survive the process that runs them.
//!
//! A workflow is an `async fn(Ctx, Input) -> Result<Output, Error>`. What it does to the world it does in
//! [steps][Ctx::step]; what it waits for it waits for through its [context][Ctx]; each result is appended to the log of
//! its run before the code sees it. When the process dies, or the run has slept for a month, the code is called
//! again and fed the same log: it takes the same way, without doing anything twice that was recorded, and goes on.
//!
//! ```
//! use std::time::Duration;
//!
//! use ledgerline_workflow::{Ctx, Error, Workflows};
//! use serde::{Deserialize, Serialize};
//! use serde_json::json;
//!
//! #[derive(Serialize, Deserialize)]
//! struct Order {
//!     id: String,
//!     cents: u64,
//! }
//!
//! async fn order(ctx: Ctx, order: Order) -> Result<String, Error> {
//!     let reservation: String = ctx.step("reserve", || reserve(&order)).input(&order).await?;
//!     let paid = ctx
//!         .wait_for_event("payment.received")
//!         .matching(json!({"orderId": order.id}))
//!         .timeout(Duration::from_secs(72 * 3600))
//!         .await;
//!     if let Err(error) = paid {
//!         ctx.step("release", || release(&reservation)).await?;
//!         return Err(error);
//!     }
//!     ctx.step("ship", || async { Ok::<_, Error>(format!("parcel of {reservation}")) }).await
//! }
//!
//! async fn reserve(order: &Order) -> Result<String, Error> {
//!     match order.cents {
//!         0 => Err(Error::fatal("an order of nothing").code("empty")),
//!         _ => Ok(format!("reservation of {}", order.id)),
//!     }
//! }
//!
//! async fn release(_: &str) -> Result<(), Error> {
//!     Ok(())
//! }
//!
//! let workflows = Workflows::new().register("order", "1", order);
//! assert_eq!(workflows.get("order", None).map(|order| order.version()), Some("1"));
//! ```
//!
//! # What keeps a replay on the same way
//!
//! Between two of its awaits the code may do what it likes with what it has been given, and nothing else: time is
//! [`Ctx::now`], chance is [`Ctx::random`] and [`Ctx::id`], the world is in steps. Several things at once are
//! [`all`] and [`first`], or what the crate `futures` has for that, except for `select!`, which takes a random turn
//! (`select_biased!` does not). Spawned tasks, channels to other tasks, the order of a `HashMap` are not the same
//! the next time. Code that takes another way all the same, because it was changed, is found out by the kinds and
//! names of what it asks for, and the run fails with [both sides][Mismatch] named: give changed code a new version,
//! and keep the old one [registered][Workflows::register] for the runs that it began.
//!
//! # How it is built
//!
//! The engine is pure: an [`Execution`] is fed the log and says what is wanted next, without IO or a clock. The
//! runtime around it loads, appends and waits.

mod asked;
mod client;
mod ctx;
mod engine;
mod error;
mod execution;
mod hook;
mod json;
mod mismatch;
mod outside;
mod retry;
mod runtime;
mod started;
mod step;
mod together;
mod waiting;
mod workflows;

pub use client::{Client, ClientError};
pub use ctx::Ctx;
pub use error::Error;
pub use execution::{Ended, Execution};
pub use hook::{Dispose, Hook, NewHook, Next};
pub use ledgerline_event::Millis;
pub use mismatch::Mismatch;
pub use outside::Outside;
pub use retry::Retry;
pub use runtime::{Runner, RunnerOptions, Visited};
pub use started::{Job, SendEvent, Task};
pub use step::Step;
pub use together::{All, First, all, first};
pub use waiting::{ReceivedEvent, Sleep, WaitForEvent};
pub use workflows::{Workflow, Workflows};

/// A step that runs longer than this is shown as running; one that is faster costs a single entry of the log.
pub const VISIBLE_AFTER_MS: u64 = 50;
