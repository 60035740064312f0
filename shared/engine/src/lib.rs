//! The replay engine: it feeds the log of a run to the code of its workflow and says which events are to be appended
//! next.
//!
//! It promises that code which is fed the same log issues the same commands with the same ids, whatever the world does
//! meanwhile, and that a log which the code does not fit is found and described from [both sides][Mismatch]. It stores
//! nothing and is pure: no IO, no clock, no async runtime. The driver passes the time to each call and appends what an
//! [`Execution`] wants.
//!
//! `ledgerline-workflow` uses it from two sides. The futures of its context issue commands through the [`Engine`] and
//! wait for them with a [`CommandHandle`]; its runner feeds and polls an [`Execution`].
//!
//! - `execution`: one run, from its first event to its last.
//! - `engine`, `delivery`, `handle`: the commands that the code has issued, as the execution and the futures use them.
//! - `command`, `step`, `wait`, `hook`: what log and process know of each command.
//! - `event_router`, `unread_events`: the command that an event is for; events that the code dropped unread.
//! - `wake_queue`, `wakers`: the order in which code and steps are polled.
//! - `scope`, `deterministic_ids`: which code uses the context, and the ids that it gets.

mod command;
mod delivery;
mod deterministic_ids;
mod draft;
mod engine;
mod error;
mod event_router;
mod execution;
mod handle;
mod hook;
mod mismatch;
mod panics;
mod retry;
mod scope;
mod step;
mod unread_events;
mod wait;
mod wake_queue;
mod wakers;

pub use engine::Engine;
pub use error::{ABANDONED, Error, TIMEOUT};
pub use execution::{Code, Ended, Execution, Program};
pub use handle::{CommandHandle, Due, WaitTarget};
pub use mismatch::Mismatch;
pub use panics::{catch_panic, drop_quietly};
pub use retry::Retry;
pub use step::StepTurn;
pub use wake_queue::StepWaker;

/// The log shows a step as running once it has run this long; a faster step costs a single entry of the log.
pub const VISIBLE_AFTER_MS: u64 = 50;
