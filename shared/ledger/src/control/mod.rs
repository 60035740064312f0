//! Control records: everything that is decided, as against what is recorded. All of it is in
//! one table, read strongly consistent, and changed by conditional writes only.

pub mod api_key;
pub mod failed;
pub mod keys;
pub mod marker;
mod table;

pub use table::{ControlTable, DUE_INDEX, Item, LIST_INDEX, item, key_item, read};
