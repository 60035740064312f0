//! Several writes, all or none, and why they were not done.

use std::time::Duration;

use aws_sdk_dynamodb::{
    error::SdkError, operation::transact_write_items::TransactWriteItemsError, types::CancellationReason,
};
use ledgerline_ledger::StoreError;

use crate::DispatchError;

/// Transactions on one record collide; each attempt lets at least one through.
const ATTEMPTS: u32 = 60;
/// The longest pause between two. Of many who want the same record one is through each time, so it is better to ask often.
const LONGEST_MS: u64 = 100;

/// Why a transaction was not done.
pub(crate) enum Cancelled {
    /// These writes were refused by their conditions.
    Refused(Vec<usize>),
    /// Something else was in the way.
    Busy,
}

/// What became of a transaction.
pub(crate) fn cancelled<T, R>(
    answer: Result<T, SdkError<TransactWriteItemsError, R>>,
) -> Result<Option<Cancelled>, DispatchError>
where
    R: std::fmt::Debug + Send + Sync + 'static,
{
    let error = match answer {
        Ok(_) => return Ok(None),
        Err(error) => error,
    };
    let Some(TransactWriteItemsError::TransactionCanceledException(why)) = error.as_service_error() else {
        return Err(StoreError::new("TransactWriteItems", error).into());
    };
    let reasons: &[CancellationReason] = why.cancellation_reasons();
    let with = |code: &str| {
        let positions = reasons.iter().enumerate().filter(|(_, reason)| reason.code() == Some(code));
        positions.map(|(position, _)| position).collect::<Vec<_>>()
    };
    let refused = with("ConditionalCheckFailed");
    if !refused.is_empty() {
        return Ok(Some(Cancelled::Refused(refused)));
    }
    if !with("ValidationError").is_empty() {
        let mut error = StoreError::new("TransactWriteItems", error);
        error.fault = ledgerline_ledger::Fault::Rejected;
        return Err(error.into());
    }
    Ok(Some(Cancelled::Busy))
}

/// Waits a moment before the next attempt, and not for ever.
pub(crate) async fn busy(attempt: u32) -> Result<u32, DispatchError> {
    if attempt == ATTEMPTS {
        let message = "the record is changed by others all the time";
        return Err(StoreError::told(
            "TransactWriteItems",
            ledgerline_ledger::Fault::Conflict,
            "TransactionConflict",
            message,
        )
        .into());
    }
    tokio::time::sleep(Duration::from_millis((5 << attempt.min(10)).min(LONGEST_MS))).await;
    Ok(attempt + 1)
}

pub(crate) fn built(error: aws_sdk_dynamodb::error::BuildError) -> DispatchError {
    StoreError::unreadable("TransactWriteItems", error.to_string()).into()
}
