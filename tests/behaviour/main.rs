//! End-to-end behaviour, one file each, over the embedded services through real SDK clients.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod command_line;
mod deliveries;
mod duplicates;
mod emitting;
mod failed_deliveries;
mod handshake;
mod killed;
mod overflow;
mod reading;
mod sample_event;
mod template;
mod world;
