//! Histories from a seed: the real code over real SDK clients, with every request in the simulation's hand.
//!
//! A connector takes the place of HTTP. What an actor asks for waits in the network until the scheduler picks it,
//! and only then meets the store: applied or not, answered or not, now or many steps later. Time is the paused time of
//! the test's runtime. So an actor waits for nothing but a request or a timer, and the same seed gives the same history.

mod actors;
mod call;
mod connector;
mod draining;
mod dynamo;
mod faults;
mod harness;
mod histories;
mod running;
mod saving;
mod services;
mod store;
mod trace;
mod working;

pub(crate) use actors::{BEGINNING, Simulation};
pub(crate) use call::{Answer, Call, Service};
pub(crate) use faults::Faults;
pub(crate) use histories::histories;
pub(crate) use store::Store;
