//! The AWS side of an event: emitting it, saving it, reading it back whole, and the control
//! records by which savers, drainers and operators agree. Talks to AWS through SDK clients
//! only; the time is always an argument or an injected [`Clock`].

mod clients;
mod clock;
pub mod control;
mod draft;
mod emit;
mod filter;
mod late;
mod local_state;
mod names;
mod overflow;
mod parameter;
mod patience;
mod query;
mod save;
mod settings;
mod storable;
mod store_error;
pub mod telemetry;
mod timeline;

pub use clients::{Clients, for_long_polls, sdk_config};
pub use clock::{Clock, system_clock};
pub use draft::Draft;
pub use emit::{DETAIL_TYPE, EmitError, Emitter, Origin, SealedEvent};
pub use filter::{CheckedFilter, EventFilter};
pub use local_state::{LocalState, NoLocalState};
pub use names::Names;
pub use overflow::Payloads;
pub use parameter::parameter;
pub use patience::{Hindrance, Patience};
pub use query::{EventQuery, Order, Page, QueryError, Reader};
pub use save::{Outcome, SaveError, Saver};
pub use settings::{MissingVariable, optional, required};
pub use storable::check as check_storable;
pub use store_error::{Fault, StoreError};
pub use timeline::{Found, Place, Timeline};
