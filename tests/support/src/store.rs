//! Tables, queues, bus and bucket alone, without the processes of local mode.

use ledgerline_embedded::{Embedded, Interceptor};
use ledgerline_ledger::{Clients, Names, Saver};
use ledgerline_store::{ControlTable, FailedDeliveries};

use crate::local::{Parameters, provision, wiring};

/// The store alone: tables, queues and bucket in memory, with faults from an interceptor.
pub struct Store {
    /// The services themselves.
    pub embedded: Embedded,
    /// Clients that meet every fault at once.
    pub clients: Clients,
    /// What its tables and queues are called.
    pub names: Names,
}

impl Store {
    /// A stage in memory; the interceptor sees every request and may let it fail.
    pub async fn start(interceptor: Option<Interceptor>) -> Self {
        Self::with(ledgerline_embedded::Options { interceptor, ..Default::default() }).await
    }

    /// A stage with other options of the services.
    pub async fn with(options: ledgerline_embedded::Options) -> Self {
        let embedded = Embedded::start(options).await.unwrap();
        let clients = without_retries(&embedded.endpoint());
        let names = Names::of_stage("test");
        provision(&clients, &names, &wiring(&names), &Parameters::default()).await.unwrap();
        Self { embedded, clients, names }
    }

    /// Events that were not saved.
    pub fn failed_deliveries(&self) -> FailedDeliveries {
        FailedDeliveries::new(self.control())
    }

    /// Its control table.
    pub fn control(&self) -> ControlTable {
        ControlTable::new(self.clients.dynamo.clone(), &self.names.control_table)
    }

    /// A saver that keeps events for ever.
    pub fn saver(&self) -> Saver {
        Saver::new(self.clients.dynamo.clone(), &self.names.events_table, self.control(), 0)
    }
}

/// Clients that meet every fault at once: retries of the SDK would hide them behind waiting.
pub fn without_retries(endpoint: &str) -> Clients {
    let credentials = aws_sdk_dynamodb::config::Credentials::new("test", "test", None, None, "test");
    let config = aws_config::SdkConfig::builder()
        .behavior_version(aws_config::BehaviorVersion::latest())
        .region(aws_config::Region::new("us-east-1"))
        .endpoint_url(endpoint)
        .credentials_provider(aws_sdk_dynamodb::config::SharedCredentialsProvider::new(credentials))
        .retry_config(aws_config::retry::RetryConfig::disabled())
        .build();
    Clients::new(&config)
}
