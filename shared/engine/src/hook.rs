//! A hook, as log and code know it, and the readers that wait for its payloads.

use std::{
    collections::{BTreeMap, VecDeque},
    task::{Poll, Waker},
};

use ledgerline_event::{LogDraft, LogEvent, Name, RunEventType};
use serde_json::Value;

use crate::{
    Error,
    command::{CommandIndex, Interest},
    draft::draft,
    event_router::Answer,
    wakers::Wakers,
};

/// The code of the error of a hook whose token another hook has.
pub(crate) const CONFLICT: &str = "hook_conflict";

/// A hook, as the log and the code know it.
pub(crate) struct HookRecord {
    token: Option<String>,
    metadata: Option<Value>,
    log: InLog,
    payloads: VecDeque<Value>,
    /// By the order in which they began to wait. The first one gets the next payload, whichever was polled last or
    /// most often.
    readers: BTreeMap<u64, Waker>,
    next_reader: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum InLog {
    Unknown,
    Active,
    Disposed,
    Conflicted,
}

impl HookRecord {
    pub(crate) fn new(token: Option<String>, metadata: Option<Value>) -> Self {
        Self {
            token,
            metadata,
            log: InLog::Unknown,
            payloads: VecDeque::new(),
            readers: BTreeMap::new(),
            next_reader: 0,
        }
    }

    /// The token, once the log knows the hook.
    pub(crate) fn created(&self) -> Option<Result<String, Error>> {
        match self.log {
            InLog::Unknown => None,
            InLog::Active | InLog::Disposed => Some(Ok(self.token.clone().unwrap_or_default())),
            // A token is a credential: the message does not show it.
            InLog::Conflicted => Some(Err(Error::fatal("another hook has this token").code(CONFLICT))),
        }
    }

    pub(crate) fn is_disposed(&self) -> bool {
        matches!(self.log, InLog::Disposed | InLog::Conflicted)
    }

    pub(crate) fn accept(&mut self, event: &mut LogEvent, wakers: &mut Wakers) -> Answer {
        let data = &mut event.event_data;
        match (self.log, event.event_type) {
            (InLog::Unknown, RunEventType::HookCreated | RunEventType::HookConflict) => {
                let token = data.get("token").and_then(Value::as_str);
                if self.token.is_some() && self.token.as_deref() != token {
                    return Answer::Rejected;
                }
                self.token = token.map(str::to_owned);
                self.metadata = None;
                if event.event_type == RunEventType::HookConflict {
                    self.log = InLog::Conflicted;
                    return Answer::AcceptedLast;
                }
                self.log = InLog::Active;
                Answer::Accepted
            }
            (InLog::Active, RunEventType::HookReceived) => {
                self.payloads.push_back(data.remove("payload").unwrap_or_default());
                wakers.call_later(self.readers.values().next().cloned());
                Answer::Accepted
            }
            (InLog::Active, RunEventType::HookDisposed) => {
                self.log = InLog::Disposed;
                wakers.call_later(self.readers.values().cloned());
                Answer::AcceptedLast
            }
            _ => Answer::Rejected,
        }
    }

    /// The next payload, if it is this reader's turn; `None`: there will be no more.
    pub(crate) fn read(
        &mut self,
        reader: &mut Option<u64>,
        waker: &Waker,
        wakers: &mut Wakers,
    ) -> Poll<Option<Value>> {
        let number = *reader.get_or_insert_with(|| {
            self.next_reader += 1;
            self.next_reader
        });
        wakers.drop_later(self.readers.insert(number, waker.clone()));
        let first = self.readers.keys().next() == Some(&number);
        let payload = if first { self.payloads.pop_front() } else { None };
        if payload.is_none() && !(self.is_disposed() && self.payloads.is_empty()) {
            return Poll::Pending;
        }
        self.stop_reading(number, wakers);
        *reader = None;
        Poll::Ready(payload)
    }

    /// The payloads that the code has not read.
    pub(crate) fn unread(&self) -> impl Iterator<Item = &Value> {
        self.payloads.iter()
    }

    /// Forgets the first unread payload: a later hook has got it.
    pub(crate) fn remove_first_unread(&mut self) {
        self.payloads.pop_front();
    }

    /// Whether it gets the unread payloads of the earlier hook `before`: both have the same token.
    pub(crate) fn succeeds(&self, before: &Self) -> bool {
        self.log == InLog::Active && self.token.is_some() && self.token == before.token
    }

    /// This reader waits no longer; the next reader gets the payloads.
    pub(crate) fn stop_reading(&mut self, number: u64, wakers: &mut Wakers) {
        wakers.drop_later(self.readers.remove(&number));
        if !self.payloads.is_empty() {
            wakers.call_later(self.readers.values().next().cloned());
        }
    }

    pub(crate) fn index(&self, interest: Interest) -> CommandIndex {
        let open = self.log == InLog::Active;
        let to_append = match interest {
            Interest::Awaited => self.log == InLog::Unknown,
            Interest::Abandoned => open,
        };
        let has_unread = self.log == InLog::Disposed && !self.payloads.is_empty();
        CommandIndex { open, to_append, has_unread, ..CommandIndex::default() }
    }

    pub(crate) fn drafts(&self, id: &Name, drafts: &mut Vec<LogDraft>) {
        if self.log == InLog::Unknown {
            let mut created = draft(RunEventType::HookCreated, id);
            let token = self.token.clone().map(|token| ("token".to_owned(), token.into()));
            let metadata = self.metadata.clone().map(|metadata| ("metadata".to_owned(), metadata));
            created.event_data.extend(token.into_iter().chain(metadata));
            drafts.push(created);
        }
    }
}
