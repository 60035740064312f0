//! The ledger on which a command works: a stage on AWS, or the local mode that is running.

use anyhow::{Context, bail};
use ledgerline_drains::Drainers;
use ledgerline_event::Name;
use ledgerline_ledger::{
    Clients, Emitter, LocalState, Names, Reader, Redrive, parameter, system_clock, telemetry::Metrics,
};
use ledgerline_outbox::QueueUrls;
use ledgerline_stage::{Stage, StageOptions};
use ledgerline_store::{ApiKeys, ControlTable, FailedDeliveries, Payloads};

use crate::args::TargetArgs;

/// A ledger to work on.
pub(crate) struct Target {
    pub(crate) clients: Clients,
    pub(crate) names: Names,
    pub(crate) endpoint: String,
    /// The flag that selects it on the command line, for commands that alerts and notes suggest.
    flag: String,
    tenant: Option<Name>,
}

impl Target {
    /// Finds the ledger that the arguments select.
    pub(crate) async fn find(args: &TargetArgs) -> anyhow::Result<Self> {
        let tenant = args.tenant.as_ref().map(|text| Name::new("--tenant", text.as_str())).transpose()?;
        match (&args.stage, args.local) {
            (_, true) => Self::local(args, tenant),
            (Some(stage), false) => Self::on_aws(stage, tenant).await,
            (None, false) => {
                bail!("say which ledger: --local for the running local mode, or --stage STAGE on AWS")
            }
        }
    }

    fn local(args: &TargetArgs, tenant: Option<Name>) -> anyhow::Result<Self> {
        let state = LocalState::read(&args.data)?;
        let names = Names::of_stage(&state.stage);
        let tenant = tenant.map_or_else(|| Name::new("tenant", state.tenant.as_str()), Ok)?;
        let clients = Clients::at_endpoint(&state.aws_endpoint, &state.region);
        Ok(Self {
            clients,
            names,
            endpoint: state.aws_endpoint,
            flag: "--local".into(),
            tenant: Some(tenant),
        })
    }

    async fn on_aws(stage: &str, tenant: Option<Name>) -> anyhow::Result<Self> {
        let clients = Clients::from_environment().await;
        let mut names = Names::of_stage(stage);
        // Bucket names are global, so the deployment publishes its own in a parameter. Most commands need no bucket, and
        // `doctor` reports a missing one.
        let bucket = parameter(&clients.ssm, &names.payload_bucket_parameter).await;
        if let Some(bucket) = bucket.with_context(|| format!("stage {stage} on AWS does not answer"))? {
            names.payload_bucket = bucket;
        }
        Ok(Self { clients, names, endpoint: "AWS".into(), flag: format!("--stage {stage}"), tenant })
    }

    /// The tenant; an error if none is given.
    pub(crate) fn tenant(&self) -> anyhow::Result<&Name> {
        self.tenant
            .as_ref()
            .context("say whose events: --tenant TENANT, or LEDGERLINE_TENANT in the environment")
    }

    /// The tenant, if one is given.
    pub(crate) fn tenant_if_given(&self) -> Option<&Name> {
        self.tenant.as_ref()
    }

    pub(crate) fn control(&self) -> ControlTable {
        ControlTable::new(self.clients.dynamo.clone(), &self.names.control_table)
    }

    pub(crate) fn api_keys(&self) -> ApiKeys {
        ApiKeys::new(self.control())
    }

    pub(crate) fn failed_deliveries(&self) -> FailedDeliveries {
        FailedDeliveries::new(self.control())
    }

    pub(crate) fn redrive(&self) -> Redrive {
        Redrive::new(&self.clients, &self.names, system_clock())
    }

    pub(crate) fn payloads(&self) -> Payloads {
        Payloads::new(self.clients.s3.clone(), &self.names.payload_bucket)
    }

    pub(crate) fn reader(&self) -> Reader {
        Reader::new(self.clients.dynamo.clone(), &self.names.events_table, self.payloads())
    }

    /// An emitter for events that a user causes at the command line.
    pub(crate) fn emitter(&self, app: Name) -> anyhow::Result<Emitter> {
        let emitter = Emitter::new(&self.clients, &self.names, self.tenant()?.clone(), app);
        Ok(emitter.with_scope(|scope| {
            scope.context.source = Some("user".into());
            scope.context.origin = Some("cli".into());
        }))
    }

    /// The dispatcher's operations, in this process. It sends no alerts: stored alerts wait for the deployed dispatcher.
    pub(crate) async fn stage(&self) -> anyhow::Result<Stage> {
        let drainers =
            parameter(&self.clients.ssm, &self.names.drainers_parameter).await?.unwrap_or_default();
        let options = StageOptions {
            queues: QueueUrls::find(&self.clients.sqs, &self.names).await?,
            drainers: Drainers::parse(&drainers)?,
            slack: None,
            metrics: Metrics::silent(),
            ledger_flag: self.flag.clone(),
            clock: system_clock(),
        };
        Ok(Stage::new(&self.clients, &self.names, options)?)
    }
}
