//! The AWS services that a ledger needs, in one process: DynamoDB, SQS, EventBridge, S3 and SSM parameters, in their
//! own wire protocols on one loopback port.
//!
//! Any AWS client works against [`Embedded::endpoint`]; clients in the same process need no connection, see
//! [`Embedded::http_client`]. The services store everything in one folder, in two SQLite files: what they have
//! acknowledged survives a restart and a `kill -9`. Local mode starts them, and so do tests and the bench, which inject
//! faults through an [`Interceptor`] and move time through a [`Clock`].
//!
//! - One port: `serve` accepts connections, `cross_origin` refuses what a web page may have sent, `gateway` finds the
//!   service.
//! - The services: `dynamo`, `events`, `s3`, `sqs`, `ssm`.
//! - Storage: `folder` has the files, `store` the database of all services but DynamoDB.

mod answer;
mod cross_origin;
mod dynamo;
mod embedded;
mod events;
mod folder;
mod gateway;
mod in_process;
mod interceptor;
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
pub use in_process::InProcess;
pub use interceptor::{Call, Interceptor, Moment, Verdict};
pub use options::{Clock, Options, system_clock};
pub use serve::{ConnectionTimeouts, serve};
pub use service::Service;
pub use sqs::{AttributeValue, Counts, Outgoing, QueueError, Queues, Receive, Received, Sent, Waiting};
