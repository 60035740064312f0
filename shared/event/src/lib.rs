//! What a Ledgerline event is: its ids, its envelope, its sixteen keys, the catalogue of
//! the twelve event types that the system itself emits, and the rules by which a saver
//! admits one. Pure: no IO, no clock, no randomness; `now` and ids come in as arguments.

mod admit;
pub mod catalogue;
mod content;
mod envelope;
pub mod glob;
mod id;
mod invalid;
pub mod keys;
mod name;
pub mod overflow;
mod time;

pub use admit::{Admitted, MAX_AHEAD_MS, Refusal, admit};
pub use content::content_hash;
pub use envelope::{Context, Event, Keyed, Properties, TEXT_MAX};
pub use id::Kind;
pub use invalid::Invalid;
pub use name::Name;
pub use time::{Millis, Seconds};
