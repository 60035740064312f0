//! Jobs: DAGs of tasks, driven by the ledger. The built-in drainer `jobs` reads every event about a task or a
//! job and does what follows from it. Each of its actions is idempotent: any process may repeat it at any
//! time.
//!
//! A task waits for one unfinished parent at a time. The drainer puts the task's mark at that parent, and
//! then reads the parent's outcome. When a parent ends, the drainer writes the outcome, and then reads the
//! marks. So the later of the two sees the earlier one, and a completion costs requests in proportion to its
//! own edges. A task starts once, because its record is put only if there is none.

mod complete;
mod components;
mod counters;
mod create;
mod dependencies;
mod dependency_outputs;
mod event_loop;
mod failure;
mod input;
mod new_records;
mod on_task_ended;
mod query;
mod resume;
mod start;
mod start_children;
mod submit;

pub use components::{EndListener, Ended, JobInputs, Jobs};
pub use event_loop::{Handled, JobDriver, Stop};
pub use on_task_ended::{names_own_job, outcome_of};
pub use query::{JobDetails, JobPage, JobTaskDetails, JobView};
pub use submit::{AddedTasks, JobSubmission, SubmittedJob, SubmittedJobTask};
