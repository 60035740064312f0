//! `health-check`: each minute, how the tasks fare that are being worked on.

mod handler;

pub use handler::Handler;
