//! What AWS drops with time, and tasks that outlast it: messages after fourteen days, rows after their `ttl`.

use ledgerline_embedded::Receive;
use ledgerline_event::{catalogue::TaskProcessingStarted, validate};
use ledgerline_jobs::Thresholds;
use ledgerline_ledger::Saver;
use ledgerline_store::keys;
use serde_json::Value;

use crate::{Held, Item, Ledger, name, scan};

impl Ledger {
    /// How many tasks a health check enqueues again.
    pub async fn enqueued_again(&self) -> usize {
        self.stage.health.check_health(&Thresholds::default()).await.unwrap().enqueued_again
    }

    /// What SQS does after 14 days.
    pub fn messages_are_lost(&self) -> usize {
        let mut lost = 0;
        while let Some(received) = self.next_message() {
            self.delete(&received);
            lost += 1;
        }
        lost
    }

    /// Tells the ledger that a worker has begun a task.
    pub async fn tell_started(&self, held: &Held) {
        let request_id = &held.lease.message.request_id;
        let started = TaskProcessingStarted {
            request_id: request_id.to_string(),
            job_id: held.lease.message.job_id.as_ref().map(ToString::to_string),
            effective_until: held.lease.until.seconds(),
            worker_id: held.lease.worker_id.clone(),
            process_id: 7,
        };
        let emitter = self.stage.tasks.task_emitter(&held.lease);
        emitter.catalogued(request_id.as_str(), started).emit().await.unwrap();
    }

    /// Saves what is on the bus for so many days, and lets `jobs` see it.
    pub async fn settle_keeping(&self, days: u64) {
        let (store, queue) = (&self.store, &self.store.names.ingest_queue);
        let saver =
            Saver::new(store.clients.dynamo.clone(), &store.names.events_table, store.control(), days);
        loop {
            self.advance(7);
            let receive = Receive { max: 10, wait: None, visibility_seconds: None };
            let messages = store.embedded.queues().receive_now(queue, &receive).unwrap();
            for message in &messages {
                let body: Value = serde_json::from_str(&message.body).unwrap();
                let admitted = validate(&body["detail"].to_string(), self.now()).unwrap();
                saver.save(&[admitted], self.now()).await.pop().unwrap().unwrap();
                store.embedded.queues().delete(queue, &message.receipt).unwrap();
            }
            self.stage.drains.drain(&name("t"), &name("jobs"), None).await.unwrap();
            if messages.is_empty() {
                return;
            }
        }
    }

    /// What DynamoDB does with rows whose time is over.
    pub async fn rows_expire(&self) {
        let (clients, names) = (&self.store.clients, &self.store.names);
        for table in [&names.control_table, &names.events_table] {
            for row in scan(clients, table).await {
                let ttl = row.get("ttl").and_then(|ttl| ttl.as_n().ok()?.parse::<u64>().ok());
                if ttl.is_some_and(|ttl| ttl <= self.now().seconds().get()) {
                    let delete = clients.dynamo.delete_item().table_name(table);
                    delete.key("PK", row["PK"].clone()).key("SK", row["SK"].clone()).send().await.unwrap();
                }
            }
        }
    }

    /// The rows of a task, each with its sort key.
    pub async fn rows_of_task(&self, id: &str) -> Vec<(String, Item)> {
        let rows = scan(&self.store.clients, &self.store.names.control_table).await;
        let rows = rows.into_iter().filter(|row| row["PK"].as_s().unwrap() == &keys::task("t", id));
        rows.map(|row| (row["SK"].as_s().unwrap().clone(), row)).collect()
    }
}
