//! Durable workflows: async functions that survive the process that runs them.
//!
//! A workflow is an `async fn(Ctx, Input) -> Result<Output, Error>`. It changes the world in [steps][Ctx::step] and
//! waits through its [context][Ctx]; each result is appended to the log of its run before the code sees it. When the
//! process dies, or after a sleep of a month, a runner calls the code again and feeds it the same log: the code takes
//! the same path, repeats no work whose result is recorded, and continues.
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
//! # What keeps a replay deterministic
//!
//! Outside of steps the code may depend only on its input and on the results of its awaits: it reads the time with
//! [`Ctx::now`], draws random numbers and ids with [`Ctx::random`] and [`Ctx::id`], and reaches the world in steps. It
//! runs several things at once with [`all`] and [`first`] or with the combinators of the crate `futures`, except for
//! `select!`, which picks at random (`select_biased!` does not). Spawned tasks, channels to other tasks and the order
//! of a `HashMap` differ from one replay to the next. If changed code takes another path than the log, the kinds and
//! names of its commands differ from those in the log, and the run fails with an error that names
//! [both sides][Mismatch]. So give changed code a new version, and keep the old one [registered][Workflows::register]
//! for the runs that it began.
//!
//! # How it is built
//!
//! The crate stores the logs of runs, through `ledgerline-runs`; examples, the runner function and `ledgerline local`
//! call it. `ledgerline-engine` replays a log, without IO or a clock.
//!
//! - `ctx`, `step`, `waits`, `hooks`, `task_and_job`, `combinators`: the context API, futures that issue commands and
//!   wait for their results.
//! - `command_future`, `json`, `services`: the common part of those futures; JSON; tasks, jobs and events for them.
//! - `registry`: the workflows of a runner, by name and version.
//! - `runtime`: the runner, which loads a log, drives an [`Execution`], appends events and releases the run.
//! - `client`: starts runs and reads their results, for applications.

mod client;
mod combinators;
mod command_future;
mod ctx;
mod hooks;
mod json;
mod registry;
mod runtime;
mod services;
mod step;
mod task_and_job;
mod waits;

pub use client::{Client, ClientError};
pub use combinators::{All, First, all, first};
pub use ctx::Ctx;
pub use hooks::{Dispose, Hook, NewHook, Next};
pub use ledgerline_engine::{Ended, Error, Mismatch, Retry, VISIBLE_AFTER_MS};
pub use ledgerline_event::Millis;
pub use registry::{Workflow, Workflows};
pub use runtime::{Runner, RunnerOptions, Visited};
pub use services::Services;
pub use step::Step;
pub use task_and_job::{Job, SendEvent, Task};
pub use waits::{ReceivedEvent, Sleep, WaitForEvent};

/// The execution of a workflow: see [`ledgerline_engine::Execution`].
pub type Execution = ledgerline_engine::Execution<Workflow>;
