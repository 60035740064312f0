//! The engine, driven without any IO: logs in memory, clocks that tests move, steps that tests let through.

#![allow(clippy::unwrap_used)]

mod combinators;
mod determinism;
mod driving;
mod gates;
mod hand_overs;
mod hooks;
mod mismatches;
mod random;
mod steps;
mod threads;
mod waits;
mod world;
