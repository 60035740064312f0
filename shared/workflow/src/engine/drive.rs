//! The side of the engine that the execution holds.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{Kind, LogDraft, LogEvent, Millis, RunEventType};
use serde_json::Value;

use super::{
    Engine, State,
    command::{Command, Entity, describe_created},
    consumer::{Offered, ulid_of},
    draft::draft_with,
    seed::Seed,
    unread::{HANDED_OVER_FROM, UnreadEvent},
    wakers::Wakers,
};
use crate::Mismatch;

/// How far to look for the place of a command that the code never asked for.
const AHEAD: usize = 1_000;
/// How many of the things that the code waits for are told.
const TOLD: usize = 3;

impl Engine {
    /// The run was created then.
    pub(crate) fn begin(&self, created: Millis) {
        let time = Kind::time_of(&self.run_id).unwrap_or(created);
        self.lock().seed = Seed::new(&self.run_id, time);
    }

    pub(crate) fn tick(&self, now: Millis) {
        self.lock().pulse.clock = now;
    }

    /// An event is about to be delivered.
    pub(crate) fn arrive(&self, timestamp: Millis) {
        let mut state = self.lock();
        state.pulse.live = false;
        state.delivered += 1;
        state.now = state.now.max(timestamp);
    }

    /// Gives an event to the command that it is about, and wakes the future that waits for it.
    pub(crate) fn deliver(&self, event: &mut LogEvent, returned: bool) -> Result<(), Mismatch> {
        let mut wakers = Wakers::default();
        let from = event.event_data.get(HANDED_OVER_FROM).and_then(Value::as_str).map(str::to_owned);
        let result = {
            let state = &mut *self.lock();
            let (commands, place) = (&mut state.commands, state.delivered);
            match state.consumer.offer(event, |slot, event| commands[slot].deliver(event, place, &mut wakers))
            {
                Offered::Taken(slot) => {
                    from.iter().for_each(|from| state.handed_over(from));
                    state.keep_unread(slot);
                    state.settle(slot);
                    Ok(())
                }
                Offered::Refused(slot) => Err(state.refused(slot, event)),
                Offered::Unknown => Err(state.unknown(event, returned)),
            }
        };
        wakers.release();
        result
    }

    /// Everything was delivered: wakes the steps that may begin. Says whether there were any.
    pub(crate) fn go_live(&self) -> bool {
        let mut wakers = Wakers::default();
        {
            let state = &mut *self.lock();
            state.pulse.live = true;
            for (_, slot) in state.starting_at.range(..=(state.pulse.clock, usize::MAX)) {
                wakers.call(state.commands[*slot].waker.take());
            }
        }
        wakers.release()
    }

    /// Wakes the futures of the steps that the world has woken. Says whether there were any.
    pub(crate) fn pass_on(&self) -> bool {
        let slots = self.bell.rang_for_steps();
        let mut wakers = Wakers::default();
        {
            let state = &mut *self.lock();
            for slot in slots {
                wakers.call(state.commands[slot].waker.take());
            }
        }
        wakers.release()
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.lock().running > 0
    }

    pub(crate) fn next_due(&self) -> Option<Millis> {
        let state = self.lock();
        let wanting = state.wanting_at.first();
        // A step that could begin and did not is held by code that does not poll it: time does not help.
        let starting = state.starting_at.range((state.pulse.clock.plus(1), 0)..).next();
        wanting.into_iter().chain(starting).map(|(at, _)| *at).min()
    }

    /// Whether something is to be recorded at `now`.
    pub(crate) fn is_wanting(&self, now: Millis) -> bool {
        let state = self.lock();
        !state.wanting.is_empty()
            || state.wanting_at.first().is_some_and(|(at, _)| *at <= now)
            || !state.hand_overs().is_empty()
            || state.heirs().next().is_some()
    }

    /// What is to be recorded at `now`, in the order of the commands.
    pub(crate) fn wanted(&self, now: Millis, drafts: &mut Vec<LogDraft>) {
        let state = self.lock();
        let due = state.wanting_at.range(..=(now, usize::MAX)).map(|(_, slot)| *slot);
        let hand_overs = state.hand_overs();
        let slots = state.wanting.iter().copied().chain(due).chain(hand_overs.keys().copied());
        for slot in slots.collect::<BTreeSet<usize>>() {
            state.commands[slot].drafts(now, hand_overs.get(&slot).copied(), drafts);
        }
        for (before, heir) in state.heirs() {
            let Entity::Hook(hook) = &state.commands[before].entity else { continue };
            drafts.extend(hook.unread().map(|payload| {
                let from = state.commands[before].id.as_str().into();
                let data = [("payload", payload.clone()), (HANDED_OVER_FROM, from)];
                draft_with(RunEventType::HookReceived, &state.commands[heir].id, data)
            }));
        }
    }

    /// The latest time that the code has read, of which the world may know by what the code does next.
    pub(crate) fn time_read(&self) -> Option<Millis> {
        self.lock().time_read
    }

    /// What closes everything that the log has open.
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
        for slot in self.open.union(&self.wanting) {
            let Command { entity: Entity::Wait(wait), abandoned: false, .. } = &self.commands[*slot] else {
                continue;
            };
            let first =
                self.unread.iter().find(|(place, event)| !given.contains(*place) && wait.wants(event));
            if let Some((place, event)) = first {
                given.insert(*place);
                hand_overs.insert(*slot, event);
            }
        }
        hand_overs
    }

    /// Hooks that left unread payloads, each with the later hook of the same token that gets them.
    fn heirs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.with_unread.iter().filter_map(|before| {
            let Entity::Hook(hook) = &self.commands[*before].entity else { return None };
            let heir = self.open.range(before + 1..).find(|slot| {
                let command = &self.commands[**slot];
                matches!(&command.entity, Entity::Hook(heir) if !command.abandoned && heir.succeeds(hook))
            });
            heir.map(|heir| (*before, *heir))
        })
    }

    /// The log says that a later wait or hook has got what this one had.
    fn handed_over(&mut self, from: &str) {
        self.unread.handed_over(from);
        let slot = self.with_unread.iter().copied().find(|slot| self.commands[*slot].id.as_str() == from);
        if let Some(slot) = slot {
            if let Entity::Hook(hook) = &mut self.commands[slot].entity {
                hook.handed_over();
            }
            self.settle(slot);
        }
    }

    fn refused(&self, slot: usize, event: &LogEvent) -> Mismatch {
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
            Some(_) | None => format!("for {code}, which the code asks for there, this cannot come next"),
        };
        Mismatch { log, code }
    }

    fn unknown(&self, event: &LogEvent, returned: bool) -> Mismatch {
        let mut what = describe_created(event)
            .unwrap_or_else(|| format!("{} of `{}`", event.event_type, event.correlation_id));
        let asked = self.commands.len();
        let ulid = ulid_of(&event.correlation_id);
        if let Some(place) = (0..asked + AHEAD).find(|place| Some(self.seed.command(*place)) == ulid) {
            what = format!("{what} (command {})", place + 1);
            if place < asked {
                let log = format!("the log has {what}");
                return Mismatch { log, code: "for the code that one had ended before".into() };
            }
        }
        let code = if returned {
            "the code has returned".into()
        } else {
            format!("the code never asked for it: {}", self.waits())
        };
        Mismatch { log: format!("the log has {what}"), code }
    }

    /// What the code waits for.
    fn waits(&self) -> String {
        let mut slots: Vec<usize> =
            self.consumer.waiting().filter(|slot| !self.commands[*slot].abandoned).collect();
        slots.sort_unstable();
        let told: Vec<String> = slots
            .iter()
            .take(TOLD)
            .map(|slot| format!("{} (command {})", self.commands[*slot].entity.describe(), slot + 1))
            .collect();
        match (told.is_empty(), slots.len().saturating_sub(TOLD)) {
            (true, _) => "it waits for nothing that a log could bring".into(),
            (false, 0) => format!("it waits for {}", told.join(", ")),
            (false, more) => format!("it waits for {} and {more} more", told.join(", ")),
        }
    }
}
