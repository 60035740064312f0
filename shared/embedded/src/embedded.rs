//! Starts and stops the services.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::dynamo::{Dynamo, Threads};
use crate::folder::{Files, Folder};
use crate::gateway::{Gateway, router};
use crate::in_process::InProcess;
use crate::serve::{ConnectionTimeouts, serve};
use crate::store::Store;
use crate::{Options, Queues, Service};

/// How long requests in flight may take to finish once stopping.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Why the services did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process listens on the port.
    #[error("port {0} on 127.0.0.1 is already in use")]
    PortTaken(u16),
    /// Another process works with the folder.
    #[error("{0} is in use by another process")]
    FolderInUse(PathBuf),
    /// A file of the folder is gone or empty, and the file beside it is in use.
    #[error(
        "{} is missing or empty, and {} beside it has data: put the missing file back from a backup, or remove the \
         whole folder to begin with an empty ledger",
        lost.display(), beside.display()
    )]
    Incomplete {
        /// The file that is gone.
        lost: PathBuf,
        /// The file that has data.
        beside: PathBuf,
    },
    /// A file of the folder cannot be read as what it is.
    #[error(
        "{} is damaged ({reason}): put the whole folder back from a backup, or remove it to begin with an empty \
         ledger; `sqlite3 FILE .recover` may save what is in it",
        file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What SQLite says.
        reason: String,
    },
    /// The folder or the port cannot be used.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The store of queues, buses, objects and parameters cannot be opened.
    #[error("the store cannot be opened: {0}")]
    Store(#[from] rusqlite::Error),
    /// The tables cannot be opened.
    #[error("the tables cannot be opened: {0}")]
    Tables(String),
}

/// The services, running.
pub struct Embedded {
    gateway: Arc<Gateway>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    runtime: Handle,
    server: JoinHandle<()>,
    tables: Threads,
    files: Option<Files>,
    /// Held for as long as we use the folder.
    _folder: Option<Folder>,
}

impl Embedded {
    /// Opens the folder and serves it; ready when this returns.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let folder = match &options.data {
            Some(data) => Some(Folder::claim(data).await?),
            None => None,
        };
        let listener = bind(options.port).await?;
        let address = listener.local_addr().map_err(|source| io_error("the port", source))?;
        let store = Store::open(folder.as_ref().map(|folder| folder.services.as_path()))?;
        let tables = folder.as_ref().map(|folder| folder.tables.as_path());
        let (dynamo, tables) = Dynamo::start(tables).map_err(StartError::Tables)?;
        let files = folder.as_ref().map(Folder::files);
        let gateway = Arc::new(Gateway::new(options, store, dynamo, format!("http://{address}"))?);

        let (stop, stopped) = watch::channel(false);
        let app = router(gateway.clone());
        let server = tokio::spawn(serve(Arc::new(listener), app, ConnectionTimeouts::default(), stopped));
        Ok(Self {
            gateway,
            address,
            stop,
            runtime: Handle::current(),
            server,
            tables,
            files,
            _folder: folder,
        })
    }

    /// Where AWS clients find the services: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// For AWS clients in this process: their requests are served without a connection. They need the endpoint all the
    /// same, as part of what they ask for.
    pub fn http_client(&self) -> InProcess {
        InProcess { gateway: Arc::downgrade(&self.gateway), runtime: self.runtime.clone() }
    }

    /// The queues, for functions in this process.
    pub fn queues(&self) -> Arc<Queues> {
        self.gateway.queues.clone()
    }

    /// Whether queues, buses, objects and parameters can be written and read, by doing both.
    pub fn prober(&self) -> Prober {
        Prober { gateway: Arc::downgrade(&self.gateway), files: self.files.clone() }
    }

    /// How often each operation was called since the start or the last reset.
    pub fn requests(&self) -> BTreeMap<(Service, String), u64> {
        self.gateway.requests().clone()
    }

    /// Starts counting anew.
    pub fn reset_requests(&self) {
        self.gateway.requests().clear();
    }

    /// Wakes waiting receives after a test moved the clock.
    pub fn clock_moved(&self) {
        self.gateway.queues.clock_moved();
    }

    /// Takes no more requests, lets those in flight finish within a bound, ends waiting receives.
    pub async fn stop(self) {
        self.gateway.queues.close();
        self.stop.send_replace(true);
        if tokio::time::timeout(STOP_WITHIN, self.server).await.is_err() {
            tracing::warn!("some requests did not finish in time");
        }
        let tables = self.tables;
        let joined = tokio::task::spawn_blocking(move || tables.stop());
        if tokio::time::timeout(STOP_WITHIN, joined).await.is_err() {
            tracing::warn!("the table store did not finish in time");
        }
    }
}

/// Probes the services, for as long as they run.
#[derive(Clone)]
pub struct Prober {
    gateway: Weak<Gateway>,
    files: Option<Files>,
}

impl Prober {
    /// Writes to the store of queues, buses, objects and parameters, and reads.
    pub fn probe(&self) -> Result<(), String> {
        match self.gateway.upgrade() {
            Some(gateway) => gateway.probe(),
            None => Err("the services have stopped".to_owned()),
        }
    }

    /// Whether the files of the folder are still the ones that are written.
    pub fn has_its_files(&self) -> Result<(), String> {
        self.files.as_ref().map_or(Ok(()), Files::check)
    }

    /// What failed within the last while through no fault of a sender.
    pub fn failed_within(&self, while_: Duration) -> Option<String> {
        self.gateway.upgrade().and_then(|gateway| gateway.failed_within(while_))
    }
}

async fn bind(port: u16) -> Result<TcpListener, StartError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => StartError::PortTaken(port),
        _ => io_error(&format!("port {port}"), error),
    })
}

fn io_error(what: &str, source: io::Error) -> StartError {
    StartError::Io { what: what.to_owned(), source }
}
