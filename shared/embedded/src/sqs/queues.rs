//! The queues themselves: an index in memory for each, written through to the store.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use rusqlite::params;
use tokio::sync::{Notify, watch};

use super::index::{Counts, Index};
use super::rows;
use super::settings::Settings;
use super::{QueueError, queue_arn};
use crate::Clock;
use crate::store::Store;

/// The queues of the account, for callers in this process; `api` serves the same over HTTP.
pub struct Queues {
    pub(super) store: Arc<Store>,
    pub(super) clock: Clock,
    pub(super) region: String,
    /// Taken before the store's lock, never after it.
    queues: Mutex<HashMap<String, Queue>>,
    pub(super) closed: watch::Sender<bool>,
}

pub(super) struct Queue {
    pub(super) id: i64,
    pub(super) settings: Settings,
    created_at: u64,
    modified_at: u64,
    pub(super) index: Index,
    pub(super) arrivals: Arc<Notify>,
}

/// What waits in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// How many messages there are.
    pub counts: Counts,
    /// How many milliseconds ago the oldest message was sent, also one in flight.
    pub oldest_ms: Option<u64>,
    /// How many milliseconds ago the oldest message was sent that can be received.
    pub oldest_visible_ms: Option<u64>,
}

/// A queue's attributes, for GetQueueAttributes.
pub(crate) struct Description {
    pub(crate) settings: Settings,
    pub(crate) counts: Counts,
    pub(crate) created_at: u64,
    pub(crate) modified_at: u64,
    pub(crate) arn: String,
}

impl Queues {
    /// Reads the queues and their messages from the store.
    pub(crate) fn open(store: Arc<Store>, clock: Clock, region: String) -> rusqlite::Result<Self> {
        let queues = Mutex::new(load(&store, clock())?);
        Ok(Self { store, clock, region, queues, closed: watch::Sender::new(false) })
    }

    /// Creates a queue; one that exists with the same attributes is left as it is.
    pub fn create(&self, name: &str, attributes: BTreeMap<String, String>) -> Result<(), QueueError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if name.is_empty() || name.len() > 80 || !name.bytes().all(allowed) {
            return Err(QueueError::InvalidParameterValue(
                "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
                    .to_owned(),
            ));
        }
        let mut settings = Settings::default();
        settings.set(attributes)?;
        let mut queues = self.lock();
        if let Some(queue) = queues.get(name) {
            return match queue.settings.difference(&settings) {
                Some(attribute) => Err(QueueError::QueueNameExists(attribute)),
                None => Ok(()),
            };
        }
        let now = (self.clock)();
        let id = self.store.transaction(|tx| {
            tx.prepare_cached(
                "INSERT INTO queues (name, settings, created_at, modified_at) VALUES (?1, ?2, ?3, ?3)",
            )?
            .insert(params![name, to_json(&settings), now])
        })?;
        queues.insert(
            name.to_owned(),
            Queue {
                id,
                settings,
                created_at: now,
                modified_at: now,
                index: Index::default(),
                arrivals: Arc::default(),
            },
        );
        Ok(())
    }

    /// The names of the queues that begin with `prefix`, in order.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let mut names: Vec<String> =
            self.lock().keys().filter(|name| name.starts_with(prefix)).cloned().collect();
        names.sort();
        names
    }

    /// Whether the queue exists.
    pub fn exists(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }

    /// How many messages the queue holds.
    pub fn counts(&self, name: &str) -> Result<Counts, QueueError> {
        self.describe(name).map(|description| description.counts)
    }

    /// What waits in each queue.
    pub fn waiting(&self) -> BTreeMap<String, Waiting> {
        let now = (self.clock)();
        let age = |sent_at: u64| now.saturating_sub(sent_at);
        let waiting = |queue: &Queue| Waiting {
            counts: queue.index.counts(),
            oldest_ms: queue.index.oldest().map(age),
            oldest_visible_ms: queue.index.oldest_visible().map(age),
        };
        self.lock().iter().map(|(name, queue)| (name.clone(), waiting(queue))).collect()
    }

    /// How many messages a queue holds in all; 0 if there is no such queue.
    pub(crate) fn backlog(&self, name: &str) -> usize {
        self.lock().get(name).map_or(0, |queue| {
            let Counts { visible, in_flight, delayed } = queue.index.counts();
            visible + in_flight + delayed
        })
    }

    pub(crate) fn describe(&self, name: &str) -> Result<Description, QueueError> {
        let mut queues = self.lock();
        let queue = find(&mut queues, name)?;
        let now = (self.clock)();
        queue.index.wake(now);
        self.expire(queue, now)?;
        Ok(Description {
            settings: queue.settings.clone(),
            counts: queue.index.counts(),
            created_at: queue.created_at,
            modified_at: queue.modified_at,
            arn: queue_arn(&self.region, name),
        })
    }

    /// Changes the queue's attributes.
    pub fn set_attributes(&self, name: &str, attributes: BTreeMap<String, String>) -> Result<(), QueueError> {
        let mut queues = self.lock();
        let queue = find(&mut queues, name)?;
        let mut settings = queue.settings.clone();
        settings.set(attributes)?;
        let now = (self.clock)();
        self.store.transaction(|tx| {
            tx.execute(
                "UPDATE queues SET settings = ?2, modified_at = ?3 WHERE id = ?1",
                params![queue.id, to_json(&settings), now],
            )
        })?;
        (queue.settings, queue.modified_at) = (settings, now);
        Ok(())
    }

    /// Deletes the queue and its messages.
    pub fn remove(&self, name: &str) -> Result<(), QueueError> {
        let mut queues = self.lock();
        let id = find(&mut queues, name)?.id;
        self.store.transaction(|tx| {
            tx.execute("DELETE FROM messages WHERE queue = ?1", [id])?;
            tx.execute("DELETE FROM queues WHERE id = ?1", [id])
        })?;
        if let Some(queue) = queues.remove(name) {
            queue.arrivals.notify_waiters();
        }
        Ok(())
    }

    /// Deletes all messages of the queue.
    pub fn purge(&self, name: &str) -> Result<(), QueueError> {
        let mut queues = self.lock();
        let queue = find(&mut queues, name)?;
        self.store.transaction(|tx| tx.execute("DELETE FROM messages WHERE queue = ?1", [queue.id]))?;
        queue.index = Index::default();
        Ok(())
    }

    /// Wakes all waiting receives, to look again at a clock that was moved.
    pub(crate) fn clock_moved(&self) {
        for queue in self.lock().values() {
            queue.arrivals.notify_waiters();
        }
    }

    /// Ends waiting receives, now and from now on.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<String, Queue>> {
        self.queues.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Drops messages older than the queue keeps them.
    pub(super) fn expire(&self, queue: &mut Queue, now: u64) -> Result<(), QueueError> {
        let Some(cutoff) = now.checked_sub(queue.settings.retention_ms()) else { return Ok(()) };
        let expired = queue.index.sent_until(cutoff);
        if !expired.is_empty() {
            self.store.transaction(|tx| expired.iter().try_for_each(|seq| rows::delete(tx, *seq)))?;
        }
        for seq in expired {
            queue.index.remove(seq);
        }
        Ok(())
    }

    pub(super) fn reload(&self, queues: &mut HashMap<String, Queue>, now: u64) -> Result<(), QueueError> {
        for (name, stored) in load(&self.store, now)? {
            if let Some(queue) = queues.get_mut(&name) {
                queue.index = stored.index;
            }
        }
        Ok(())
    }
}

pub(super) fn find<'a>(
    queues: &'a mut HashMap<String, Queue>,
    name: &str,
) -> Result<&'a mut Queue, QueueError> {
    queues.get_mut(name).ok_or(QueueError::QueueDoesNotExist)
}

fn load(store: &Store, now: u64) -> rusqlite::Result<HashMap<String, Queue>> {
    let connection = store.lock();
    let mut names = HashMap::new();
    let mut queues = HashMap::new();
    for row in rows::load_queues(&connection)? {
        names.insert(row.id, row.name.clone());
        let (index, arrivals) = Default::default();
        let rows::QueueRow { id, name, settings, created_at, modified_at } = row;
        queues.insert(name, Queue { id, settings, created_at, modified_at, index, arrivals });
    }
    for (id, seq, entry) in rows::load_entries(&connection, now)? {
        if let Some(queue) = names.get(&id).and_then(|name| queues.get_mut(name)) {
            queue.index.insert(seq, entry);
        }
    }
    Ok(queues)
}

fn to_json(settings: &Settings) -> String {
    serde_json::to_string(settings).expect("settings are strings")
}
