//! Starting and stopping.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::dynamo::{Dynamo, Threads};
use crate::gateway::{Gateway, router};
use crate::in_process::InProcess;
use crate::store::Store;
use crate::{Options, Queues, Service};

/// How long requests in flight may take to finish once stopping.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// A process just killed keeps its lock until the system has cleared it away.
const CLAIM_WITHIN: Duration = Duration::from_secs(1);

/// Why the services did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process listens on the port.
    #[error("port {0} on 127.0.0.1 is already in use")]
    PortTaken(u16),
    /// Another process works with the folder.
    #[error("{0} is in use by another process")]
    FolderInUse(PathBuf),
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
    server: JoinHandle<io::Result<()>>,
    tables: Threads,
    /// Held for as long as we use the folder.
    _folder: Option<File>,
}

impl Embedded {
    /// Opens the folder and serves it; ready when this returns.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let folder = match &options.data {
            Some(data) => Some(claim(data).await?),
            None => None,
        };
        let file = |name: &str| options.data.as_ref().map(|data| data.join(name));
        let listener = bind(options.port).await?;
        let address = listener.local_addr().map_err(|source| io_error("the port", source))?;
        let store = Store::open(file("services.sqlite").as_deref())?;
        let (dynamo, tables) = Dynamo::start(file("tables.sqlite").as_deref()).map_err(StartError::Tables)?;
        let gateway = Arc::new(Gateway::new(options, store, dynamo, format!("http://{address}"))?);

        let (stop, mut stopped) = watch::channel(false);
        let shutdown = async move {
            // A dropped sender stops the server too.
            let _ = stopped.wait_for(|stop| *stop).await;
        };
        let listener = listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                tracing::debug!(%error, "answers may be delayed");
            }
        });
        let app = router(gateway.clone());
        let server =
            tokio::spawn(async move { axum::serve(listener, app).with_graceful_shutdown(shutdown).await });
        Ok(Self { gateway, address, stop, runtime: Handle::current(), server, tables, _folder: folder })
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

async fn claim(folder: &Path) -> Result<File, StartError> {
    let error = |source| io_error(&folder.display().to_string(), source);
    std::fs::create_dir_all(folder).map_err(error)?;
    let lock = File::create(folder.join("lock")).map_err(error)?;
    let deadline = Instant::now() + CLAIM_WITHIN;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(TryLockError::WouldBlock) => return Err(StartError::FolderInUse(folder.to_owned())),
            Err(TryLockError::Error(source)) => return Err(error(source)),
        }
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
