//! All tables in one file: dynoxide's own server on a thread of its own, reached over one connection that no other client
//! can make.
//!
//! Its handlers block the thread they run on, so it gets a current-thread runtime to itself. The order of
//! checks and the wording of its errors live in its server rather than in its library, and clients depend on
//! them; hence a hop over a kept-alive connection instead of calls into the library. Only clients in this process, which
//! ask for what the ledger needs and nothing else, are spared it.

use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use dynoxide::Database;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// dynoxide reads key conditions by recursion: 4,096 bytes of parentheses, which DynamoDB allows, take some megabytes. The system
/// gives only what is used.
const STACK_BYTES: usize = 64 * 1024 * 1024;

/// The tables, and the ways to them.
pub(super) struct Store {
    pub(super) database: Database,
    /// The runtime of its thread.
    pub(super) runtime: Handle,
}

/// The threads that serve the tables; dropping it ends them in their own time.
pub(crate) struct Threads {
    stop_server: oneshot::Sender<()>,
    stop_sweeps: mpsc::Sender<()>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Ends the threads and waits until the tables are closed.
    pub(crate) fn stop(self) {
        drop((self.stop_server, self.stop_sweeps));
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the table store panicked");
            }
        }
    }
}

/// Opens the tables of a file; without one they are kept in memory.
pub(super) fn open(file: Option<&Path>) -> Result<Database, String> {
    let open = || -> dynoxide::Result<Database> {
        let Some(file) = file else { return Database::memory() };
        let database = Database::new(&file.to_string_lossy())?;
        // The pair leaves SQLite at synchronous = NORMAL, which survives a kill; there is no other way to ask.
        database.enable_bulk_loading()?;
        database.disable_bulk_loading()?;
        Ok(database)
    };
    open().map_err(|error| error.to_string())
}

/// Where the tables are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    File,
    Memory,
}

/// Serves tables.
pub(super) fn serve(database: Database, medium: Medium) -> Result<(Store, Threads), String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;

    let store = Store { database: database.clone(), runtime: runtime.handle().clone() };
    let (stop_server, stopped) = oneshot::channel::<()>();
    // The thread serves whatever is spawned on its runtime, until the sender is dropped.
    let server =
        std::thread::Builder::new().name("dynamodb".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            runtime.block_on(async move {
                let _ = stopped.await;
            });
        });
    let (stop_sweeps, sweeps_stopped) = mpsc::channel();
    let mut threads = vec![server.map_err(|e| e.to_string())?];
    if medium == Medium::File {
        let sweeper = std::thread::Builder::new().name("dynamodb-ttl".to_owned());
        let sweeper = sweeper.spawn(move || sweep(&database, &sweeps_stopped));
        threads.push(sweeper.map_err(|e| e.to_string())?);
    }
    Ok((store, Threads { stop_server, stop_sweeps, threads }))
}

/// Deletes expired items now and then, as AWS does in its own time. It goes by the machine's clock, so tables in
/// memory, which tests use with clocks of their own, are left alone.
fn sweep(database: &Database, stopped: &mpsc::Receiver<()>) {
    while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(SWEEP_EVERY) {
        if let Err(error) = database.sweep_ttl() {
            tracing::warn!(%error, "could not delete expired items; retrying later");
        }
    }
}
