//! Why something was not done: one type for the components on the outbox, so that a failed effect says to each of them the same.

use ledgerline_alert::AlertError;
use ledgerline_event::{Illegal, Invalid};
use ledgerline_ledger::EmitError;
use ledgerline_store::StoreError;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum ComponentError {
    /// A service did not do its part; the same call may succeed later.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A sent event is accepted, but some of the runs that wait for it are not notified yet. The sweep notifies them.
    #[error("the event is accepted, but some runs are not notified yet: {0}")]
    NotNotified(#[source] StoreError),
    /// The bus did not take an event.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// An alert was not sent.
    #[error(transparent)]
    Alert(#[from] AlertError),
    /// The request is wrong, and where.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// There is no such thing.
    #[error("{what}: there is no `{id}`{hint}")]
    Unknown {
        /// What was asked for.
        what: &'static str,
        /// By which name.
        id: String,
        /// What to do about it.
        hint: String,
    },
    /// The run is not in a state for it.
    #[error(transparent)]
    Illegal(#[from] Illegal),
    /// It cannot be done as things stand.
    #[error("{0}")]
    Refused(String),
}
