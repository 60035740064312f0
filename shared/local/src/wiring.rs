//! Queues, rules, event sources and schedules as data: local mode builds them, and a test compares them with
//! `template.yaml`.

use std::time::Duration;

use ledgerline_ledger::{DETAIL_TYPE, Names};

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct QueueWiring {
    pub name: String,
    pub visibility_seconds: u32,
    pub retention_seconds: Option<u32>,
    /// The dead-letter queue, and after how many receives a message goes there.
    pub redrive: Option<(String, u32)>,
}

/// A rule from the bus to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RuleWiring {
    pub name: String,
    pub detail_type: &'static str,
    pub target_id: String,
    pub target_queue: String,
}

/// A function that is called with the messages of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct EventSource {
    pub function: &'static str,
    pub queue: String,
    pub batch_size: usize,
    pub window_seconds: u64,
}

/// The wiring of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Wiring {
    /// Dead-letter queues before those that name them.
    pub queues: Vec<QueueWiring>,
    pub rules: Vec<RuleWiring>,
    pub sources: Vec<EventSource>,
    /// How often the dispatcher sweeps.
    pub sweep_every: Duration,
    /// How often running tasks are checked.
    pub health_every: Duration,
    /// How often the sweep of runs enqueues runs that are due.
    pub runs_every: Duration,
}

/// The wiring of the stage with these names.
pub fn wiring(names: &Names) -> Wiring {
    let dead_letters = names.dead_letter_queue.clone();
    Wiring {
        queues: vec![
            QueueWiring {
                name: dead_letters.clone(),
                visibility_seconds: 240,
                retention_seconds: Some(14 * 24 * 60 * 60),
                redrive: None,
            },
            QueueWiring {
                name: names.ingest_queue.clone(),
                visibility_seconds: 180,
                retention_seconds: None,
                redrive: Some((dead_letters.clone(), 5)),
            },
            QueueWiring {
                name: names.task_dead_letter_queue.clone(),
                visibility_seconds: 180,
                retention_seconds: Some(14 * 24 * 60 * 60),
                redrive: None,
            },
            QueueWiring {
                name: names.task_queue.clone(),
                visibility_seconds: 60,
                retention_seconds: Some(14 * 24 * 60 * 60),
                redrive: Some((names.task_dead_letter_queue.clone(), 1_000)),
            },
            QueueWiring {
                name: names.run_queue.clone(),
                visibility_seconds: 960,
                retention_seconds: Some(14 * 24 * 60 * 60),
                redrive: Some((dead_letters.clone(), 1_000)),
            },
        ],
        rules: vec![RuleWiring {
            name: names.save_rule.clone(),
            detail_type: DETAIL_TYPE,
            target_id: format!("{}-SaveEventToDynamo", names.stage),
            target_queue: names.ingest_queue.clone(),
        }],
        sources: vec![
            EventSource {
                function: "save-event-to-dynamo",
                queue: names.ingest_queue.clone(),
                batch_size: 10,
                window_seconds: 0,
            },
            EventSource {
                function: "eventbridge-dlq-alert",
                queue: dead_letters,
                batch_size: 100,
                window_seconds: 10,
            },
            EventSource {
                function: "task-dlq",
                queue: names.task_dead_letter_queue.clone(),
                batch_size: 10,
                window_seconds: 0,
            },
            EventSource {
                function: "runner",
                queue: names.run_queue.clone(),
                batch_size: 1,
                window_seconds: 0,
            },
        ],
        sweep_every: Duration::from_secs(2 * 60),
        health_every: Duration::from_secs(60),
        runs_every: Duration::from_secs(60),
    }
}
