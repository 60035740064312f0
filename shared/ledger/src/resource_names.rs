/// What the resources of a stage are called, on AWS and in local mode alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// `dev`, `prod`, `local`, …
    pub stage: String,
    /// The append-only table.
    pub events_table: String,
    /// The table of all coordination.
    pub control_table: String,
    /// The event bus.
    pub bus: String,
    /// From the rule to the saver.
    pub ingest_queue: String,
    /// What the rule, the saver or the queue could not deliver.
    pub dead_letter_queue: String,
    /// Tasks, for workers.
    pub task_queue: String,
    /// Tasks that were delivered too often.
    pub task_dead_letter_queue: String,
    /// Runs that can go on, for runners.
    pub run_queue: String,
    /// The rule that carries events from the bus to the ingest queue.
    pub save_rule: String,
    /// The bucket for overflow; on AWS the account id is part of it.
    pub payload_bucket: String,
    /// The SSM parameter that names the bucket.
    pub payload_bucket_parameter: String,
    /// The SSM parameter that lists the drainers.
    pub drainers_parameter: String,
    /// The SSM SecureString with Slack's webhook.
    pub slack_webhook_parameter: String,
}

impl Names {
    /// The names that the stage gives.
    pub fn of_stage(stage: &str) -> Self {
        Self {
            stage: stage.to_owned(),
            events_table: format!("events-{stage}"),
            control_table: format!("control-{stage}"),
            bus: format!("ledgerline-{stage}"),
            ingest_queue: format!("{stage}-ingest"),
            dead_letter_queue: format!("{stage}-eventbridge-target-dlq"),
            task_queue: format!("{stage}-tasks"),
            task_dead_letter_queue: format!("{stage}-tasks-dlq"),
            run_queue: format!("{stage}-runs"),
            save_rule: format!("{stage}-save-event-to-dynamo"),
            payload_bucket: format!("ledgerline-{stage}-payloads"),
            payload_bucket_parameter: format!("/ledgerline/{stage}/payload-bucket"),
            drainers_parameter: format!("/ledgerline/{stage}/drainers"),
            slack_webhook_parameter: format!("/ledgerline/{stage}/slack-webhook-url"),
        }
    }
}
