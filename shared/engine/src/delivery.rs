//! The side of the engine that the execution holds: it delivers events, wakes futures, and asks which events are to be
//! appended.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{Kind, LogDraft, LogEvent, Millis, RunEventType};
use serde_json::Value;

use crate::{
    Mismatch,
    command::{Command, Entity, Interest, describe_created},
    deterministic_ids::DeterministicIds,
    draft::draft_with,
    engine::{Engine, State},
    event_router::{Routed, ulid_of},
    unread_events::{HANDED_OVER_FROM, UnreadEvent},
    wakers::Wakers,
};

/// How many future slots are searched to number an unexpected event.
const SEARCH_AHEAD: usize = 1_000;
/// How many open commands a mismatch names.
const NAMED_MAX: usize = 3;

/// Whether the code of the workflow still runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CodeState {
    Running,
    /// It has returned, or the input did not fit and it never ran.
    Returned,
}

impl Engine {
    /// Fixes the time that ids carry: that of the run's own id, or else `created`, the time of the log's first event.
    pub(crate) fn begin(&self, created: Millis) {
        let time = Kind::time_of(&self.run_id).unwrap_or(created);
        self.lock().ids = DeterministicIds::new(&self.run_id, time);
    }

    pub(crate) fn set_clock(&self, now: Millis) {
        self.lock().progress.clock = now;
    }

    /// Counts an event with this timestamp as delivered and moves the code's time up to it. Call it before each delivery.
    pub(crate) fn advance(&self, timestamp: Millis) {
        let mut state = self.lock();
        state.progress.caught_up = false;
        state.delivered += 1;
        state.now = state.now.max(timestamp);
    }

    /// Gives an event to the command that it is about, and wakes the future that waits for it.
    pub(crate) fn deliver(&self, event: &mut LogEvent, code: CodeState) -> Result<(), Mismatch> {
        let mut wakers = Wakers::default();
        let from = event.event_data.get(HANDED_OVER_FROM).and_then(Value::as_str).map(str::to_owned);
        let result = {
            let state = &mut *self.lock();
            let (commands, number) = (&mut state.commands, state.delivered);
            let offer =
                |slot: usize, event: &mut LogEvent| commands[slot].deliver(event, number, &mut wakers);
            match state.router.route(event, offer) {
                Routed::Accepted(slot) => {
                    from.iter().for_each(|from| state.remove_handed_over(from));
                    state.keep_unread(slot);
                    state.reindex(slot);
                    Ok(())
                }
                Routed::Rejected(slot) => Err(state.mismatch_with(slot, event)),
                Routed::NoCommand => Err(state.mismatch_without_command(event, code)),
            }
        };
        wakers.release();
        result
    }

    /// Notes that all events were delivered, and wakes the steps whose attempts may begin. Returns whether there were any.
    pub(crate) fn mark_caught_up(&self) -> bool {
        let mut wakers = Wakers::default();
        {
            let state = &mut *self.lock();
            state.progress.caught_up = true;
            for (_, slot) in state.starting_at.range(..=(state.progress.clock, usize::MAX)) {
                wakers.call_later(state.commands[*slot].waker.take());
            }
        }
        wakers.release()
    }

    /// Wakes the futures of the steps that the world has woken. Returns whether there were any.
    pub(crate) fn forward_step_wakes(&self) -> bool {
        let slots = self.wake_queue.take_woken_steps();
        let mut wakers = Wakers::default();
        {
            let state = &mut *self.lock();
            for slot in slots {
                wakers.call_later(state.commands[slot].waker.take());
            }
        }
        wakers.release()
    }

    /// Whether an attempt at a step runs in this process.
    pub(crate) fn is_busy(&self) -> bool {
        self.lock().running > 0
    }

    pub(crate) fn next_due(&self) -> Option<Millis> {
        let state = self.lock();
        let to_append = state.to_append_at.first();
        // A step that could begin and did not is held by code that does not poll it: time does not help.
        let starting = state.starting_at.range((state.progress.clock.plus(1), 0)..).next();
        to_append.into_iter().chain(starting).map(|(at, _)| *at).min()
    }

    /// Whether an event is to be appended at `now`.
    pub(crate) fn has_pending_drafts(&self, now: Millis) -> bool {
        let state = self.lock();
        !state.to_append.is_empty()
            || state.to_append_at.first().is_some_and(|(at, _)| *at <= now)
            || !state.hand_overs().is_empty()
            || state.hook_successors().next().is_some()
    }

    /// The events that are to be appended at `now`, in the order of the commands.
    pub(crate) fn pending_drafts(&self, now: Millis, drafts: &mut Vec<LogDraft>) {
        let state = self.lock();
        let due = state.to_append_at.range(..=(now, usize::MAX)).map(|(_, slot)| *slot);
        let hand_overs = state.hand_overs();
        let slots = state.to_append.iter().copied().chain(due).chain(hand_overs.keys().copied());
        for slot in slots.collect::<BTreeSet<usize>>() {
            state.commands[slot].drafts(now, hand_overs.get(&slot).copied(), drafts);
        }
        for (before, successor) in state.hook_successors() {
            let Entity::Hook(hook) = &state.commands[before].entity else { continue };
            drafts.extend(hook.unread().map(|payload| {
                let from = state.commands[before].id.as_str().into();
                let data = [("payload", payload.clone()), (HANDED_OVER_FROM, from)];
                draft_with(RunEventType::HookReceived, &state.commands[successor].id, data)
            }));
        }
    }

    /// The latest `ctx.now()` that the code has read. The runner raises the tenant's floor to it before it appends.
    pub(crate) fn time_read(&self) -> Option<Millis> {
        self.lock().time_read
    }

    /// The events that close everything that the log has open.
    pub(crate) fn closings(&self) -> Vec<LogDraft> {
        let state = self.lock();
        state.open.iter().filter_map(|slot| state.commands[*slot].closing()).collect()
    }
}

impl State {
    /// The open waits that get an event which the code left unread: each the first that fits, in the order of the log.
    fn hand_overs(&self) -> BTreeMap<usize, &UnreadEvent> {
        let mut hand_overs = BTreeMap::new();
        if self.unread.is_empty() {
            return hand_overs;
        }
        let mut given = BTreeSet::new();
        for slot in self.open.union(&self.to_append) {
            let Command { entity: Entity::Wait(wait), interest: Interest::Awaited, .. } =
                &self.commands[*slot]
            else {
                continue;
            };
            let first =
                self.unread.iter().find(|(number, event)| !given.contains(*number) && wait.wants(event));
            if let Some((number, event)) = first {
                given.insert(*number);
                hand_overs.insert(*slot, event);
            }
        }
        hand_overs
    }

    /// Hooks that left unread payloads, each with the later hook of the same token that gets them.
    fn hook_successors(&self) -> impl Iterator<Item = (usize, usize)> {
        self.with_unread.iter().filter_map(|before| {
            let Entity::Hook(hook) = &self.commands[*before].entity else { return None };
            let successor = self.open.range(before + 1..).find(|slot| {
                let command = &self.commands[**slot];
                let is_awaited = command.interest == Interest::Awaited;
                matches!(&command.entity, Entity::Hook(later) if is_awaited && later.succeeds(hook))
            });
            successor.map(|successor| (*before, *successor))
        })
    }

    /// Forgets the unread event that the wait or hook `from` had: the log gives it to a later one.
    fn remove_handed_over(&mut self, from: &str) {
        self.unread.remove_taken_by(from);
        let slot = self.with_unread.iter().copied().find(|slot| self.commands[*slot].id.as_str() == from);
        if let Some(slot) = slot {
            if let Entity::Hook(hook) = &mut self.commands[slot].entity {
                hook.remove_first_unread();
            }
            self.reindex(slot);
        }
    }

    /// The command in `slot` rejects the event.
    fn mismatch_with(&self, slot: usize, event: &LogEvent) -> Mismatch {
        let command = &self.commands[slot];
        let (number, code) = (slot + 1, command.entity.describe());
        let log = match describe_created(event) {
            Some(log) => format!("the log has {log} (command {number})"),
            None => format!("the log has {} of command {number}", event.event_type),
        };
        let code = match describe_created(event) {
            Some(log) if log != code => format!("the code asks for {code} (command {number})"),
            Some(_) if !command.indexed.open => {
                format!("the code asks for {code} (command {number}) with another token")
            }
            Some(_) | None => format!(
                "the code's command {number} is {code}, which cannot receive {} in its present state",
                event.event_type
            ),
        };
        Mismatch { log, code }
    }

    /// No open command has the ULID of the event: its command has ended, or the code never issued it.
    fn mismatch_without_command(&self, event: &LogEvent, code: CodeState) -> Mismatch {
        let mut what = describe_created(event)
            .unwrap_or_else(|| format!("{} of `{}`", event.event_type, event.correlation_id));
        let issued = self.commands.len();
        let ulid = ulid_of(&event.correlation_id);
        if let Some(slot) = (0..issued + SEARCH_AHEAD).find(|slot| Some(self.ids.command(*slot)) == ulid) {
            what = format!("{what} (command {})", slot + 1);
            if slot < issued {
                let log = format!("the log has {what}");
                return Mismatch { log, code: format!("the code's command {} had already ended", slot + 1) };
            }
        }
        let code = match code {
            CodeState::Returned => "the code has returned".into(),
            CodeState::Running => format!("the code never asked for it: {}", self.describe_awaited()),
        };
        Mismatch { log: format!("the log has {what}"), code }
    }

    /// The commands that the code waits for, in words.
    fn describe_awaited(&self) -> String {
        let is_awaited = |slot: &usize| self.commands[*slot].interest == Interest::Awaited;
        let mut slots: Vec<usize> = self.router.subscribed().filter(is_awaited).collect();
        slots.sort_unstable();
        let named: Vec<String> = slots
            .iter()
            .take(NAMED_MAX)
            .map(|slot| format!("{} (command {})", self.commands[*slot].entity.describe(), slot + 1))
            .collect();
        match (named.is_empty(), slots.len().saturating_sub(NAMED_MAX)) {
            (true, _) => "it waits for no step, wait or hook".into(),
            (false, 0) => format!("it waits for {}", named.join(", ")),
            (false, more) => format!("it waits for {} and {more} more", named.join(", ")),
        }
    }
}
