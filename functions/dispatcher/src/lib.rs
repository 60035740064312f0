//! The function `dispatcher`: a batch of the events table's stream wakes the drainers of the tenants in it, and each
//! tick of its schedule sweeps what is due. It keeps no state of its own; `ledgerline-drains` and `ledgerline-outbox`
//! store what drainers and sweeps need.

mod handler;

pub use handler::Handler;
