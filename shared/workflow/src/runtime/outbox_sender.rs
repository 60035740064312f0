//! Emits the events of a run's log to the ledger while the visit works. Only the release of the run waits for it.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use ledgerline_event::{LogEvent, Name};
use ledgerline_outbox::ComponentError;
use ledgerline_runs::{LogEntry, RunRecord};
use ledgerline_stage::Stage;

/// How many events one request to the bus carries.
const BATCH: usize = 10;
/// How many events may wait for a slow step or the end of the visit. While quick steps follow each other, sending would
/// only delay them.
const PENDING_MAX: usize = 100;

/// The events of a log that the ledger does not have, and the request that carries some of them.
pub(super) struct OutboxSender<'a> {
    stage: &'a Stage,
    tenant: Name,
    run: RunRecord,
    /// The events that were not sent, with the sequence numbers of their entries.
    pending: VecDeque<(u64, LogEvent)>,
    /// The request that is being sent, and the last entry whose events are all sent once it succeeds.
    in_flight: Option<(u64, BoxFuture<'a, Result<(), ComponentError>>)>,
    sent: u64,
    error: Option<ComponentError>,
}

impl<'a> OutboxSender<'a> {
    pub(super) fn new(stage: &'a Stage, tenant: Name, run: RunRecord) -> Self {
        let sent = run.emitted();
        Self { stage, tenant, run, pending: VecDeque::new(), in_flight: None, sent, error: None }
    }

    /// The last entry whose events were all sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Adds the events of entries that were not sent; if many wait, begins to send.
    pub(super) fn add(&mut self, entries: &[LogEntry]) {
        let sent = self.sent;
        for entry in entries.iter().filter(|entry| entry.sequence > sent) {
            self.pending.extend(entry.events.iter().map(|event| (entry.sequence, event.clone())));
        }
        if self.pending.len() >= PENDING_MAX {
            self.begin();
        }
    }

    /// Begins to send the next events, unless a request is in flight.
    pub(super) fn begin(&mut self) {
        if self.in_flight.is_some() || self.error.is_some() {
            return;
        }
        let count = self.pending.len().min(BATCH);
        let Some((last, _)) = count.checked_sub(1).and_then(|last| self.pending.get(last)) else { return };
        // An entry counts once all of its events are sent.
        let whole = self.pending.get(count).is_none_or(|(next, _)| next > last);
        let sent = if whole { *last } else { last - 1 };
        let events: Vec<LogEvent> = self.pending.drain(..count).map(|(_, event)| event).collect();
        let (stage, tenant, run) = (self.stage, self.tenant.clone(), self.run.clone());
        let sending = async move { stage.runs.emit_log(&tenant, &run, &events).await };
        self.in_flight = Some((sent, Box::pin(sending)));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some((sent, sending)) = &mut self.in_flight else { return Poll::Ready(()) };
        let Poll::Ready(result) = sending.as_mut().poll(cx) else { return Poll::Pending };
        match result {
            Ok(()) => self.sent = self.sent.max(*sent),
            Err(error) => self.error = Some(error),
        }
        self.in_flight = None;
        Poll::Ready(())
    }

    /// Awaits `work`, and sends meanwhile.
    pub(super) async fn send_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|cx| {
            // Once it sends, it continues while there are enough events for a full request.
            let was_sending = self.in_flight.is_some();
            while self.poll(cx).is_ready()
                && was_sending
                && self.pending.len() >= BATCH
                && self.error.is_none()
            {
                self.begin();
            }
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Sends all events that are left.
    pub(super) async fn finish(&mut self) -> Result<(), ComponentError> {
        loop {
            poll_fn(|cx| self.poll(cx)).await;
            if let Some(error) = self.error.take() {
                return Err(error);
            }
            if self.pending.is_empty() {
                return Ok(());
            }
            self.begin();
        }
    }
}
