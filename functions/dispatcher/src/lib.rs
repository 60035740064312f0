//! `dispatcher`: woken by the table's stream and by schedule, drains the ledger.

mod handler;

pub use handler::{Handler, tenants};
