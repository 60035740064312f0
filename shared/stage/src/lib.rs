//! The components of one stage, wired to each other, and what of them needs an operator's attention.
//!
//! It injects callbacks: into the outbox the executor of run effects; into `drains` the factory of start effects and
//! the job driver; into `jobs` the listener for ends. So sibling crates do not depend on each other. It stores nothing.
//! The functions, local mode, the command line and the client of workflows make a [`Stage`].

mod attention;
mod components;
mod start_effects;

pub use attention::{Attention, Note, NoteKind};
pub use components::{Stage, StageOptions};
