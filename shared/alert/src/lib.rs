//! Telling people what they must know.

mod slack;

pub use slack::{AlertError, Answer, Post, Slack};
