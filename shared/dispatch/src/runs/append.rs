//! Appending to a log: entry n + 1 if it is absent, with everything that its events bring about.

use aws_sdk_dynamodb::{error::SdkError, types::TransactWriteItem};
use ledgerline_event::{LogDraft, LogEvent, Name, RunEventType, RunState, WaitFor, WaitOutcome};
use ledgerline_ledger::{StoreError, control::keys};

use super::{
    LogEntry, RunLease, RunLog,
    ending::is_last,
    hook::token_key,
    log::{ENTRY_BYTES, json_size, stored_size},
    side_writes::{RunWrite, SideWrite, StateChange, ending_change, state_change},
};
use crate::{
    Dispatch, DispatchError,
    transaction::{Cancelled, Patience, built, busy, cancelled},
};

/// Writes of one transaction beside the entry and the run: it takes a hundred.
const SIDE_WRITES: usize = 90;
/// What these writes may hold: a transaction takes 4 MB, the entry included.
const SIDE_BYTES: usize = 2_500_000;

/// What became of an append.
#[derive(Debug)]
pub enum Appended {
    /// The events are in the log. They may be fewer than were asked for: one entry holds only so much.
    Done(LogEntry),
    /// Another process has appended meanwhile: catch up first.
    Behind,
    /// The token of this hook is taken by another.
    TokenTaken(Name),
    /// Another runner has the run.
    Lost,
    /// A guard of the caller does not hold: an event is consumed already, a sender has called the run, or the
    /// lease is lost.
    GuardRefused,
}

/// Whether one of the events ends a wait for a sent event by its timeout.
fn ends_without_event(log: &RunLog, events: &[LogEvent]) -> bool {
    events.iter().any(|event| {
        event.event_type == RunEventType::WaitCompleted
            && log.history.waits().get(&event.correlation_id).is_some_and(|wait| {
                wait.outcome == Some(WaitOutcome::Timeout) && matches!(wait.what, WaitFor::Event { .. })
            })
    })
}

/// What became of putting one entry.
pub(super) enum PutEntry {
    Done,
    /// Another entry is in its place.
    Taken,
    /// These of the other writes were refused, by their position.
    Refused(Vec<usize>),
}

impl Dispatch {
    /// Appends events to a log that is read up to its end. A runner passes the `lease` that it holds on the
    /// run. Without a lease the append wakes the run, so that a runner that holds it looks again before it
    /// releases it.
    ///
    /// With a lease, an entry that changes the log alone is put without a check of the lease: while a step is
    /// not over, another runner that holds the run by now cannot release it without an entry in the same
    /// place. An entry with other writes checks the lease: one runner may find a timer over that the holder
    /// does not, and if the holder releases the run until that time, no other runner may delete the timer.
    pub async fn append(
        &self,
        log: &mut RunLog,
        drafts: &[LogDraft],
        lease: Option<&RunLease>,
    ) -> Result<Appended, DispatchError> {
        self.append_with(log, drafts, lease, Vec::new()).await
    }

    /// The same on condition of `guards`, which are part of the transaction.
    pub(super) async fn append_with(
        &self,
        log: &mut RunLog,
        drafts: &[LogDraft],
        lease: Option<&RunLease>,
        guards: Vec<TransactWriteItem>,
    ) -> Result<Appended, DispatchError> {
        let (mut events, mut writes, mut change) = (Vec::new(), Vec::<SideWrite>::new(), None::<StateChange>);
        let (mut bytes, mut side_bytes) = (0, 0);
        for draft in drafts {
            bytes += stored_size(draft);
            if draft.event_type == RunEventType::WaitCreated {
                // Its criteria stand in a row of their own too.
                side_bytes += json_size(&draft.event_data);
            }
            let full = bytes > ENTRY_BYTES || side_bytes > SIDE_BYTES || writes.len() >= SIDE_WRITES;
            // The row of a token is written on a condition. A later event of the same hook, or a hook with
            // the same token, may need that row again: it goes into the next entry.
            let given_back =
                writes.iter().any(|write| write.token_of.as_ref() == Some(&draft.correlation_id));
            let token = token_key(&log.tenant, draft);
            let once_more = token.is_some_and(|token| writes.iter().any(|write| write.key == token));
            if !events.is_empty() && (full || given_back || once_more) {
                break;
            }
            let at = self.now().max(log.last_time);
            let event = draft.clone().at(self.new_event_id(), at);
            let retry_was_set =
                log.history.steps().get(&event.correlation_id).is_some_and(|step| step.retry_after.is_some());
            log.history.apply(&event).inspect_err(|_| log.astray |= !events.is_empty())?;
            log.last_time = at;
            if let Some(side) = self.side_writes(log, &event, retry_was_set)? {
                // A transaction writes a record once: the last write is what remains.
                match writes.iter_mut().find(|before| before.key == side.key) {
                    Some(before) => before.write = side.write,
                    None => writes.push(side),
                }
            }
            change = state_change(change, &event);
            events.push(event);
        }
        log.astray = true;
        let nonce = self.new_event_id();
        if let Some(last) =
            drafts.last().filter(|last| events.len() < drafts.len() && is_last(last.event_type))
        {
            let state = log.history.state().unwrap_or(RunState::Running);
            change = Some(ending_change(change, state, self.ending(last, &nonce).await?));
        }
        let sequence = log.sequence + 1;
        let hooks: Vec<Option<Name>> = writes.iter().map(|write| write.token_of.clone()).collect();
        // A sender that has called the run meanwhile is told that its event is accepted: the wait times out
        // only if there was no such call.
        let expected_wakes =
            lease.filter(|_| ends_without_event(log, &events)).map(|lease| lease.record.wakes);
        let run = match lease.is_some() && writes.is_empty() && change.is_none() && guards.is_empty() {
            true => None,
            false => {
                let run = RunWrite { change: change.as_ref(), external: log.external, lease, expected_wakes };
                Some(self.run_write(&log.tenant, &log.run_id, run)?)
            }
        };
        let demands = !guards.is_empty() || expected_wakes.is_some();
        let ends = change.is_some_and(|change| change.ends());
        let writes = writes.into_iter().map(|side| side.write).chain(run).chain(guards).collect();
        match self.put_entry(&log.tenant, &log.run_id, sequence, &nonce, &events, writes).await? {
            PutEntry::Done => {
                log.astray = false;
                log.sequence = sequence;
                if ends {
                    self.run_ends.ring(&log.tenant, &log.run_id);
                }
                Ok(Appended::Done(LogEntry { sequence, events }))
            }
            PutEntry::Taken => Ok(Appended::Behind),
            PutEntry::Refused(positions) if positions.iter().any(|position| *position > hooks.len()) => {
                Ok(Appended::GuardRefused)
            }
            PutEntry::Refused(positions) if lease.is_some() && positions.contains(&hooks.len()) => {
                // The lease is lost, or the run was called: the record tells which.
                Ok(if demands { Appended::GuardRefused } else { Appended::Lost })
            }
            PutEntry::Refused(positions) => {
                let mut hooks =
                    positions.iter().filter_map(|position| hooks.get(*position).cloned().flatten());
                match hooks.next() {
                    Some(hook) => Ok(Appended::TokenTaken(hook)),
                    None => Err(StoreError::unreadable("appending to a log", "the run has no record").into()),
                }
            }
        }
    }

    /// Puts an entry if it is absent, together with `writes`.
    pub(super) async fn put_entry(
        &self,
        tenant: &Name,
        run_id: &Name,
        sequence: u64,
        nonce: &Name,
        events: &[LogEvent],
        writes: Vec<TransactWriteItem>,
    ) -> Result<PutEntry, DispatchError> {
        let key = keys::run_entry(tenant, run_id, sequence);
        let row = self.entry_row(nonce, events).await?;
        if writes.is_empty() {
            let put =
                self.control.put(&key, &row)?.condition_expression("attribute_not_exists(PK)").send().await;
            return match put {
                Ok(_) => Ok(PutEntry::Done),
                Err(SdkError::ServiceError(refused))
                    if refused.err().is_conditional_check_failed_exception() =>
                {
                    self.own_or_taken(tenant, run_id, sequence, nonce).await
                }
                Err(error) => Err(StoreError::new("PutItem", error).into()),
            };
        }
        let mut patience = Patience::default();
        loop {
            let put = self.control.put_for_transaction(&key, &row)?;
            let put = put.condition_expression("attribute_not_exists(PK)").build().map_err(built)?;
            let entry = TransactWriteItem::builder().put(put).build();
            let all = std::iter::once(entry).chain(writes.iter().cloned()).collect();
            let answer = self.control.transaction().set_transact_items(Some(all)).send().await;
            match cancelled(answer)? {
                None => return Ok(PutEntry::Done),
                Some(Cancelled::Refused(positions)) if positions.contains(&0) => {
                    return self.own_or_taken(tenant, run_id, sequence, nonce).await;
                }
                Some(Cancelled::Refused(positions)) => {
                    return Ok(PutEntry::Refused(
                        positions.into_iter().map(|position| position - 1).collect(),
                    ));
                }
                Some(Cancelled::Busy(why)) => busy(&mut patience, why).await?,
            }
        }
    }

    /// Tells an entry of another process from this one's own, whose answer was lost.
    async fn own_or_taken(
        &self,
        tenant: &Name,
        run_id: &Name,
        sequence: u64,
        nonce: &Name,
    ) -> Result<PutEntry, DispatchError> {
        Ok(match self.entry_is(tenant, run_id, sequence, nonce).await? {
            true => PutEntry::Done,
            false => PutEntry::Taken,
        })
    }
}
