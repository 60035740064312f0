//! How an embedded AWS is started.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Admission, Interceptor};

/// The time in milliseconds since the epoch, as the services see it.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What to start and where.
#[derive(Clone)]
pub struct Options {
    /// The folder that holds everything; `None` keeps it in memory.
    pub data: Option<PathBuf>,
    /// The port on 127.0.0.1; 0 picks a free one.
    pub port: u16,
    /// The region that appears in ARNs and events.
    pub region: String,
    /// Time for message visibility, delays, retention and timestamps.
    pub clock: Clock,
    /// Called around every request, to inject faults or to observe.
    pub interceptor: Option<Interceptor>,
    /// How many events may wait in a queue; without it, any number.
    pub admission: Option<Admission>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            data: None,
            port: 0,
            region: "us-east-1".to_owned(),
            clock: system_clock(),
            interceptor: None,
            admission: None,
        }
    }
}

/// The clock of the machine.
pub fn system_clock() -> Clock {
    Arc::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
