//! The engine, driven without any IO: logs in memory, clocks that tests move, steps that tests let through.

#![allow(clippy::unwrap_used)]

mod determinism;
mod driving;
mod gates;
mod hooks;
mod mismatches;
mod random;
mod steps;
mod threads;
mod together;
mod unread;
mod waits;
mod world;
