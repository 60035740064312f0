//! One visit of a drainer to a tenant: it acquires the lease, reads the time line and the late arrivals in passes until no
//! wake-up has come during a pass, and releases the lease.
//!
//! A pass announces its watermarks before it reads: in the write that acquires the lease, or, for a further pass, in the
//! write that ended the previous one. It moves the cursor no further than the watermark. So an event that this pass does not
//! read either lies after the watermark, or its saver sees the watermark and puts a pointer among the late arrivals.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use ledgerline_event::{Millis, Name};
use ledgerline_ledger::TimelineEvent;
use ledgerline_store::{Halted, HolderWoken, LeaseWrite, Progress, keys::ControlKey};
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    Drains, JOBS_DRAINER, Page, PageHandled, PageStop, SETTLE_MS, Triggered,
    event_handler::{EventHandler, Handled, Made, Stop},
    lease::{Acquired, Lease, ThenLease, Written},
    open_blocks::{BlockError, OpenBlocks},
    recently_handled::Memory,
};
use ledgerline_outbox::ComponentError;

/// Events, or pointers, of one read.
pub(crate) const PAGE: i32 = 500;
/// A lease is renewed this often while events are handled.
const RENEW_INTERVAL: Duration = Duration::from_secs(15);

/// What a visit did.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drained {
    /// Events that were handled.
    pub processed: u64,
    /// What was started.
    pub triggered: Vec<Triggered>,
    /// Another process holds the lease, and was woken to look again.
    pub skipped_due_to_lock: bool,
    /// The event at which the drain is halted, or the oldest whose start waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub halted_on_event_id: Option<Name>,
    /// When the drainer has to visit the tenant again; `None` if everything is settled.
    #[serde(skip)]
    pub again_at: Option<Millis>,
    /// The fence that the visit had.
    #[serde(skip)]
    pub(crate) fence: u64,
    /// Whether the deadline ended it.
    #[serde(skip)]
    pub(crate) out_of_time: bool,
    /// Alerts that it claimed, for a sweep to send.
    #[serde(skip)]
    pub(crate) alerts: Vec<ControlKey>,
}

/// How a pass ended. What it achieved since its last write is in `progress`.
pub(crate) struct PassEnd {
    pub(crate) progress: Progress,
    /// So many starts of the visit are counted in the drain state already.
    counted: usize,
    pub(crate) again_at: Option<Millis>,
    trouble: Option<ComponentError>,
    pub(crate) lost: bool,
    out_of_time: bool,
}

impl Drains {
    /// Drains what there is for one tenant, until it is caught up or `deadline` is near. A sweep sends the alerts that it
    /// claims.
    pub async fn drain(
        &self,
        tenant: &Name,
        drainer: &Name,
        deadline: Option<Instant>,
    ) -> Result<Drained, ComponentError> {
        self.drain_noting_lease(tenant, drainer, deadline, &AtomicBool::new(false)).await
    }

    /// The same, and sets `has_lease` once the drainer has acquired its lease.
    pub(crate) async fn drain_noting_lease(
        &self,
        tenant: &Name,
        drainer: &Name,
        deadline: Option<Instant>,
        has_lease: &AtomicBool,
    ) -> Result<Drained, ComponentError> {
        let owner = self.emitter.new_event_id();
        let mut drained = Drained::default();
        let mut lease = loop {
            match self.leases.acquire(tenant, drainer, &owner, self.emitter.now()).await? {
                Acquired::Held(lease) => break *lease,
                // Built in: it begins with the tenant's first event.
                Acquired::NoState if drainer.as_str() == JOBS_DRAINER => {
                    self.states.create(tenant, drainer, self.emitter.now()).await?;
                }
                Acquired::NoState => return Ok(drained),
                Acquired::Contended { fence } => {
                    // The mark first: if the holder is dead, a sweep comes when its lease is over.
                    let marked = self.marks.mark_dirty(tenant, drainer, fence).await;
                    if self.states.wake_holder(tenant, drainer).await? == HolderWoken::Woken {
                        if marked.is_err() {
                            self.marks.mark_with_retries(tenant, drainer, fence).await?;
                        }
                        return Ok(Drained { skipped_due_to_lock: true, ..drained });
                    }
                }
            }
        };
        has_lease.store(true, Ordering::Relaxed);
        drained.fence = lease.state.fence;
        let mut alerts = Vec::new();
        let ended = self.passes(&mut lease, deadline, &mut drained, &mut alerts).await;
        drained.alerts = alerts;
        self.metrics.count(
            self.emitter.now(),
            &[
                ("Drained", usize::try_from(drained.processed).unwrap_or(usize::MAX)),
                ("Started", drained.triggered.len()),
            ],
        );
        ended.map(|()| drained)
    }

    async fn passes(
        &self,
        lease: &mut Lease,
        deadline: Option<Instant>,
        drained: &mut Drained,
        alerts: &mut Vec<ControlKey>,
    ) -> Result<(), ComponentError> {
        loop {
            let end = Box::pin(self.pass(lease, deadline, drained, alerts)).await;
            drained.halted_on_event_id = end.progress.shown().map(|halted| halted.event_id.clone());
            drained.again_at = end.again_at;
            if end.lost {
                // The process that holds the lease now goes on from what was written. A mark stays until that
                // process is done.
                drained.again_at = Some(self.emitter.now().plus(SETTLE_MS));
                return Ok(());
            }
            drained.out_of_time |= end.out_of_time;
            let mut unmarked = false;
            if end.again_at.is_some() {
                unmarked |=
                    self.marks.mark_dirty(&lease.tenant, &lease.drainer, lease.state.fence).await.is_err();
            }
            loop {
                match self.leases.write(lease, &end.progress, ThenLease::Release, self.emitter.now()).await? {
                    Written::Done => {
                        // Without a mark only the caller can come back, so it gets the error. The lease is
                        // released already.
                        if unmarked {
                            let fence = lease.state.fence;
                            self.marks.mark_with_retries(&lease.tenant, &lease.drainer, fence).await?;
                        }
                        return end.trouble.map_or(Ok(()), Err);
                    }
                    Written::Lost => {
                        // Another process has the lease, or the answer to this very write was lost: then no process would
                        // come back to what is left.
                        if unmarked {
                            let fence = lease.state.fence;
                            self.marks.mark_with_retries(&lease.tenant, &lease.drainer, fence).await?;
                        }
                        drained.again_at = Some(self.emitter.now().plus(SETTLE_MS));
                        return Ok(());
                    }
                    Written::Woken { wake } if end.trouble.is_some() || passed(deadline) => {
                        // There is no time for one more pass: the mark says that something is left.
                        let marked =
                            self.marks.mark_dirty(&lease.tenant, &lease.drainer, lease.state.fence).await;
                        unmarked |= marked.is_err();
                        drained.out_of_time |= passed(deadline);
                        drained.again_at = Some(self.emitter.now());
                        lease.state.wake = wake;
                    }
                    Written::Woken { .. } => {
                        match self
                            .leases
                            .write(lease, &end.progress, ThenLease::AnnounceNextPass, self.emitter.now())
                            .await?
                        {
                            Written::Done => break,
                            Written::Woken { .. } | Written::Lost => {
                                drained.again_at = Some(self.emitter.now().plus(SETTLE_MS));
                                return Ok(());
                            }
                        }
                    }
                }
            }
        }
    }

    /// One pass over the time line and the late arrivals.
    async fn pass(
        &self,
        lease: &mut Lease,
        deadline: Option<Instant>,
        drained: &mut Drained,
        alerts: &mut Vec<ControlKey>,
    ) -> PassEnd {
        let mut end = PassEnd {
            progress: Progress::default(),
            counted: drained.triggered.len(),
            again_at: None,
            trouble: None,
            lost: false,
            out_of_time: false,
        };
        let mut memory = self.handled.take(lease);
        if let Err(error) = self.stages(lease, &mut memory, deadline, &mut end, drained, alerts).await {
            end.trouble = Some(error);
        }
        if let Some(trouble) = &end.trouble {
            tracing::error!(tenant = %lease.tenant, drainer = %lease.drainer, error = %trouble, "an error ended the pass");
            end.again_at = Some(self.emitter.now());
            end.progress.trouble = Some(trouble.to_string());
        }
        if !end.lost {
            let cursor = end.progress.cursor.as_ref().unwrap_or(&lease.state.cursor);
            self.handled.remember(lease, cursor, memory);
        }
        end
    }

    /// Tries the blocks first, then reads events: the starts that wait are older.
    async fn stages(
        &self,
        lease: &mut Lease,
        memory: &mut Memory,
        deadline: Option<Instant>,
        end: &mut PassEnd,
        drained: &mut Drained,
        alerts: &mut Vec<ControlKey>,
    ) -> Result<(), ComponentError> {
        let blocks = OpenBlocks::load(self, lease).await?;
        match blocks.migrate_halt(&lease.state).await {
            Ok(()) => {}
            Err(BlockError::Failed(error)) => return Err(error),
            Err(BlockError::LeaseLost) => {
                end.lost = true;
                return Ok(());
            }
        }
        let mut done = self.release_blocks(lease, &blocks, deadline, end, (drained, alerts)).await;
        if done.is_ok() && !end.lost {
            done = self.time_line(lease, &blocks, memory, deadline, end, (drained, alerts)).await;
        }
        if done.is_ok() && !end.lost {
            done = self.late_arrivals(lease, &blocks, deadline, end, (drained, alerts)).await;
        }
        if done.is_ok() && !end.lost {
            done = self.close_halts(lease, &blocks, end).await;
        }
        end.note(drained, &blocks);
        if let Some(at) = blocks.next_retry_at(self.emitter.now()) {
            end.again_at = Some(end.again_at.map_or(at, |sooner| sooner.min(at)));
        }
        done
    }

    /// Deletes the rows of starts at which the drain was halted, where nothing needs them any more.
    async fn close_halts(
        &self,
        lease: &Lease,
        blocks: &OpenBlocks<'_>,
        end: &mut PassEnd,
    ) -> Result<(), ComponentError> {
        if !blocks.halted_at().is_empty() {
            let matcher = self.matchers.matcher(lease).await?;
            let caught_up = end.progress.halted.is_none() && !end.out_of_time;
            let cursor = end.progress.cursor.as_ref().unwrap_or(&lease.state.cursor);
            end.progress.no_longer_halted_at = EventHandler::new(self, lease, &matcher, blocks)
                .close_halts(caught_up.then_some(cursor))
                .await?;
        }
        Ok(())
    }

    async fn release_blocks(
        &self,
        lease: &Lease,
        blocks: &OpenBlocks<'_>,
        deadline: Option<Instant>,
        end: &mut PassEnd,
        (drained, alerts): (&mut Drained, &mut Vec<ControlKey>),
    ) -> Result<(), ComponentError> {
        if blocks.open().is_empty() && blocks.requests.is_empty() {
            return Ok(());
        }
        let matcher = self.matchers.matcher(lease).await?;
        let handler = EventHandler::new(self, lease, &matcher, blocks);
        let released = self.with_lease_renewed(lease, Box::pin(handler.release(deadline))).await;
        std::mem::take(&mut *handler.made()).note(drained, alerts);
        match released {
            None | Some(Err(BlockError::LeaseLost)) => end.lost = true,
            Some(Err(BlockError::Failed(error))) => return Err(error),
            Some(Ok(true)) => {}
            Some(Ok(false)) => {
                end.again_at = Some(self.emitter.now());
                end.out_of_time = true;
            }
        }
        Ok(())
    }

    async fn time_line(
        &self,
        lease: &mut Lease,
        blocks: &OpenBlocks<'_>,
        memory: &mut Memory,
        deadline: Option<Instant>,
        end: &mut PassEnd,
        (drained, alerts): (&mut Drained, &mut Vec<ControlKey>),
    ) -> Result<(), ComponentError> {
        let mut position = lease.state.cursor.clone();
        loop {
            let (places, more) = self.timeline.after(&lease.tenant, &position, PAGE).await?;
            let Some(last) = places.last() else { return Ok(()) };
            position = last.sk.clone();
            let epochs = lease.state.epochs.clone();
            let finished_before = |sk: &str| memory.has(epochs.of(sk), sk);
            let handled = self
                .handle_page(lease, blocks, &places, finished_before, deadline, (&mut *drained, &mut *alerts))
                .await?;
            let Some(Handled { finished, stop }) = handled else {
                end.lost = true;
                return Ok(());
            };
            for place in &places[..finished] {
                let epoch = epochs.of(&place.sk);
                drained.processed += u64::from(!memory.has(epoch, &place.sk));
                if place.sk <= lease.watermarks.events {
                    end.progress.cursor = Some(place.sk.clone());
                    end.progress.last_event_id = Some(place.event.event_id.clone());
                    end.progress.processed += 1;
                } else {
                    memory.add(epoch, place.sk.clone());
                    end.again_at = Some(self.emitter.now().plus(SETTLE_MS));
                }
            }
            if !(end.may_read_on(stop, deadline.filter(|_| more), self.emitter.now())? && more) {
                return Ok(());
            }
            if end.progress.cursor.is_some() {
                end.note(drained, blocks);
                let written =
                    self.leases.write(lease, &end.progress, ThenLease::Renew, self.emitter.now()).await?;
                if written != Written::Done {
                    end.lost = true;
                    return Ok(());
                }
                end.progress = Progress::default();
                end.counted = drained.triggered.len();
            }
        }
    }

    /// Handles events as the drainer does it; `None` if the lease was lost.
    pub(crate) async fn handle_page(
        &self,
        lease: &Lease,
        blocks: &OpenBlocks<'_>,
        places: &[TimelineEvent],
        finished_before: impl Fn(&str) -> bool + Send + Sync,
        deadline: Option<Instant>,
        (drained, alerts): (&mut Drained, &mut Vec<ControlKey>),
    ) -> Result<Option<Handled>, ComponentError> {
        if lease.drainer.as_str() == JOBS_DRAINER {
            let work = Box::pin((self.job_events)(Page {
                tenant: &lease.tenant,
                events: places,
                finished_before: &finished_before,
                deadline,
            }));
            return Ok(self.with_lease_renewed(lease, work).await.map(Handled::from));
        }
        // Looked up for each page, so that a changed subscription or workflow type takes effect within a backlog.
        let matcher = self.matchers.matcher(lease).await?;
        let handler = EventHandler::new(self, lease, &matcher, blocks);
        let handled = self.with_lease_renewed(lease, handler.handle(places, finished_before, deadline)).await;
        std::mem::take(&mut *handler.made()).note(drained, alerts);
        Ok(handled.filter(|handled| !matches!(handled.stop, Some(Stop::LeaseLost))))
    }

    /// Runs `work` and renews the lease meanwhile; `None` if the lease was lost.
    async fn with_lease_renewed<T>(&self, lease: &Lease, work: impl Future<Output = T>) -> Option<T> {
        // At the same time as the work: a table that throttles the renewal does not hold up the work.
        let lost = async {
            loop {
                tokio::time::sleep(RENEW_INTERVAL).await;
                match self.leases.renew(lease, self.emitter.now()).await {
                    Ok(LeaseWrite::Done) => {}
                    Ok(LeaseWrite::Lost) => return,
                    // If the lease expires, claims keep starts from being made twice, and the fence protects the cursor.
                    Err(error) => tracing::warn!(%error, "could not renew the lease"),
                }
            }
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = lost => None,
        }
    }
}

impl Made {
    fn note(self, drained: &mut Drained, alerts: &mut Vec<ControlKey>) {
        drained.triggered.extend(self.triggered);
        alerts.extend(self.alerts);
    }
}

impl PassEnd {
    /// Updates what the next write says about starts and about what waits.
    fn note(&mut self, drained: &Drained, blocks: &OpenBlocks<'_>) {
        self.progress.started = u64::try_from(drained.triggered.len() - self.counted).unwrap_or(0);
        self.progress.blocked = blocks.oldest();
    }

    /// Whether the next page may be read.
    pub(crate) fn may_read_on(
        &mut self,
        stop: Option<Stop>,
        deadline: Option<Instant>,
        now: Millis,
    ) -> Result<bool, ComponentError> {
        match stop {
            Some(Stop::Trouble(error)) => return Err(error),
            // `handle_page` returns `None` for a lost lease, so this does not come up.
            Some(Stop::LeaseLost) => self.lost = true,
            Some(Stop::Halted(halted)) => self.halt(halted),
            Some(Stop::OutOfTime) => {
                self.again_at = Some(now);
                self.out_of_time = true;
            }
            None if passed(deadline) => {
                self.again_at = Some(now);
                self.out_of_time = true;
            }
            None => return Ok(true),
        }
        Ok(false)
    }

    fn halt(&mut self, halted: Halted) {
        self.again_at = Some(self.again_at.map_or(halted.until, |at| at.min(halted.until)));
        self.progress.halted.get_or_insert(halted);
    }
}

fn passed(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

impl From<PageHandled> for Handled {
    fn from(handled: PageHandled) -> Self {
        let stop = handled.stop.map(|stop| match stop {
            PageStop::OutOfTime => Stop::OutOfTime,
            PageStop::Trouble(error) => Stop::Trouble(error),
        });
        Self { finished: handled.finished, stop }
    }
}
