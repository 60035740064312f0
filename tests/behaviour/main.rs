//! End-to-end behaviour, one file each, over the embedded services through real SDK clients.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod command_line;
mod dead_letters;
mod deliveries;
mod demo;
mod dispatching;
mod draining;
mod duplicates;
mod emitting;
mod examples;
mod failed_deliveries;
mod foreign_worker;
mod handshake;
mod health;
mod jobs;
mod jobs_api;
mod killed;
mod killed_runs;
mod killed_work;
mod ledger;
mod notification;
mod overflow;
mod poison;
mod policies;
mod reading;
mod rewinding;
mod runner;
mod runner_function;
mod running;
mod sample_event;
mod shift;
mod simulation;
mod storms;
mod subscriptions_api;
mod subscriptions_bad_input;
mod subscriptions_cli;
mod tasks;
mod tasks_api;
mod tasks_cli;
mod template;
mod verifying;
mod worker;
mod waiting;
mod world;
