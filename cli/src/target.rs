//! Which ledger a command is about: a stage on AWS, or the local mode that is running.

use anyhow::{Context, bail};
use ledgerline_event::Name;
use ledgerline_ledger::{Clients, Fault, Names, Payloads, Reader, StoreError, control::ControlTable};

use crate::{args::TargetArgs, local::LocalState};

/// A ledger to work on.
pub(crate) struct Target {
    pub(crate) clients: Clients,
    pub(crate) names: Names,
    pub(crate) endpoint: String,
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
        Ok(Self { clients, names, endpoint: state.aws_endpoint, tenant: Some(tenant) })
    }

    async fn on_aws(stage: &str, tenant: Option<Name>) -> anyhow::Result<Self> {
        let clients = Clients::from_environment().await;
        let mut names = Names::of_stage(stage);
        // Bucket names are global, so the deployment publishes the one that it was given.
        let answer = clients.ssm.get_parameter().name(&names.payload_bucket_parameter).send().await;
        match answer.map_err(|error| StoreError::new("GetParameter", error)) {
            Ok(found) => {
                if let Some(bucket) = found.parameter.and_then(|parameter| parameter.value) {
                    names.payload_bucket = bucket;
                }
            }
            // `doctor` tells what is missing, and most commands need no bucket.
            Err(error) if error.fault == Fault::Missing => {}
            Err(error) => return Err(error).context(format!("stage {stage} on AWS does not answer")),
        }
        Ok(Self { clients, names, endpoint: "AWS".into(), tenant })
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
}
