//! The one SQLite file behind queues, buses, objects and parameters.
//!
//! WAL with `synchronous = NORMAL`: a commit reaches the operating system before the answer is sent, so it
//! survives the death of this process; only the loss of power may take the last moments.

use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use rusqlite::{Connection, Transaction};

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, settings TEXT NOT NULL,
    created_at INTEGER NOT NULL, modified_at INTEGER NOT NULL);
-- AUTOINCREMENT: a receipt of a deleted message must never name a later one.
CREATE TABLE IF NOT EXISTS messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER NOT NULL, group_id TEXT,
    sent_at INTEGER NOT NULL, visible_at INTEGER NOT NULL, receives INTEGER NOT NULL DEFAULT 0,
    first_received_at INTEGER, message_id TEXT NOT NULL, dead_letter_source TEXT,
    attributes TEXT NOT NULL, system_attributes TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS event_buses (name TEXT PRIMARY KEY, created_at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS event_rules (
    bus TEXT NOT NULL, name TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (bus, name));
CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY, created_at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS objects (
    id INTEGER PRIMARY KEY, bucket TEXT NOT NULL, key TEXT NOT NULL, size INTEGER NOT NULL,
    etag TEXT NOT NULL, modified_at INTEGER NOT NULL, headers TEXT NOT NULL, body BLOB NOT NULL,
    UNIQUE (bucket, key));
CREATE TABLE IF NOT EXISTS parameters (
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, value TEXT NOT NULL, version INTEGER NOT NULL,
    modified_at INTEGER NOT NULL);
";

/// The open database.
pub(crate) struct Store {
    connection: Mutex<Connection>,
}

impl Store {
    /// Opens the file, or a database in memory.
    pub(crate) fn open(file: Option<&Path>) -> rusqlite::Result<Self> {
        let connection = match file {
            Some(file) => Connection::open(file)?,
            None => Connection::open_in_memory()?,
        };
        connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")?;
        connection.set_prepared_statement_cache_capacity(64);
        connection.execute_batch(SCHEMA)?;
        Ok(Self { connection: Mutex::new(connection) })
    }

    /// The connection, for reads and for writes of one statement.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Connection> {
        // A panic while holding the lock rolls its transaction back, so the connection stays usable.
        self.connection.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs `work` in one transaction: all of it is committed, or none.
    pub(crate) fn transaction<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }
}
