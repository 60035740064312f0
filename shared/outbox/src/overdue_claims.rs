//! The sweep of claims that no process finished in time.

use std::{collections::HashSet, time::Duration};

use futures::{FutureExt, StreamExt, stream};
use ledgerline_store::{
    keys::{self, ControlKey},
    sweep_cursor::{Part, SweepCursor, parts},
};
use tokio::time::{Instant, timeout_at};

use crate::{ComponentError, Outbox, Resumed};

/// Claims of one read.
const PAGE: i32 = 50;
/// So many of them are resumed at the same time: one whose service does not answer holds up few others.
const MAX_CONCURRENT: usize = 8;
/// To resume a claim may take this long, even past the deadline.
const MIN_TIMEOUT: Duration = Duration::from_secs(2);

impl Outbox {
    /// Resumes overdue claims until `deadline`; the next sweep goes on where this one stopped. It resumes at least a few,
    /// even if the deadline has passed. Returns how many were pending.
    pub async fn resume_overdue(&self, deadline: Instant) -> Result<usize, ComponentError> {
        let mut stored = self.sweeps.cursor(&keys::sweep_record("CLAIMS")).await?;
        let (mut resumed, mut trouble) = (0, None);
        for (number, part) in parts(stored, self.emitter.now()).into_iter().enumerate() {
            let stopped = match number > 0 && Instant::now() >= deadline {
                true => Some(SweepCursor { shard: part.shard, due_at: part.from }),
                false => match self.resume_part(part, deadline, &mut resumed, &mut stored).await {
                    Ok(stopped) => stopped,
                    // If one shard cannot be read, the others still have their turn.
                    Err(error) => {
                        tracing::error!(shard = part.shard, %error, "could not sweep a shard of claims");
                        trouble = Some(error);
                        None
                    }
                },
            };
            if let Some(cursor) = stopped {
                self.store_cursor(&mut stored, Some(cursor)).await?;
                return trouble.map_or(Ok(resumed), Err);
            }
        }
        self.store_cursor(&mut stored, None).await?;
        trouble.map_or(Ok(resumed), Err)
    }

    /// Resumes the claims of a part. Returns where it stopped; `None` if there was time for all of it.
    async fn resume_part(
        &self,
        part: Part,
        deadline: Instant,
        resumed: &mut usize,
        stored: &mut Option<SweepCursor>,
    ) -> Result<Option<SweepCursor>, ComponentError> {
        let shard = keys::due_shard(part.shard);
        let mut from = part.from;
        let mut seen: HashSet<ControlKey> = HashSet::new();
        loop {
            // What is resumed leaves the index, and what failed is postponed: the next page holds others.
            let limit = PAGE.saturating_add(i32::try_from(seen.len()).unwrap_or(0));
            let page = self.claims.due_between(&shard, from, part.until, limit).await?;
            let is_last = page.len() < usize::try_from(limit).unwrap_or(usize::MAX);
            let end = page.last().map_or(part.until, |(_, at)| *at);
            let new = page.iter().map(|(key, _)| key).filter(|key| !seen.contains(*key));
            let new: Vec<ControlKey> = new.cloned().collect();
            let any = !new.is_empty();
            let begun = *resumed;
            let work: Vec<_> = new
                .into_iter()
                .enumerate()
                .map(|(position, key)| {
                    let in_time = async move {
                        let has_time = Instant::now() < deadline || (begun == 0 && position < MAX_CONCURRENT);
                        if has_time { Some(self.resume_in_time(&key, deadline).await) } else { None }
                    };
                    in_time.boxed()
                })
                .collect();
            let done: Vec<Option<bool>> = stream::iter(work).buffer_unordered(MAX_CONCURRENT).collect().await;
            *resumed += done.iter().filter(|was_pending| **was_pending == Some(true)).count();
            if done.contains(&None) {
                // The others are finished or postponed, so the next sweep begins with these.
                return Ok(Some(SweepCursor { shard: part.shard, due_at: from }));
            }
            if is_last || !any {
                return Ok(None);
            }
            let cursor = SweepCursor { shard: part.shard, due_at: end };
            if Instant::now() >= deadline {
                return Ok(Some(cursor));
            }
            if end > from {
                seen.clear();
            }
            // Many may be due at the same millisecond, and a page ends anywhere.
            seen.extend(page.into_iter().filter(|(_, at)| *at == end).map(|(key, _)| key));
            if end > from {
                from = end;
                // A sweep that is killed at this page does not begin with it again.
                self.store_cursor(stored, Some(cursor)).await?;
            }
        }
    }

    /// Resumes a claim within a time, so that a service that does not answer does not hold up the sweep. Returns whether the
    /// claim was pending and is done.
    async fn resume_in_time(&self, key: &ControlKey, deadline: Instant) -> bool {
        let given_up_at = deadline.max(Instant::now() + MIN_TIMEOUT);
        timeout_at(given_up_at, self.resume_one(key)).await.unwrap_or_else(|_| {
            tracing::error!(claim = key.pk, "timed out resuming a claim");
            false
        })
    }

    /// Resumes a claim, or postpones it if that fails, so that the sweep comes to the others.
    async fn resume_one(&self, key: &ControlKey) -> bool {
        match self.resume(key).await {
            Ok(resumed) => resumed == Resumed::Executed,
            Err(error) => {
                tracing::error!(claim = key.pk, %error, "could not resume a claim; it is postponed");
                if let Err(error) = self.postpone(key).await {
                    tracing::error!(claim = key.pk, %error, "could not postpone a claim");
                }
                false
            }
        }
    }

    async fn store_cursor(
        &self,
        stored: &mut Option<SweepCursor>,
        cursor: Option<SweepCursor>,
    ) -> Result<(), ComponentError> {
        if *stored == cursor {
            return Ok(());
        }
        self.sweeps.set_cursor(&keys::sweep_record("CLAIMS"), cursor).await?;
        *stored = cursor;
        Ok(())
    }
}
