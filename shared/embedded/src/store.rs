//! The one SQLite file behind queues, buses, objects and parameters.
//!
//! WAL with `synchronous = NORMAL`: a commit reaches the operating system before the answer is sent, so it
//! survives the death of this process; only the loss of power may take the last moments.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, Transaction, params};

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, settings TEXT NOT NULL,
    created_at INTEGER NOT NULL, modified_at INTEGER NOT NULL);
-- AUTOINCREMENT: a receipt of a deleted message must never name a later one.
CREATE TABLE IF NOT EXISTS messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER NOT NULL, group_id TEXT,
    sent_at INTEGER NOT NULL, visible_at INTEGER NOT NULL, receives INTEGER NOT NULL DEFAULT 0,
    first_received_at INTEGER, message_id TEXT NOT NULL, dead_letter_source TEXT,
    attributes TEXT NOT NULL, system_attributes TEXT NOT NULL, body TEXT NOT NULL,
    urgent INTEGER NOT NULL DEFAULT 0);
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
CREATE TABLE IF NOT EXISTS probe (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, room BLOB NOT NULL);
";

/// What a probe writes: a disk with less room than this takes no more work.
const PROBE_BYTES: usize = 64 * 1024;

/// The open database.
pub(crate) struct Store {
    connection: Mutex<Connection>,
    /// When a transaction last failed, and why.
    failed: Mutex<Option<(Instant, String)>>,
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
        let has_urgent = "SELECT count(*) FROM pragma_table_info('messages') WHERE name = 'urgent'";
        if connection.query_row(has_urgent, [], |row| row.get::<_, i64>(0))? == 0 {
            // A folder of an earlier version.
            connection.execute_batch("ALTER TABLE messages ADD COLUMN urgent INTEGER NOT NULL DEFAULT 0")?;
        }
        Ok(Self { connection: Mutex::new(connection), failed: Mutex::default() })
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
        let done = self.attempt(work);
        if let Err(error) = &done {
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) =
                Some((Instant::now(), error.to_string()));
        }
        done
    }

    fn attempt<T>(&self, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    /// Writes something and reads it again.
    pub(crate) fn probe(&self, now: u64) -> rusqlite::Result<()> {
        self.attempt(|tx| {
            let room = vec![0_u8; PROBE_BYTES];
            tx.execute("INSERT OR REPLACE INTO probe (id, at, room) VALUES (1, ?1, ?2)", params![now, room])?;
            tx.query_row("SELECT at FROM probe WHERE id = 1", [], |row| row.get::<_, u64>(0)).map(drop)
        })
    }

    /// Why a transaction failed within the last while, if one did.
    pub(crate) fn failed_within(&self, while_: Duration) -> Option<String> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.as_ref().filter(|(at, _)| at.elapsed() < while_).map(|(_, reason)| reason.clone())
    }
}
