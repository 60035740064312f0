//! Jobs: DAGs of tasks, driven by the ledger. The built-in drainer `jobs` meets every event about a task or a job
//! and does what follows from it; everything that it does may be done again, by anybody, at any time.
//!
//! A task waits for one unfinished parent at a time. Its mark at that parent is put first, and then the parent's
//! outcome is read; a parent that ends writes its outcome first, and then reads who waits. So whoever comes second
//! sees the other, and a completion costs requests in proportion to its own edges. That a task starts once is
//! decided by its record, which is put if there is none.

mod add;
mod advance;
mod complete;
mod create;
mod drive;
mod ended;
mod failure;
mod input;
mod outcome;
mod output;
mod query;
mod record;
mod resume;
mod start;
mod submit;

pub(crate) use ended::{outcome_of, says_job};
pub use query::{JobDetails, JobPage, JobTaskDetails, JobView};
pub use record::JobRecord;
pub(crate) use record::{JobEnd, JobNode, Outcome};
pub use submit::{AddedTasks, JobSubmission, SubmittedJob, SubmittedJobTask};
