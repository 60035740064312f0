//! The AWS services a ledger needs, in one process: DynamoDB, SQS, EventBridge, S3 and SSM parameters, spoken
//! in their own wire protocols on one loopback port, durable in one folder.
//!
//! Any AWS client works against [`Embedded::endpoint`]; those in the same process need no connection, see
//! [`Embedded::http_client`]. What has been acknowledged survives a restart and a
//! `kill -9`. Tests inject faults through a [`Hook`] and move time through a [`Clock`].

mod answer;
mod dynamo;
mod embedded;
mod events;
mod folder;
mod foreign;
mod gateway;
mod hook;
mod in_process;
mod options;
mod request_body;
mod s3;
mod serve;
mod service;
mod sqs;
mod ssm;
mod store;

pub use embedded::{Embedded, Prober, StartError};
pub use events::Admission;
pub use hook::{Call, Hook, Moment, Verdict};
pub use in_process::InProcess;
pub use options::{Clock, Options, system_clock};
pub use serve::{Patience, serve};
pub use service::Service;
pub use sqs::{AttributeValue, Counts, Outgoing, QueueError, Queues, Receive, Received, Sent};
