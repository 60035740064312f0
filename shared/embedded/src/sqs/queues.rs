//! The queues: an index in memory, written through to the store before anything is acknowledged.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rusqlite::params;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::index::{Counts, Entry, Index, State};
use super::message::{Outgoing, Receive, Received, Sent, md5_of_attributes, md5_of_body};
use super::rows::{self, Receipt};
use super::settings::Settings;
use super::{QueueError, queue_arn};
use crate::Clock;
use crate::store::Store;

/// The queues of the account, to be used in process as over HTTP.
pub struct Queues {
    store: Arc<Store>,
    clock: Clock,
    region: String,
    /// Taken before the store's lock, never after it.
    queues: Mutex<HashMap<String, Queue>>,
    closed: watch::Sender<bool>,
}

struct Queue {
    id: i64,
    settings: Settings,
    created_at: u64,
    modified_at: u64,
    index: Index,
    arrivals: Arc<Notify>,
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

    /// Sends one message.
    pub fn send(&self, name: &str, message: Outgoing) -> Result<Sent, QueueError> {
        self.accepts(name, &message)?;
        let sent = self.send_all(vec![(name.to_owned(), message)])?;
        sent.into_iter().next().ok_or(QueueError::QueueDoesNotExist)
    }

    /// Whether the queue exists and would take the message.
    pub(crate) fn accepts(&self, name: &str, message: &Outgoing) -> Result<(), QueueError> {
        let max_bytes = find(&mut self.lock(), name)?.settings.max_message_bytes();
        message.check(max_bytes)
    }

    /// Sends messages to their queues in one transaction: all or none. Each must have been accepted.
    pub(crate) fn send_all(&self, messages: Vec<(String, Outgoing)>) -> Result<Vec<Sent>, QueueError> {
        let sent: Vec<Sent> = messages.iter().map(|(_, message)| announce(message)).collect();
        let mut queues = self.lock();
        if messages.iter().any(|(name, _)| !queues.contains_key(name)) {
            return Err(QueueError::QueueDoesNotExist);
        }
        let now = (self.clock)();
        let placed = self.store.transaction(|tx| {
            let mut placed = Vec::with_capacity(messages.len());
            for ((name, message), sent) in messages.iter().zip(&sent) {
                let queue = &queues[name];
                let delay = message.delay_seconds.unwrap_or_else(|| queue.settings.delay_seconds());
                let visible_at = now + u64::from(delay) * 1000;
                let seq = rows::insert(tx, queue.id, &sent.message_id, message, now, visible_at)?;
                placed.push((name, seq, &message.group, visible_at));
            }
            Ok(placed)
        })?;
        for (name, seq, group, visible_at) in placed {
            let state = if visible_at > now { State::Delayed { until: visible_at } } else { State::Ready };
            let group = group.as_deref().map(Arc::from);
            if let Some(queue) = queues.get_mut(name) {
                queue.index.insert(seq, Entry { group, sent_at: now, receives: 0, state });
                queue.arrivals.notify_waiters();
            }
        }
        Ok(sent)
    }

    /// Receives messages, waiting for the first if there is none yet. Stopping ends the wait with none, and
    /// refuses what comes after.
    pub async fn receive(&self, name: &str, how: Receive) -> Result<Vec<Received>, QueueError> {
        if *self.closed.borrow() {
            return Err(QueueError::Stopping);
        }
        let (arrivals, wait) = {
            let mut queues = self.lock();
            let queue = find(&mut queues, name)?;
            let default = Duration::from_secs(queue.settings.wait_seconds().into());
            (queue.arrivals.clone(), how.wait.unwrap_or(default))
        };
        let deadline = Instant::now() + wait;
        let mut closed = self.closed.subscribe();
        loop {
            let arrival = arrivals.notified();
            tokio::pin!(arrival);
            // Registered before looking, so that a message sent in between still wakes us.
            arrival.as_mut().enable();
            let received = self.receive_now(name, &how)?;
            if !received.is_empty() || Instant::now() >= deadline || *closed.borrow() {
                return Ok(received);
            }
            let due = self.until_next_due(name).map_or(deadline, |due| deadline.min(Instant::now() + due));
            tokio::select! {
                () = &mut arrival => {}
                () = tokio::time::sleep_until(due) => {}
                _ = closed.changed() => {}
            }
        }
    }

    /// Receives what is there now.
    pub fn receive_now(&self, name: &str, how: &Receive) -> Result<Vec<Received>, QueueError> {
        let mut queues = self.lock();
        let now = (self.clock)();
        let redrive = find(&mut queues, name)?.settings.redrive();
        let grave = redrive.and_then(|redrive| {
            let dead = queues.get(&redrive.dead_letter_queue)?;
            Some((redrive.max_receives, redrive.dead_letter_queue, dead.id))
        });
        let queue = find(&mut queues, name)?;
        queue.index.wake(now);
        self.expire(queue, now)?;

        let seconds = how.visibility_seconds.unwrap_or_else(|| queue.settings.visibility_seconds());
        let until = now + u64::from(seconds) * 1000;
        let (mut taken, mut dead) = (Vec::new(), Vec::new());
        while taken.len() < how.max
            && let Some(seq) = queue.index.next()
        {
            match &grave {
                Some((max, ..)) if queue.index.get(seq).is_some_and(|entry| entry.receives >= *max) => {
                    dead.extend(queue.index.remove(seq).map(|entry| (seq, entry)));
                }
                _ => {
                    queue.index.take(seq, until);
                    taken.push(seq);
                }
            }
        }
        if taken.is_empty() && dead.is_empty() {
            return Ok(Vec::new());
        }
        let id = queue.id;
        let written = self.store.transaction(|tx| {
            if let Some((_, _, grave)) = &grave {
                let source = queue_arn(&self.region, name);
                dead.iter().try_for_each(|(seq, _)| rows::bury(tx, *seq, *grave, &source))?;
            }
            taken.iter().map(|seq| rows::receive(tx, id, *seq, now, until)).collect()
        });
        let received = match written {
            Ok(received) => received,
            Err(error) => {
                // The index ran ahead of a store that refused: what is stored is the truth.
                self.reload(&mut queues, now)?;
                return Err(error.into());
            }
        };
        if let Some(queue) = grave.and_then(|(_, name, _)| queues.get_mut(&name))
            && !dead.is_empty()
        {
            for (seq, entry) in dead {
                queue.index.insert(seq, Entry { receives: 0, state: State::Ready, ..entry });
            }
            queue.arrivals.notify_waiters();
        }
        Ok(received)
    }

    /// Deletes a message by the receipt of its latest receive.
    pub fn delete(&self, name: &str, receipt: &str) -> Result<(), QueueError> {
        self.delete_all(name, &[receipt]).and_then(|mut results| results.remove(0))
    }

    /// Deletes messages in one transaction; the receipts are judged one by one.
    pub(crate) fn delete_all(
        &self,
        name: &str,
        receipts: &[&str],
    ) -> Result<Vec<Result<(), QueueError>>, QueueError> {
        let mut queues = self.lock();
        let queue = find(&mut queues, name)?;
        let parsed: Vec<_> = receipts.iter().map(|handle| queue.receipt(handle)).collect();
        // A message that is gone is deleted; one received again since belongs to its newer receipt.
        let current: Vec<i64> = parsed
            .iter()
            .flatten()
            .filter(|receipt| queue.index.get(receipt.seq).is_some_and(|e| e.receives == receipt.receives))
            .map(|receipt| receipt.seq)
            .collect();
        if !current.is_empty() {
            self.store.transaction(|tx| current.iter().try_for_each(|seq| rows::delete(tx, *seq)))?;
        }
        for seq in current {
            queue.index.remove(seq);
        }
        Ok(parsed.into_iter().map(|receipt| receipt.map(|_| ())).collect())
    }

    /// Hides a message in flight for so many seconds from now; 0 makes it visible at once.
    pub fn change_visibility(&self, name: &str, receipt: &str, seconds: u32) -> Result<(), QueueError> {
        if seconds > 43_200 {
            return Err(QueueError::InvalidParameterValue(format!(
                "Value {seconds} for parameter VisibilityTimeout is invalid. Reason: VisibilityTimeout must be an integer between 0 and 43200."
            )));
        }
        let mut queues = self.lock();
        let queue = find(&mut queues, name)?;
        let now = (self.clock)();
        queue.index.wake(now);
        let receipt = queue.receipt(receipt)?;
        let Some(entry) = queue.index.get(receipt.seq).filter(|e| e.receives == receipt.receives) else {
            return Err(QueueError::InvalidParameterValue(format!(
                "Value {receipt} for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change."
            )));
        };
        if !matches!(entry.state, State::InFlight { .. }) {
            return Err(QueueError::MessageNotInflight);
        }
        let until = now + u64::from(seconds) * 1000;
        self.store.transaction(|tx| rows::hide(tx, receipt.seq, until))?;
        queue.index.change(receipt.seq, if seconds == 0 { State::Ready } else { State::InFlight { until } });
        // A shorter timeout may be due before what the waiting polls are set to.
        queue.arrivals.notify_waiters();
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

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Queue>> {
        self.queues.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn until_next_due(&self, name: &str) -> Option<Duration> {
        let due = self.lock().get(name)?.index.next_due()?;
        // At least a moment, so that a clock that stands still is not asked in a circle.
        Some(Duration::from_millis(due.saturating_sub((self.clock)()).max(1)))
    }

    /// Drops messages older than the queue keeps them.
    fn expire(&self, queue: &mut Queue, now: u64) -> Result<(), QueueError> {
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

    fn reload(&self, queues: &mut HashMap<String, Queue>, now: u64) -> Result<(), QueueError> {
        for (name, stored) in load(&self.store, now)? {
            if let Some(queue) = queues.get_mut(&name) {
                queue.index = stored.index;
            }
        }
        Ok(())
    }
}

impl Queue {
    fn receipt(&self, handle: &str) -> Result<Receipt, QueueError> {
        Receipt::parse(handle)
            .filter(|receipt| receipt.queue == self.id)
            .ok_or(QueueError::ReceiptHandleIsInvalid)
    }
}

fn find<'a>(queues: &'a mut HashMap<String, Queue>, name: &str) -> Result<&'a mut Queue, QueueError> {
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

fn announce(message: &Outgoing) -> Sent {
    Sent {
        message_id: uuid::Uuid::new_v4().to_string(),
        md5_of_body: md5_of_body(&message.body),
        md5_of_attributes: md5_of_attributes(&message.attributes),
        md5_of_system_attributes: md5_of_attributes(&message.system_attributes),
    }
}

fn to_json(settings: &Settings) -> String {
    serde_json::to_string(settings).expect("settings are strings")
}
