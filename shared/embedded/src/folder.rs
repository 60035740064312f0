//! The data folder: one process at a time uses it, only its owner can read it, and a folder that lacks a file is
//! refused.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};

use crate::StartError;

/// Queues, buses, objects and parameters.
const SERVICES: &str = "services.sqlite";
/// Tables.
const TABLES: &str = "tables.sqlite";
const LOCK: &str = "lock";

/// A process just killed keeps its lock until the system has cleared it away.
const CLAIM_WITHIN: Duration = Duration::from_secs(1);

/// Larger files are not read through at every start.
const MAX_CHECKED_BYTES: u64 = 64 * 1024 * 1024;

/// A folder that this process has locked, for as long as this lives.
pub(crate) struct Folder {
    pub(crate) services: PathBuf,
    pub(crate) tables: PathBuf,
    _lock: File,
}

impl Folder {
    /// Creates the folder if it is not there, locks it, and checks its files.
    pub(crate) async fn claim(folder: &Path) -> Result<Self, StartError> {
        let error = |source| StartError::Io { what: folder.display().to_string(), source };
        make_private(folder).map_err(error)?;
        let lock = private_file(&folder.join(LOCK)).map_err(error)?;
        let deadline = Instant::now() + CLAIM_WITHIN;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(TryLockError::WouldBlock) => return Err(StartError::FolderInUse(folder.to_owned())),
                Err(TryLockError::Error(source)) => return Err(error(source)),
            }
        }
        let claimed = Self { services: folder.join(SERVICES), tables: folder.join(TABLES), _lock: lock };
        claimed.check()?;
        // SQLite gives the files beside a database the permissions of the database.
        for file in [&claimed.services, &claimed.tables] {
            private_file(file).map_err(error)?;
        }
        Ok(claimed)
    }

    /// The files as they are now, for later checks that they are still the same.
    pub(crate) fn files(&self) -> Files {
        Files([&self.services, &self.tables].map(|file| (file.clone(), identity(file))))
    }

    /// Refuses a folder that has lost one of its files, or whose files are damaged. The first start makes the services'
    /// file first, then the tables, then the queues: a folder with queues has tables.
    fn check(&self) -> Result<(), StartError> {
        let (services, tables) = (size(&self.services), size(&self.tables));
        for (file, bytes) in [(&self.services, services), (&self.tables, tables)] {
            if bytes > 0 {
                check_file(file, bytes)?;
            }
        }
        let lost = match (services, tables) {
            (0, 1..) => Some((&self.services, &self.tables)),
            (1.., 0) if has_queues(&self.services)? => Some((&self.tables, &self.services)),
            _ => None,
        };
        match lost {
            Some((lost, beside)) => {
                Err(StartError::Incomplete { lost: lost.to_owned(), beside: beside.to_owned() })
            }
            None => Ok(()),
        }
    }
}

/// The files that are in use. SQLite goes on writing to a file that was removed, and all of it is lost at the end.
#[derive(Clone)]
pub(crate) struct Files([(PathBuf, Option<Identity>); 2]);

/// Device and number of a file; where a system has none, only that it exists.
type Identity = (u64, u64);

impl Files {
    /// Fails if a file was removed from the folder or replaced; the error names the file.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.0.iter().find(|(file, opened)| identity(file) != *opened) {
            None => Ok(()),
            Some((file, _)) => Err(format!(
                "{} was removed or replaced while it is in use: what is accepted from now on is lost when the process ends",
                file.display()
            )),
        }
    }
}

fn identity(file: &Path) -> Option<Identity> {
    let metadata = fs::metadata(file).ok()?;
    #[cfg(unix)]
    let identity = {
        use std::os::unix::fs::MetadataExt;
        (metadata.dev(), metadata.ino())
    };
    #[cfg(not(unix))]
    let identity = (0, u64::from(metadata.is_file()));
    Some(identity)
}

fn size(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |metadata| metadata.len())
}

fn check_file(file: &Path, bytes: u64) -> Result<(), StartError> {
    let damaged = |reason: String| StartError::Damaged { file: file.to_owned(), reason };
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE)
        .map_err(|error| damaged(error.to_string()))?;
    let check = match bytes <= MAX_CHECKED_BYTES {
        true => "PRAGMA quick_check(1)",
        false => "SELECT 'ok' FROM (SELECT count(*) FROM sqlite_schema)",
    };
    match connection.query_row(check, [], |row| row.get::<_, String>(0)) {
        Ok(verdict) if verdict == "ok" => Ok(()),
        Ok(verdict) => Err(damaged(verdict.split_whitespace().collect::<Vec<_>>().join(" "))),
        Err(error) => Err(damaged(error.to_string())),
    }
}

fn has_queues(file: &Path) -> Result<bool, StartError> {
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'queues'";
    if connection.query_row(tables, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(false);
    }
    Ok(connection.query_row("SELECT count(*) FROM queues", [], |row| row.get::<_, i64>(0))? > 0)
}

/// Creates the folder for its owner alone. A folder that existed with other files in it keeps its permissions: it may
/// be the owner's home.
fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)?;
    #[cfg(unix)]
    if folder.join(LOCK).exists() || fs::read_dir(folder)?.next().is_none() {
        fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    }
    Ok(())
}

/// Opens or creates a file that only its owner may read from now on.
fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(file)
}
