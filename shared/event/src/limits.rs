//! The limits that a request may set for one task.

use crate::Invalid;

/// The longest timeout of a task: SQS hides a message no longer.
const TIMEOUT_MAX: u64 = 43_200_000;
/// The most attempts of a task.
const ATTEMPTS_MAX: u32 = 100;

/// Checks the limits of a task.
pub fn check_limits(timeout_ms: Option<u64>, max_attempts: Option<u32>) -> Result<(), Invalid> {
    if let Some(ms) = timeout_ms.filter(|ms| !(1..=TIMEOUT_MAX).contains(ms)) {
        let reason = format!("is {ms}; 1 to {TIMEOUT_MAX} (twelve hours) are allowed");
        return Err(Invalid::new("timeoutMs", reason));
    }
    match max_attempts.filter(|count| !(1..=ATTEMPTS_MAX).contains(count)) {
        Some(count) => {
            let reason = format!("is {count}; 1 to {ATTEMPTS_MAX} are allowed");
            Err(Invalid::new("maxAttempts", reason))
        }
        None => Ok(()),
    }
}
