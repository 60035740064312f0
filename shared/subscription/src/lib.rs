//! Subscriptions and workflow types: which events start what, and with which input.
//!
//! A drainer compiles the subscriptions of a tenant into a [`Matcher`] and asks it for a [`Decision`] about each event.
//! The API checks subscriptions and workflow types before it stores them. The crate promises that text from a tenant
//! (globs, filters, JSONPaths) can neither panic nor take long, and that a stored subscription which no longer compiles
//! fails only the events that its glob matches. It stores nothing and is pure: no IO, no clock, no randomness.
//!
//! - `subscription`, `workflow_type`, `template`: the records, and the check before they are stored.
//! - `matcher`, `explain`: the decision about an event, and its reason in words.
//! - `glob`, `glob_set`: the event types that a subscription reaches; many globs at once.
//! - `filter`: CEL expressions, with `type_check` and `analysis` for what can be refused when a filter is written, and
//!   `regex_cache` for `matches`.
//! - `mapper`, `path`: recipes for the input of a start; JSONPath.
//! - `envelope`, `source`: the fields of an event, and the JSON that paths and filters read.
//! - `position`: where in a text an error is.

mod envelope;
mod explain;
mod filter;
mod glob;
mod glob_set;
mod mapper;
mod matcher;
mod path;
mod position;
mod regex_cache;
mod source;
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
