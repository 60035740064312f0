//! The services as AWS clients see them: every test goes through the AWS SDK.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod connections;
mod durability;
mod dynamo;
mod events;
mod faults;
mod in_process;
mod queues;
mod redrive;
mod s3;
mod ssm;
mod world;
