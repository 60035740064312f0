//! Telling the ledger what the log says, beside the work: nothing waits for it but the end of the visit.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use ledgerline_dispatch::{Dispatch, DispatchError, LogEntry, RunRecord};
use ledgerline_event::{LogEvent, Name};

/// Events that go to the bus together.
const TOGETHER: usize = 10;
/// So many may wait for the end of the visit, or for a step that takes its time: while quick steps follow each other,
/// telling would only be in their way.
const PATIENCE: usize = 100;

pub(super) struct Telling<'a> {
    dispatch: &'a Dispatch,
    tenant: Name,
    run: RunRecord,
    /// What the ledger does not have yet, with the numbers of the entries.
    untold: VecDeque<(u64, LogEvent)>,
    /// What is on its way, and the last entry that is told whole with it.
    under_way: Option<(u64, BoxFuture<'a, Result<(), DispatchError>>)>,
    told: u64,
    trouble: Option<DispatchError>,
}

impl<'a> Telling<'a> {
    pub(super) fn new(dispatch: &'a Dispatch, tenant: Name, run: RunRecord) -> Self {
        let told = run.emitted();
        Self { dispatch, tenant, run, untold: VecDeque::new(), under_way: None, told, trouble: None }
    }

    /// The last entry of which the ledger has everything.
    pub(super) fn told(&self) -> u64 {
        self.told
    }

    /// Remembers what the ledger does not have; if that is much, some of it is sent.
    pub(super) fn note(&mut self, entries: &[LogEntry]) {
        let told = self.told;
        for entry in entries.iter().filter(|entry| entry.sequence > told) {
            self.untold.extend(entry.events.iter().map(|event| (entry.sequence, event.clone())));
        }
        if self.untold.len() >= PATIENCE {
            self.begin();
        }
    }

    /// Sends the next events, unless some are under way.
    pub(super) fn begin(&mut self) {
        if self.under_way.is_some() || self.trouble.is_some() {
            return;
        }
        let some = self.untold.len().min(TOGETHER);
        let Some((last, _)) = some.checked_sub(1).and_then(|last| self.untold.get(last)) else { return };
        // An entry counts once all of its events are sent.
        let whole = self.untold.get(some).is_none_or(|(next, _)| next > last);
        let told = if whole { *last } else { last - 1 };
        let events: Vec<LogEvent> = self.untold.drain(..some).map(|(_, event)| event).collect();
        let (dispatch, tenant, run) = (self.dispatch, self.tenant.clone(), self.run.clone());
        let sending = async move { dispatch.emit_log(&tenant, &run, &events).await };
        self.under_way = Some((told, Box::pin(sending)));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some((told, sending)) = &mut self.under_way else { return Poll::Ready(()) };
        let Poll::Ready(sent) = sending.as_mut().poll(cx) else { return Poll::Pending };
        match sent {
            Ok(()) => self.told = self.told.max(*told),
            Err(error) => self.trouble = Some(error),
        }
        self.under_way = None;
        Poll::Ready(())
    }

    /// Does `work`, and goes on telling meanwhile.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|cx| {
            // Once it has begun it goes on while there is enough for the next.
            let was_telling = self.under_way.is_some();
            while self.poll(cx).is_ready()
                && was_telling
                && self.untold.len() >= TOGETHER
                && self.trouble.is_none()
            {
                self.begin();
            }
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Tells everything that is left.
    pub(super) async fn finish(&mut self) -> Result<(), DispatchError> {
        loop {
            poll_fn(|cx| self.poll(cx)).await;
            if let Some(trouble) = self.trouble.take() {
                return Err(trouble);
            }
            if self.untold.is_empty() {
                return Ok(());
            }
            self.begin();
        }
    }
}
