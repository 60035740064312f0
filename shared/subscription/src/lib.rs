//! Who listens to which events, and what is started then: the record of a subscription and
//! of a workflow type, and the compiled set that decides about an event. Pure: no IO, no
//! clock, no randomness. Whatever a tenant may write here (globs, filters, JSONPaths) is
//! hostile until checked, and a stored one that no longer compiles fails its own events only.

mod envelope;
mod explain;
mod filter;
mod glob;
mod glob_set;
mod mapper;
mod matcher;
mod path;
mod pattern;
mod place;
mod row;
mod subscription;
mod template;
mod workflow_type;

pub use explain::Explanation;
pub use filter::{FILTER_MAX, Filter};
pub use glob::{GLOB_MAX, reserved_beginning};
pub use glob_set::GlobSet;
pub use mapper::Recipes;
pub use matcher::{Decision, FAN_OUT, MAX_VIA, Matcher, Verdict};
pub use path::{PATH_MAX, Path};
pub use subscription::{OnFailure, Subscription};
pub use template::{TemplateTask, fill};
pub use workflow_type::{Kind, WorkflowType};
