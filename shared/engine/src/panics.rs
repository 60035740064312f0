//! Code of the user may panic, when it is called, polled or dropped: the run fails then, and not its runner.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Error;

/// Runs code of the user; a panic is a retryable error with the panic's text.
pub fn catch_panic<R>(run: impl FnOnce() -> R) -> Result<R, Error> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|thrown| Error::panicked(&*thrown))
}

/// Drops a value that holds code of the user; a panic is ignored.
pub fn drop_quietly<T>(value: T) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
}
