use anyhow::Context;
use ledgerline::local::{Parameters, REGION, provision, wiring};
use ledgerline_embedded::{Embedded, Options, Service};
use ledgerline_ledger::{Clients, Names};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The embedded services of a stage in a folder of their own, as local mode keeps them.
pub(crate) struct Services {
    pub(crate) names: Names,
    pub(crate) embedded: Embedded,
    /// Where the services run; what is measured runs elsewhere.
    pub(crate) runtime: Runtime,
    pub(crate) dead_letter_queue_url: String,
    _folder: TempDir,
}

impl Services {
    /// Starts them with everything that a stage has.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let folder = tempfile::tempdir()?;
        let options =
            Options { data: Some(folder.path().to_owned()), region: REGION.into(), ..Options::default() };
        let names = Names::of_stage("bench");
        let (embedded, dead_letter_queue_url) = runtime.block_on(async {
            let embedded = Embedded::start(options).await?;
            let clients = Clients::at_endpoint(&embedded.endpoint(), REGION);
            provision(&clients, &names, &wiring(&names), &Parameters::default()).await?;
            let queue = clients.sqs.get_queue_url().queue_name(&names.dead_letter_queue).send().await?;
            anyhow::Ok((embedded, queue.queue_url.context("the dead-letter queue has no URL")?))
        })?;
        Ok(Self { names, embedded, runtime, dead_letter_queue_url, _folder: folder })
    }

    /// Clients of the services; each caller's have connections of their own.
    pub(crate) fn clients(&self) -> Clients {
        Clients::at_endpoint(&self.embedded.endpoint(), REGION)
    }

    /// How many requests the tables were sent since the last reset.
    pub(crate) fn table_requests(&self) -> u64 {
        let requests = self.embedded.requests();
        requests
            .iter()
            .filter(|((service, _), _)| *service == Service::DynamoDb)
            .map(|(_, count)| count)
            .sum()
    }

    /// Ends them and removes the folder.
    pub(crate) fn stop(self) {
        self.runtime.block_on(self.embedded.stop());
    }
}
