//! What the tests of tasks and jobs stand on: a ledger whose `jobs` drainer is called by hand, and a worker that does what
//! the test says.

use std::time::Duration;

use ledgerline_embedded::{Receive, Received};
use ledgerline_event::Name;
use ledgerline_jobs::{
    Acquisition, JobDetails, JobSubmission, TaskEnd, TaskLease, TaskMessage, TaskSubmission,
};
use ledgerline_ledger::Emitter;
use serde_json::{Value, json};

use crate::{Ledger, name};

/// How long a worker of these tests hides a message.
pub const EXTENSION: Duration = Duration::from_secs(60);

/// A task in a worker's hand.
pub struct Held {
    /// The lease.
    pub lease: TaskLease,
    /// The message of the task.
    pub received: Received,
}

impl Ledger {
    /// Emits for a tenant.
    pub fn emitter(&self, tenant: &str) -> Emitter {
        let clock = self.clock();
        Emitter::with_clock(&self.store.clients, &self.store.names, name(tenant), name("shop"), clock)
    }

    /// Submits a job, and answers its id.
    pub async fn submit_job(&self, tenant: &str, job_id: &str, tasks: Value) -> Name {
        let job: JobSubmission = serde_json::from_value(json!({ "jobId": job_id, "tasks": tasks })).unwrap();
        self.stage.jobs.submit_job(&self.emitter(tenant), job).await.unwrap().job_id
    }

    /// Submits a task, and answers its id.
    pub async fn submit_task(&self, tenant: &str, task: Value) -> Name {
        let task: TaskSubmission = serde_json::from_value(task).unwrap();
        self.stage.tasks.submit_task(&self.emitter(tenant), task).await.unwrap().request_id
    }

    /// Saves what is on the bus and lets `jobs` see it, until there is nothing more to see.
    pub async fn settle(&self, tenant: &str) {
        loop {
            self.advance(7);
            let delivered = self.deliver().await;
            self.stage.drains.drain(&name(tenant), &name("jobs"), None).await.unwrap();
            if delivered == 0 {
                return;
            }
        }
    }

    /// The next message on the task queue.
    pub fn next_message(&self) -> Option<Received> {
        let receive = Receive { max: 1, wait: None, visibility_seconds: None };
        let queues = self.store.embedded.queues();
        queues.receive_now(&self.store.names.task_queue, &receive).unwrap().pop()
    }

    /// Deletes a message of the task queue.
    pub fn delete(&self, received: &Received) {
        self.store.embedded.queues().delete(&self.store.names.task_queue, &received.receipt).unwrap();
    }

    /// Takes a task's lease, or answers why there is none.
    pub async fn take(&self, received: Received, worker: &str) -> Result<Held, Acquisition> {
        let message = TaskMessage::parse(&received.body).unwrap();
        let attempts = message.max_attempts.unwrap_or(3);
        match self.stage.tasks.acquire(&message, &received.body, worker, EXTENSION, attempts).await.unwrap() {
            Acquisition::Acquired(lease) => Ok(Held { lease: *lease, received }),
            other => Err(other),
        }
    }

    /// Takes every task that waits.
    pub async fn take_all(&self) -> Vec<Held> {
        let mut held = Vec::new();
        while let Some(received) = self.next_message() {
            self.delete(&received);
            if let Ok(task) = self.take(received, "worker-1").await {
                held.push(task);
            }
        }
        held.sort_by(|a, b| a.lease.message.request_id.cmp(&b.lease.message.request_id));
        held
    }

    /// Ends a task with an output.
    pub async fn complete(&self, held: &Held, output: Value) {
        self.advance(1);
        let end = TaskEnd::Completed { output, duration_ms: 5, exit_code: 0, usage: None };
        self.stage.tasks.end(&held.lease, end).await.unwrap();
    }

    /// Ends a task for good.
    pub async fn fail(&self, held: &Held) {
        self.advance(1);
        let category = ledgerline_event::catalogue::ErrorCategory::Auth;
        let end = TaskEnd::Failed { error: "no key".into(), category };
        self.stage.tasks.end(&held.lease, end).await.unwrap();
    }

    /// A job as the API shows it.
    pub async fn job(&self, tenant: &str, job_id: &str) -> JobDetails {
        self.stage.jobs.job(&name(tenant), job_id).await.unwrap()
    }

    /// Completes tasks until none is left; returns their request ids in order.
    pub async fn work_off(&self, tenant: &str) -> Vec<String> {
        let mut done = Vec::new();
        loop {
            self.settle(tenant).await;
            let held = self.take_all().await;
            if held.is_empty() {
                return done;
            }
            for task in held {
                let id = task.lease.message.request_id.to_string();
                self.complete(&task, json!({ "of": id })).await;
                done.push(id);
            }
        }
    }
}

/// The five tasks of examples/job.yaml: a diamond, and one task beside it.
pub fn diamond() -> Value {
    json!([
        {"taskId": "task-A", "name": "scrape-store", "input": {"storeId": "store-123"}},
        {"taskId": "task-B", "name": "analyze-competitors", "input": {"market": "fashion"}},
        {"taskId": "task-C", "name": "color-tags", "dependsOn": ["task-A"], "input": {"style": "modern"}},
        {"taskId": "task-D", "name": "font-pairing", "dependsOn": ["task-A"]},
        {"taskId": "task-E", "name": "compile-result", "dependsOn": ["task-C", "task-D"]},
    ])
}
