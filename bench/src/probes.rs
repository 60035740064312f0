//! Events that are watched on their way through a running local mode: put on the bus by a plain
//! AWS client, saved, and started, which is when the message is received from the task queue.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::ensure;
use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use futures::FutureExt;
use ledgerline_embedded::{Call, Interceptor, Moment, Receive, Service, Verdict};
use ledgerline_event::{Event, Keyed, Name};
use ledgerline_ledger::{DETAIL_TYPE, Names, system_clock};
use ledgerline_local::Local;
use serde_json::Value;
use tokio::sync::Notify;

use crate::{backlog, spread::Spread, subscribers::MATCHED};

const LONG_POLL: Duration = Duration::from_secs(1);

/// When what happened to an event.
#[derive(Clone, Copy, Debug)]
struct Way {
    put: Instant,
    saved: Option<Instant>,
    started: Option<Instant>,
}

/// All events that are watched, and a count of the starts of all others.
#[derive(Clone, Default)]
pub(crate) struct Probes {
    seen: Arc<Mutex<Seen>>,
    news: Arc<Notify>,
}

#[derive(Default)]
struct Seen {
    ways: HashMap<String, Way>,
    others_started: usize,
}

impl Probes {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes when the row of an event is in the table: the saver is not answered yet.
    pub(crate) fn interceptor(&self, names: &Names) -> Interceptor {
        let (probes, table) = (self.clone(), names.events_table.clone());
        Arc::new(move |call: Call, moment| {
            let is_put = call.service == Service::DynamoDb && call.operation == "PutItem";
            if is_put && moment == (Moment::After { status: 200 }) {
                let now = Instant::now();
                let body: Value = serde_json::from_slice(&call.body).unwrap_or_default();
                if body["TableName"] == table.as_str()
                    && let Some(id) = body["Item"]["eventId"]["S"].as_str()
                    && let Some(way) = probes.seen().ways.get_mut(id)
                {
                    way.saved.get_or_insert(now);
                }
            }
            async { Verdict::Proceed }.boxed()
        })
    }

    /// Puts an event that starts something on the bus.
    pub(crate) async fn put(&self, local: &Local, tenant: &Name, number: usize) -> anyhow::Result<Name> {
        let event = backlog::event(tenant, number, system_clock()())?;
        let event = Event { event_type: Name::new("eventType", MATCHED)?, received_at: None, ..event };
        let detail = serde_json::to_string(&Keyed { keys: &event.keys(), event: &event })?;
        let entry = PutEventsRequestEntry::builder()
            .event_bus_name(&local.names.bus)
            .source("bench")
            .detail_type(DETAIL_TYPE)
            .detail(detail)
            .build();
        let way = Way { put: Instant::now(), saved: None, started: None };
        self.seen().ways.insert(event.event_id.to_string(), way);
        let answer = local.clients.events.put_events().entries(entry).send().await?;
        ensure!(answer.failed_entry_count() == 0, "the bus did not take an event");
        Ok(event.event_id)
    }

    /// Receives starts for as long as it is let.
    pub(crate) async fn receive(self, local: &Local) -> anyhow::Result<()> {
        let (queues, queue) = (local.embedded.queues(), &local.names.task_queue);
        loop {
            let how = Receive { max: 10, wait: Some(LONG_POLL), visibility_seconds: None };
            let messages = queues.receive(queue, how).await?;
            let now = Instant::now();
            for message in messages {
                let body: Value = serde_json::from_str(&message.body)?;
                let id = body["input"]["event"].as_str().unwrap_or_default();
                let mut seen = self.seen();
                match seen.ways.get_mut(id) {
                    Some(way) => drop(way.started.get_or_insert(now)),
                    None => seen.others_started += 1,
                }
                drop(seen);
                queues.delete(queue, &message.receipt)?;
            }
            self.news.notify_one();
        }
    }

    /// Waits until `reached` holds; looks whenever something was started.
    async fn until(&self, reached: impl Fn(&Seen) -> bool) {
        while !reached(&self.seen()) {
            self.news.notified().await;
        }
    }

    /// Waits until this event is started.
    pub(crate) async fn until_started(&self, id: &Name) {
        self.until(|seen| seen.ways.get(id.as_str()).is_some_and(|way| way.started.is_some())).await;
    }

    /// Waits until all watched events are started.
    pub(crate) async fn until_all_started(&self) {
        self.until(|seen| seen.ways.values().all(|way| way.started.is_some())).await;
    }

    /// Starts of events that are not watched.
    pub(crate) fn others_started(&self) -> usize {
        self.seen().others_started
    }

    /// Milliseconds of these events from the save, and from the put, to the start.
    pub(crate) fn times(&self, ids: &[Name]) -> Times {
        let seen = self.seen();
        let times = |from: fn(&Way) -> Option<Instant>| {
            let each =
                |way: &Way| Some(way.started?.saturating_duration_since(from(way)?).as_secs_f64() * 1e3);
            ids.iter().filter_map(|id| each(seen.ways.get(id.as_str())?)).collect()
        };
        Times { from_save: times(|way| way.saved), from_put: times(|way| Some(way.put)) }
    }
}

/// Milliseconds to the start.
pub(crate) struct Times {
    pub(crate) from_save: Spread,
    pub(crate) from_put: Spread,
}
