//! Tasks: what a worker takes from the queue, the record that keeps it from running twice or ending twice, and
//! what happens when no worker can run it.

mod dead_letter;
mod end;
mod health;
mod kept;
mod lease;
mod message;
mod record;
mod shown;
mod submit;
mod summary;
mod unchanged;
mod untaken;

pub use dead_letter::Buried;
pub use end::{EndAnswer, TaskEnd};
pub use health::{HealthChecked, Thresholds};
pub use lease::{Taken, TaskLease};
pub use message::{InputRef, TaskMessage};
pub use submit::{SubmittedTask, TaskSubmission};
pub use summary::TaskPage;

pub(crate) use message::{TaskStart, group, seal};
pub(crate) use record::{Phase, TaskRecord, WithClaim};
pub(crate) use summary::SummaryRow;
