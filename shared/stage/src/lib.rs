//! The components of one stage, wired to each other, and what of them needs an operator's attention.
//!
//! It gives the outbox what executes effects on runs, drains what a start sends and who drives jobs, and jobs who hears of ends: so
//! components that live side by side reach each other by values. It stores nothing. Functions, local mode, the API and the
//! command line make a [`Stage`].

mod attention;
mod components;
mod start_effects;

pub use attention::{Attention, Note, NoteKind};
pub use components::{Stage, StageOptions};
