//! Which ledger a command is about: a stage on AWS, or the local mode that is running.

use anyhow::{Context, bail};
use ledgerline_dispatch::{Dispatch, DispatchOptions, Drainers, QueueUrls};
use ledgerline_event::Name;
use ledgerline_ledger::{
    Clients, Emitter, Names, Payloads, Reader, control::ControlTable, parameter, system_clock,
    telemetry::Metrics,
};

use crate::{args::TargetArgs, local::LocalState};

/// A ledger to work on.
pub(crate) struct Target {
    pub(crate) clients: Clients,
    pub(crate) names: Names,
    pub(crate) endpoint: String,
    /// How a person names it on the command line.
    flag: String,
    tenant: Option<Name>,
}

impl Target {
    /// Finds the ledger that the arguments mean.
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
        // Bucket names are global, so the deployment publishes the one that it was given. `doctor` tells
        // what is missing, and most commands need no bucket.
        let bucket = parameter(&clients.ssm, &names.payload_bucket_parameter).await;
        if let Some(bucket) = bucket.with_context(|| format!("stage {stage} on AWS does not answer"))? {
            names.payload_bucket = bucket;
        }
        Ok(Self { clients, names, endpoint: "AWS".into(), flag: format!("--stage {stage}"), tenant })
    }

    /// Whose events.
    pub(crate) fn tenant(&self) -> anyhow::Result<&Name> {
        self.tenant
            .as_ref()
            .context("say whose events: --tenant TENANT, or LEDGERLINE_TENANT in the environment")
    }

    /// The tenant, if one was said.
    pub(crate) fn tenant_if_said(&self) -> Option<&Name> {
        self.tenant.as_ref()
    }

    pub(crate) fn control(&self) -> ControlTable {
        ControlTable::new(self.clients.dynamo.clone(), &self.names.control_table)
    }

    pub(crate) fn payloads(&self) -> Payloads {
        Payloads::new(self.clients.s3.clone(), &self.names.payload_bucket)
    }

    pub(crate) fn reader(&self) -> Reader {
        Reader::new(self.clients.dynamo.clone(), &self.names.events_table, self.payloads())
    }

    /// Emits what a person does here.
    pub(crate) fn emitter(&self, app: Name) -> anyhow::Result<Emitter> {
        let emitter = Emitter::new(&self.clients, &self.names, self.tenant()?.clone(), app);
        Ok(emitter.within(|origin| {
            origin.context.source = Some("user".into());
            origin.context.origin = Some("cli".into());
        }))
    }

    /// What starts work, in this process. Alerts wait for the dispatcher, which may tell people.
    pub(crate) async fn dispatch(&self) -> anyhow::Result<Dispatch> {
        let drainers =
            parameter(&self.clients.ssm, &self.names.drainers_parameter).await?.unwrap_or_default();
        let options = DispatchOptions {
            queues: QueueUrls::find(&self.clients.sqs, &self.names).await?,
            drainers: Drainers::parse(&drainers)?,
            slack: None,
            metrics: Metrics::silent(),
            ledger_flag: self.flag.clone(),
            clock: system_clock(),
        };
        Ok(Dispatch::new(&self.clients, &self.names, options)?)
    }
}
