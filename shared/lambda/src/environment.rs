//! The environment of a function, read once when it starts. The error names a missing variable. The template gives each
//! function the variables that the methods called in its `main` read, and a test compares the two.

use ledgerline_alert::Slack;
use ledgerline_drains::Drainers;
use ledgerline_event::Invalid;
use ledgerline_ledger::{
    Clients, MissingVariable, Names, optional, required, system_clock,
    telemetry::{Metrics, init_logs},
};
use ledgerline_outbox::QueueUrls;
use ledgerline_stage::{Stage, StageOptions};

/// The settings and clients of a function that works on tasks, jobs or runs.
pub struct Environment {
    /// The stage that the function belongs to.
    pub stage: String,
    /// Its tables, bus and bucket.
    pub names: Names,
    /// Clients of the AWS services.
    pub clients: Clients,
}

impl Environment {
    /// Reads the variables that all of these functions have, and begins to log.
    pub async fn read() -> Result<Self, MissingVariable> {
        init_logs();
        let stage = required("STAGE")?;
        let names = Names {
            control_table: required("CONTROL_TABLE")?,
            bus: required("EVENT_BUS")?,
            payload_bucket: required("PAYLOAD_BUCKET")?,
            ..Names::of_stage(&stage)
        };
        Ok(Self { stage, names, clients: Clients::from_environment().await })
    }

    /// Adds the events table, for a function that reads events.
    pub fn with_events_table(mut self) -> Result<Self, MissingVariable> {
        self.names.events_table = required("EVENTS_TABLE")?;
        Ok(self)
    }

    /// The metrics of a function.
    pub fn metrics(&self, function: &'static str) -> Metrics {
        Metrics::new(&self.stage, function)
    }

    /// The Slack that receives alerts.
    pub fn slack(&self) -> Result<Slack, MissingVariable> {
        Ok(Slack::new(self.clients.ssm.clone(), required("SLACK_WEBHOOK_PARAMETER")?))
    }

    /// The drainers of the stage, for a function that drains.
    pub fn drainers(&self) -> Result<Drainers, Invalid> {
        Drainers::parse(&optional("DRAINERS").unwrap_or_default())
    }

    /// Reads the queue URLs. Slack is off and drainers are the built-in ones: override where needed.
    pub fn stage_options(&self, metrics: Metrics) -> Result<StageOptions, lambda_runtime::Error> {
        Ok(StageOptions {
            queues: QueueUrls {
                tasks: required("TASK_QUEUE_URL")?,
                task_dead_letters: required("TASK_DEAD_LETTER_QUEUE_URL")?,
                runs: required("RUN_QUEUE_URL")?,
            },
            drainers: Drainers::parse("")?,
            slack: None,
            metrics,
            ledger_flag: format!("--stage {}", self.stage),
            clock: system_clock(),
        })
    }

    /// Wires the components of the stage.
    pub fn stage(&self, options: StageOptions) -> Result<Stage, Invalid> {
        Stage::new(&self.clients, &self.names, options)
    }
}
