//! Late arrivals: events that were saved behind the watermark of a drainer. After a pass has read the time line, it reads the
//! pointers that savers put to these events.

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use ledgerline_event::{Millis, Name};
use ledgerline_ledger::TimelineEvent;
use ledgerline_store::{LatePointer, LatePointerPage, StoreError, keys::ControlKey};
use tokio::time::Instant;

use crate::{
    Drained, Drains, SETTLE_MS,
    drain::{PAGE, PassEnd},
    event_handler::Handled,
    lease::Lease,
    open_blocks::OpenBlocks,
};
use ledgerline_outbox::ComponentError;

/// So many events of pointers are read at the same time.
const MAX_CONCURRENT_READS: usize = 16;

impl Drains {
    /// Handles the late arrivals that lie after the drainer's cursor of late arrivals.
    pub(crate) async fn late_arrivals(
        &self,
        lease: &mut Lease,
        blocks: &OpenBlocks<'_>,
        deadline: Option<Instant>,
        end: &mut PassEnd,
        (drained, alerts): (&mut Drained, &mut Vec<ControlKey>),
    ) -> Result<(), ComponentError> {
        let mut position = lease.state.late_cursor.clone();
        loop {
            let LatePointerPage { pointers, more } =
                self.late_arrivals.pointers_after(&lease.tenant, &position, PAGE).await?;
            let Some(last) = pointers.last() else { return Ok(()) };
            position = last.key.clone();
            // What lies after the cursor will be read there.
            let cursor = end.progress.cursor.as_ref().unwrap_or(&lease.state.cursor).clone();
            let tenant = &lease.tenant;
            let fetches: Vec<_> = pointers
                .iter()
                .enumerate()
                .filter(|(_, pointer)| pointer.event_sk <= cursor && pointer.event_sk > lease.state.beginning)
                .map(|(index, pointer)| self.fetch(tenant, index, pointer).boxed())
                .collect();
            let places: Vec<Option<(usize, TimelineEvent)>> =
                stream::iter(fetches).buffered(MAX_CONCURRENT_READS).try_collect().await?;
            let (indices, places): (Vec<usize>, Vec<TimelineEvent>) = places.into_iter().flatten().unzip();
            let handled = self
                .handle_page(lease, blocks, &places, |_| false, deadline, (&mut *drained, &mut *alerts))
                .await?;
            let Some(Handled { finished, stop }) = handled else {
                end.lost = true;
                return Ok(());
            };
            drained.processed += u64::try_from(finished).unwrap_or(0);
            let finished = indices.get(finished).copied().unwrap_or(pointers.len());
            for (index, pointer) in pointers[..finished].iter().enumerate() {
                if pointer.stamp <= lease.watermarks.late_arrivals {
                    end.progress.late_cursor = Some(pointer.key.clone());
                    end.progress.processed += u64::from(indices.contains(&index));
                } else {
                    end.again_at = end.again_at.or(Some(self.emitter.now().plus(SETTLE_MS)));
                }
            }
            if !(end.may_read_on(stop, deadline.filter(|_| more), self.emitter.now())? && more) {
                return Ok(());
            }
        }
    }

    /// The stamp of the first pointer after a cursor of late arrivals.
    pub(crate) async fn oldest_pointer(
        &self,
        tenant: &Name,
        after: &str,
    ) -> Result<Option<Millis>, StoreError> {
        let page = self.late_arrivals.pointers_after(tenant, after, 1).await?;
        Ok(page.pointers.first().map(|pointer| pointer.stamp))
    }

    /// The event of a pointer, unless it has expired.
    async fn fetch(
        &self,
        tenant: &Name,
        index: usize,
        pointer: &LatePointer,
    ) -> Result<Option<(usize, TimelineEvent)>, StoreError> {
        let event = self.timeline.stored_at(tenant, &pointer.event_sk).await?;
        Ok(event.map(|event| (index, TimelineEvent { sk: pointer.event_sk.clone(), event })))
    }
}
