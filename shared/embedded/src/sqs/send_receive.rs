//! Messages through the queues: sent, received, deleted, hidden; in the store before it is acknowledged.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::index::{Entry, State};
use super::message::{Outgoing, Receive, Received, Sent, md5_of_attributes, md5_of_body};
use super::queues::{Queue, find};
use super::rows::{self, Receipt};
use super::{QueueError, Queues, queue_arn};

impl Queues {
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
                placed.push((name, seq, message, visible_at));
            }
            Ok(placed)
        })?;
        for (name, seq, message, visible_at) in placed {
            let state = if visible_at > now { State::Delayed { until: visible_at } } else { State::Ready };
            let (group, urgent) = (message.group.as_deref().map(Arc::from), message.urgent);
            if let Some(queue) = queues.get_mut(name) {
                queue.index.insert(seq, Entry { group, urgent, sent_at: now, receives: 0, state });
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
        let dead_letter_target = redrive.and_then(|redrive| {
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
            match &dead_letter_target {
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
            if let Some((_, _, target)) = &dead_letter_target {
                let source = queue_arn(&self.region, name);
                dead.iter()
                    .try_for_each(|(seq, _)| rows::move_to_dead_letter_queue(tx, *seq, *target, &source))?;
            }
            taken.iter().map(|seq| rows::receive(tx, id, *seq, now, until)).collect()
        });
        let received = match written {
            Ok(received) => received,
            Err(error) => {
                // The index has taken messages that the store has not: load it again from the store.
                self.reload(&mut queues, now)?;
                return Err(error.into());
            }
        };
        if let Some(queue) = dead_letter_target.and_then(|(_, name, _)| queues.get_mut(&name))
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
        // A missing message was deleted before. A message that was received again since belongs to its newer receipt.
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

    /// Hides a message in flight for a number of seconds from now; 0 makes it visible at once.
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

    /// Makes everything in flight visible at once: for a queue whose only receivers are gone, because they
    /// were in the process that used this folder before.
    pub fn release(&self, name: &str) -> Result<(), QueueError> {
        let mut queues = self.lock();
        let queue = find(&mut queues, name)?;
        let now = (self.clock)();
        let released = queue.index.in_flight();
        self.store
            .transaction(|tx| released.iter().try_for_each(|seq| rows::hide(tx, *seq, now).map(|_| ())))?;
        for seq in released {
            queue.index.change(seq, State::Ready);
        }
        queue.arrivals.notify_waiters();
        Ok(())
    }

    fn until_next_due(&self, name: &str) -> Option<Duration> {
        let due = self.lock().get(name)?.index.next_due()?;
        // At least a moment, so that a clock that stands still is not asked in a circle.
        Some(Duration::from_millis(due.saturating_sub((self.clock)()).max(1)))
    }
}

impl Queue {
    fn receipt(&self, handle: &str) -> Result<Receipt, QueueError> {
        Receipt::parse(handle)
            .filter(|receipt| receipt.queue == self.id)
            .ok_or(QueueError::ReceiptHandleIsInvalid)
    }
}

fn announce(message: &Outgoing) -> Sent {
    Sent {
        message_id: uuid::Uuid::new_v4().to_string(),
        md5_of_body: md5_of_body(&message.body),
        md5_of_attributes: md5_of_attributes(&message.attributes),
        md5_of_system_attributes: md5_of_attributes(&message.system_attributes),
    }
}
