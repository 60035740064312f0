use anyhow::Context;
use ledgerline_drains::Drainers;
use ledgerline_embedded::{Embedded, Interceptor, Options, Service};
use ledgerline_ledger::{Clients, Clock, Names, telemetry::Metrics};
use ledgerline_local::{Parameters, REGION, provision, wiring};
use ledgerline_outbox::QueueUrls;
use ledgerline_stage::{Stage, StageOptions};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The embedded services of a stage in a folder of their own, as local mode keeps them.
pub(crate) struct Services {
    pub(crate) names: Names,
    pub(crate) embedded: Embedded,
    /// Where the services run; what is measured runs elsewhere.
    pub(crate) runtime: Runtime,
    pub(crate) dead_letter_queue_url: String,
    folder: TempDir,
}

impl Services {
    /// Starts them with everything that a stage has.
    pub(crate) fn start() -> anyhow::Result<Self> {
        Self::of_stage("bench", None)
    }

    /// The same for a stage of this name, with an interceptor around every request.
    pub(crate) fn of_stage(stage: &str, interceptor: Option<Interceptor>) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let folder = tempfile::tempdir()?;
        let data = Some(folder.path().to_owned());
        let options = Options { data, region: REGION.into(), interceptor, ..Options::default() };
        let names = Names::of_stage(stage);
        let (embedded, dead_letter_queue_url) = runtime.block_on(async {
            let embedded = Embedded::start(options).await?;
            let clients = Clients::at_endpoint(&embedded.endpoint(), REGION);
            provision(&clients, &names, &wiring(&names), &Parameters::default()).await?;
            let queue = clients.sqs.get_queue_url().queue_name(&names.dead_letter_queue).send().await?;
            anyhow::Ok((embedded, queue.queue_url.context("the dead-letter queue has no URL")?))
        })?;
        Ok(Self { names, embedded, runtime, dead_letter_queue_url, folder })
    }

    /// Clients of the services; each caller's have connections of their own.
    pub(crate) fn clients(&self) -> Clients {
        Clients::at_endpoint(&self.embedded.endpoint(), REGION)
    }

    /// A dispatcher as one process of it is.
    pub(crate) async fn stage(&self, clients: &Clients, clock: Clock) -> anyhow::Result<Stage> {
        let options = StageOptions {
            queues: QueueUrls::find(&clients.sqs, &self.names).await?,
            drainers: Drainers::parse("")?,
            slack: None,
            metrics: Metrics::silent(),
            ledger_flag: "--stage bench".into(),
            clock,
        };
        Ok(Stage::new(clients, &self.names, options)?)
    }

    /// How many requests all services were sent since the last reset.
    pub(crate) fn requests(&self) -> u64 {
        self.embedded.requests().values().sum()
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
        drop(self.into_folder());
    }

    /// Ends them and hands over the folder with everything in it.
    pub(crate) fn into_folder(self) -> TempDir {
        self.runtime.block_on(self.embedded.stop());
        self.folder
    }
}
