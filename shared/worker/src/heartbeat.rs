//! A heartbeat of a running task: the worker hides the message for longer, renews the lease, and emits `Task Heartbeat`.

use std::time::Duration;

use ledgerline_event::catalogue::{MemoryUsage, TaskHeartbeat};
use ledgerline_jobs::TaskLease;

use super::{Worker, attempt_result::millis, process_group, task_files::TaskFiles, task_queue::Delivery};

/// What the worker knows of the process when it sends a heartbeat.
#[derive(Clone, Copy)]
pub(super) struct Heartbeat {
    pub(super) number: u32,
    /// Since the process started.
    pub(super) elapsed: Duration,
    pub(super) pid: u32,
}

impl Worker {
    /// Sends a heartbeat; `false` if this worker does not hold the lease any more.
    pub(super) async fn send_heartbeat(
        &self,
        lease: &mut TaskLease,
        delivery: &Delivery,
        files: &mut TaskFiles,
        heartbeat: Heartbeat,
    ) -> bool {
        let extension = self.config.visibility_extension();
        delivery.hide(extension).await;
        match self.tasks.renew(lease, extension).await {
            Ok(true) => {}
            Ok(false) => return false,
            // The next heartbeat renews the lease as well, unless another worker acquires the task before.
            Err(error) => {
                tracing::warn!(task = %lease.message.request_id, %error, "could not renew the lease")
            }
        }
        let resident = move || process_group::resident_bytes(heartbeat.pid);
        let rss = tokio::task::spawn_blocking(resident).await.unwrap_or_default();
        let event = TaskHeartbeat {
            request_id: lease.message.request_id.to_string(),
            effective_until: lease.until.seconds(),
            heartbeat_number: heartbeat.number,
            elapsed_ms: millis(heartbeat.elapsed),
            worker_id: lease.worker_id.clone(),
            process_id: heartbeat.pid,
            memory_usage: MemoryUsage { rss },
            last_activity: files.activity(),
        };
        let emitter = self.tasks.task_emitter(lease);
        if let Err(error) = emitter.catalogued(lease.message.request_id.as_str(), event).emit().await {
            tracing::warn!(task = %lease.message.request_id, %error, "could not emit a heartbeat");
        }
        true
    }
}
