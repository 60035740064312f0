//! Messages and queues as rows.

use std::sync::Arc;

use rusqlite::{Connection, Row, Transaction, params};

use super::index::{Entry, State};
use super::message::{Attributes, Outgoing, Received};
use super::settings::Settings;

/// A queue's row.
pub(crate) struct QueueRow {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) settings: Settings,
    pub(crate) created_at: u64,
    pub(crate) modified_at: u64,
}

pub(crate) fn load_queues(connection: &Connection) -> rusqlite::Result<Vec<QueueRow>> {
    let mut rows = connection.prepare("SELECT id, name, settings, created_at, modified_at FROM queues")?;
    rows.query_map([], |row| {
        Ok(QueueRow {
            id: row.get(0)?,
            name: row.get(1)?,
            settings: json_column(row, 2)?,
            created_at: row.get(3)?,
            modified_at: row.get(4)?,
        })
    })?
    .collect()
}

/// Every message's place in its queue: the queue's id, its own number and what the index keeps.
pub(crate) fn load_entries(connection: &Connection, now: u64) -> rusqlite::Result<Vec<(i64, i64, Entry)>> {
    let mut rows = connection
        .prepare("SELECT queue, seq, group_id, sent_at, visible_at, receives, urgent FROM messages")?;
    rows.query_map([], |row| {
        let (until, receives): (u64, u32) = (row.get(4)?, row.get(5)?);
        let state = match (until > now, receives) {
            (false, _) => State::Ready,
            (true, 0) => State::Delayed { until },
            (true, _) => State::InFlight { until },
        };
        let group = row.get::<_, Option<String>>(2)?.map(Arc::from);
        let (sent_at, urgent) = (row.get(3)?, row.get(6)?);
        Ok((row.get(0)?, row.get(1)?, Entry { group, urgent, sent_at, receives, state }))
    })?
    .collect()
}

/// Adds a message and says its number.
pub(crate) fn insert(
    transaction: &Transaction<'_>,
    queue: i64,
    message_id: &str,
    message: &Outgoing,
    sent_at: u64,
    visible_at: u64,
) -> rusqlite::Result<i64> {
    transaction
        .prepare_cached(
            "INSERT INTO messages (queue, group_id, sent_at, visible_at, message_id, attributes, \
             system_attributes, body, urgent) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .insert(params![
            queue,
            message.group,
            sent_at,
            visible_at,
            message_id,
            to_json(&message.attributes),
            to_json(&message.system_attributes),
            message.body,
            message.urgent
        ])
}

/// Counts a receive, hides the message and reads it.
pub(crate) fn receive(
    transaction: &Transaction<'_>,
    queue: i64,
    seq: i64,
    now: u64,
    until: u64,
) -> rusqlite::Result<Received> {
    transaction
        .prepare_cached(
            "UPDATE messages SET receives = receives + 1, visible_at = ?2, \
             first_received_at = coalesce(first_received_at, ?3) WHERE seq = ?1 \
             RETURNING message_id, body, attributes, system_attributes, group_id, sent_at, \
             first_received_at, receives, dead_letter_source",
        )?
        .query_row(params![seq, until, now], |row| {
            let receives = row.get(7)?;
            Ok(Received {
                message_id: row.get(0)?,
                receipt: Receipt { queue, seq, receives }.to_string(),
                body: row.get(1)?,
                attributes: json_column(row, 2)?,
                system_attributes: json_column(row, 3)?,
                group: row.get(4)?,
                sent_at: row.get(5)?,
                first_received_at: row.get(6)?,
                receives,
                dead_letter_source: row.get(8)?,
            })
        })
}

/// Moves a message to a dead-letter queue. It keeps its id and its age; its receives are counted anew.
pub(crate) fn move_to_dead_letter_queue(
    transaction: &Transaction<'_>,
    seq: i64,
    queue: i64,
    source: &str,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "UPDATE messages SET queue = ?2, visible_at = 0, receives = 0, first_received_at = NULL, \
             dead_letter_source = ?3 WHERE seq = ?1",
        )?
        .execute(params![seq, queue, source])?;
    Ok(())
}

pub(crate) fn hide(transaction: &Transaction<'_>, seq: i64, until: u64) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("UPDATE messages SET visible_at = ?2 WHERE seq = ?1")?
        .execute(params![seq, until])?;
    Ok(())
}

pub(crate) fn delete(transaction: &Transaction<'_>, seq: i64) -> rusqlite::Result<()> {
    transaction.prepare_cached("DELETE FROM messages WHERE seq = ?1")?.execute([seq])?;
    Ok(())
}

/// What a receipt handle says: one receive of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) queue: i64,
    pub(crate) seq: i64,
    pub(crate) receives: u32,
}

impl Receipt {
    pub(crate) fn parse(handle: &str) -> Option<Self> {
        let mut parts = handle.strip_prefix("LL")?.split('-');
        let receipt = Self {
            queue: parts.next()?.parse().ok()?,
            seq: parts.next()?.parse().ok()?,
            receives: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(receipt)
    }
}

impl std::fmt::Display for Receipt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LL{}-{}-{}", self.queue, self.seq, self.receives)
    }
}

fn to_json(attributes: &Attributes) -> String {
    if attributes.is_empty() {
        return "{}".to_owned();
    }
    serde_json::to_string(attributes).expect("attributes are strings")
}

fn json_column<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    serde_json::from_str(text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    })
}
