//! The ledger: emitting an event, saving it, and reading it back whole.
//!
//! It promises that an event whose save was acknowledged is in the events table once, and that an event behind a
//! drainer's watermark is among the late arrivals. It stores events, and through the store the markers of idempotency
//! keys, pointers to late arrivals, and tenants. All requests to the events table are in `events_table`. Senders, the
//! save function, drainers and readers call it. The time is always an argument or an injected [`Clock`].

mod clients;
mod clock;
mod draft;
mod emit;
mod env_var;
mod events_table;
mod filter;
mod json_limits;
mod local_state;
mod query;
mod redrive;
mod resource_names;
mod save;
mod ssm_parameter;
pub mod telemetry;
mod timeline;

pub use clients::{Clients, for_long_polls, sdk_config};
pub use clock::{Clock, system_clock};
pub use draft::Draft;
pub use emit::{DETAIL_TYPE, EmitError, EmitScope, Emitter, SealedEvent};
pub use env_var::{MissingVariable, optional, required};
pub use events_table::Found;
pub use filter::{CheckedFilter, EventFilter};
pub use json_limits::check as check_storable;
pub use local_state::{LocalState, NoLocalState};
pub use query::{EventQuery, Order, Page, QueryError, Reader};
pub use redrive::{Deliveries, Redrive, RedriveError, RedriveOutcome};
pub use resource_names::Names;
pub use save::{Outcome, SaveError, Saver};
pub use ssm_parameter::parameter;
pub use timeline::{Timeline, TimelineEvent};
