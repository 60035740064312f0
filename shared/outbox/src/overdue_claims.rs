//! The sweep of claims that no process finished in time.

use std::{collections::HashSet, time::Duration};

use futures::{FutureExt, StreamExt, stream};
use ledgerline_store::{
    keys::{self, ControlKey},
    sweep_shards::{Part, Place, parts},
};
use tokio::time::{Instant, timeout_at};

use crate::{ComponentError, Outbox, Resumed};

/// Claims that are read at once…
const PAGE: i32 = 50;
/// …and resumed side by side: one whose service does not answer holds up few others.
const AT_ONCE: usize = 8;
/// A claim that is resumed has this long, whatever the deadline is.
const LEAST: Duration = Duration::from_secs(2);

impl Outbox {
    /// Resumes overdue claims until `deadline`; the next sweep goes on where this one stopped. Whatever the deadline is,
    /// some are resumed. Answers how many were pending.
    pub async fn resume_overdue(&self, deadline: Instant) -> Result<usize, ComponentError> {
        let mut stored = self.sweeps.place(&keys::sweep_place("CLAIMS")).await?;
        let (mut resumed, mut trouble) = (0, None);
        for (number, part) in parts(stored, self.emitter.now()).into_iter().enumerate() {
            let stopped = match number > 0 && Instant::now() >= deadline {
                true => Some(Place { shard: part.shard, due_at: part.from }),
                false => match self.resume_part(part, deadline, &mut resumed, &mut stored).await {
                    Ok(stopped) => stopped,
                    // One shard that cannot be read does not keep the others from their turn.
                    Err(error) => {
                        tracing::error!(shard = part.shard, %error, "a part of the claims was not swept");
                        trouble = Some(error);
                        None
                    }
                },
            };
            if let Some(place) = stopped {
                self.note_claims_place(&mut stored, Some(place)).await?;
                return trouble.map_or(Ok(resumed), Err);
            }
        }
        self.note_claims_place(&mut stored, None).await?;
        trouble.map_or(Ok(resumed), Err)
    }

    /// Resumes the claims of a part. Answers where it stopped if there was no time for all of it.
    async fn resume_part(
        &self,
        part: Part,
        deadline: Instant,
        resumed: &mut usize,
        stored: &mut Option<Place>,
    ) -> Result<Option<Place>, ComponentError> {
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
                        let has_time = Instant::now() < deadline || (begun == 0 && position < AT_ONCE);
                        if has_time { Some(self.resume_in_time(&key, deadline).await) } else { None }
                    };
                    in_time.boxed()
                })
                .collect();
            let done: Vec<Option<bool>> = stream::iter(work).buffer_unordered(AT_ONCE).collect().await;
            *resumed += done.iter().filter(|was_pending| **was_pending == Some(true)).count();
            if done.contains(&None) {
                // The others are finished or postponed, so the next sweep begins with these.
                return Ok(Some(Place { shard: part.shard, due_at: from }));
            }
            if is_last || !any {
                return Ok(None);
            }
            let place = Place { shard: part.shard, due_at: end };
            if Instant::now() >= deadline {
                return Ok(Some(place));
            }
            if end > from {
                seen.clear();
            }
            // Many may be due at the same millisecond, and a page ends anywhere.
            seen.extend(page.into_iter().filter(|(_, at)| *at == end).map(|(key, _)| key));
            if end > from {
                from = end;
                // A sweep that is killed at this page does not begin with it again.
                self.note_claims_place(stored, Some(place)).await?;
            }
        }
    }

    /// A claim whose services do not answer keeps the sweep from nothing that comes after it.
    async fn resume_in_time(&self, key: &ControlKey, deadline: Instant) -> bool {
        let given_up_at = deadline.max(Instant::now() + LEAST);
        timeout_at(given_up_at, self.resume_one(key)).await.unwrap_or_else(|_| {
            tracing::error!(claim = key.pk, "a claim is still pending; there was no time to finish it");
            false
        })
    }

    /// One that cannot be finished now does not keep the others from it.
    async fn resume_one(&self, key: &ControlKey) -> bool {
        match self.resume(key).await {
            Ok(resumed) => resumed == Resumed::Executed,
            Err(error) => {
                tracing::error!(claim = key.pk, %error, "a claim is still pending");
                if let Err(error) = self.postpone(key).await {
                    tracing::error!(claim = key.pk, %error, "a claim could not be postponed");
                }
                false
            }
        }
    }

    async fn note_claims_place(
        &self,
        stored: &mut Option<Place>,
        place: Option<Place>,
    ) -> Result<(), ComponentError> {
        if *stored == place {
            return Ok(());
        }
        self.sweeps.set_place(&keys::sweep_place("CLAIMS"), place).await?;
        *stored = place;
        Ok(())
    }
}
