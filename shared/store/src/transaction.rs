//! Several writes, all or none, and why they were not done.

use aws_sdk_dynamodb::{
    error::SdkError, operation::transact_write_items::TransactWriteItemsError, types::CancellationReason,
};

use crate::{Fault, RequestRetry, RetryCause, StoreError};

/// Why a transaction was not done.
#[derive(Debug)]
pub enum Cancelled {
    /// These writes were refused by their conditions.
    Refused(Vec<usize>),
    /// Another writer, or throttling, was in the way: the same transaction may succeed later.
    Busy(RetryCause),
}

/// Why a transaction was not done; `None` if it was done.
pub fn cancelled<T, R>(
    answer: Result<T, SdkError<TransactWriteItemsError, R>>,
) -> Result<Option<Cancelled>, StoreError>
where
    R: std::fmt::Debug + Send + Sync + 'static,
{
    let error = match answer {
        Ok(_) => return Ok(None),
        Err(error) => error,
    };
    let reasons: &[CancellationReason] = match error.as_service_error() {
        Some(TransactWriteItemsError::TransactionCanceledException(why)) => why.cancellation_reasons(),
        _ => &[],
    };
    let refused = reasons.iter().enumerate().filter(|(_, why)| why.code() == Some("ConditionalCheckFailed"));
    let refused: Vec<usize> = refused.map(|(position, _)| position).collect();
    if !refused.is_empty() {
        return Ok(Some(Cancelled::Refused(refused)));
    }
    let was_cancelled = !reasons.is_empty();
    let error = StoreError::new("TransactWriteItems", error);
    match RetryCause::of(error.fault) {
        Some(cause) => Ok(Some(Cancelled::Busy(cause))),
        // Cancelled for a reason that this code does not know: treated like a conflict.
        None if was_cancelled && error.fault == Fault::Unavailable => {
            Ok(Some(Cancelled::Busy(RetryCause::Conflict)))
        }
        None => Err(error),
    }
}

/// Waits before the next attempt of a transaction. An error once the retries are used up.
pub async fn back_off(retries: &mut RequestRetry, why: RetryCause) -> Result<(), StoreError> {
    retries.wait("TransactWriteItems", why).await
}

/// A request that cannot be built: a mistake in the program.
pub fn build_error(error: aws_sdk_dynamodb::error::BuildError) -> StoreError {
    StoreError::unreadable("TransactWriteItems", error.to_string())
}
