use std::{sync::Arc, time::SystemTime};

use ledgerline_event::Millis;

/// Where the time comes from: the system on AWS and on a laptop, a test's own hand in tests.
pub type Clock = Arc<dyn Fn() -> Millis + Send + Sync>;

/// The system's clock.
pub fn system_clock() -> Clock {
    Arc::new(|| Millis::from_system(SystemTime::now()))
}
