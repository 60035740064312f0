//! What an AWS service answered, classified once: the callers decide by [`Fault`], never by text.

use std::error::Error;

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata, SdkError},
    operation::transact_write_items::TransactWriteItemsError,
};

/// What kind of trouble it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A condition did not hold: another writer was first. The same request fails again, but the whole operation may
    /// succeed later, since its caller first reads again; so [`StoreError::is_transient`] counts it.
    ConditionFailed,
    /// A transaction on the same record was under way; the same call may succeed in a moment.
    Conflict,
    /// Too much at once; the same call succeeds later.
    Throttled,
    /// The thing is not there.
    Missing,
    /// The request itself is wrong; it fails again.
    Rejected,
    /// The credentials do not allow it; the call fails until an operator grants the permission.
    Denied,
    /// No answer, or trouble at the other end; the call may or may not have taken effect.
    Unavailable,
}

/// A call to an AWS service that did not succeed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} failed ({}): {message}", code.as_deref().unwrap_or("no answer"))]
pub struct StoreError {
    /// What was called.
    pub operation: &'static str,
    /// What kind of trouble it is.
    pub fault: Fault,
    /// The service's own code.
    pub code: Option<String>,
    /// The service's own words.
    pub message: String,
    /// The error of the SDK, if there was one.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// Classifies an SDK error.
    pub fn new<E, R>(operation: &'static str, error: SdkError<E, R>) -> Self
    where
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
        R: std::fmt::Debug + Send + Sync + 'static,
    {
        let code = error.as_service_error().and_then(|e| e.code()).map(str::to_owned);
        let said = error.as_service_error().and_then(|e| e.message()).map(str::to_owned);
        let cancelled = error.as_service_error().and_then(cancellation);
        let fault = match (&code, &error) {
            _ if cancelled.is_some() => cancelled.unwrap_or(Fault::Unavailable),
            (Some(code), _) => fault_of(code),
            (None, SdkError::ConstructionFailure(_)) => Fault::Rejected,
            (None, _) => Fault::Unavailable,
        };
        let message = said.unwrap_or_else(|| innermost(&error));
        Self { operation, fault, code, message, source: Some(Box::new(error)) }
    }

    /// An answer that cannot be understood: the record is not what this version writes.
    pub fn unreadable(operation: &'static str, what: impl Into<String>) -> Self {
        Self {
            operation,
            fault: Fault::Rejected,
            code: Some("Unreadable".into()),
            message: what.into(),
            source: None,
        }
    }

    /// An error that an answer reports in a form of its own, such as one entry of a batch.
    pub fn told(operation: &'static str, fault: Fault, code: &str, message: impl Into<String>) -> Self {
        Self { operation, fault, code: Some(code.to_owned()), message: message.into(), source: None }
    }

    /// Whether the operation may succeed later: by the same request, or after the caller has read again.
    pub fn is_transient(&self) -> bool {
        matches!(self.fault, Fault::Throttled | Fault::Unavailable | Fault::Conflict | Fault::ConditionFailed)
    }
}

fn innermost(error: &dyn Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

/// Why a transaction was cancelled: one fault for all its writes.
fn cancellation<E: Error + 'static>(error: &E) -> Option<Fault> {
    let error: &(dyn Error + 'static) = error;
    match error.downcast_ref::<TransactWriteItemsError>()? {
        TransactWriteItemsError::TransactionCanceledException(why) => {
            let reasons = why.cancellation_reasons().iter();
            Some(fault_of_cancellation(reasons.filter_map(|reason| reason.code())))
        }
        _ => None,
    }
}

/// The weightiest of several reasons: a failed condition, then a mistake in the request, then throttling (which asks for
/// longer pauses than a conflict), then a conflict.
pub(crate) fn fault_of_cancellation<'a>(reasons: impl Iterator<Item = &'a str>) -> Fault {
    let faults: Vec<Fault> = reasons.filter(|code| *code != "None").map(fault_of).collect();
    let weightiest = [Fault::ConditionFailed, Fault::Rejected, Fault::Throttled, Fault::Conflict];
    weightiest.into_iter().find(|fault| faults.contains(fault)).unwrap_or(Fault::Unavailable)
}

fn fault_of(code: &str) -> Fault {
    match code {
        "ConditionalCheckFailedException"
        | "ConditionalCheckFailed"
        | "ParameterAlreadyExists"
        | "PreconditionFailed"
        | "ResourceInUseException" => Fault::ConditionFailed,
        "TransactionConflictException"
        | "TransactionConflict"
        | "TransactionInProgressException"
        | "ConditionalRequestConflict" => Fault::Conflict,
        "ProvisionedThroughputExceededException"
        | "ProvisionedThroughputExceeded"
        | "ThrottlingException"
        | "ThrottlingError"
        | "Throttling"
        | "RequestLimitExceeded"
        | "SlowDown"
        | "TooManyRequestsException"
        | "RequestThrottled"
        | "LimitExceededException" => Fault::Throttled,
        "ResourceNotFoundException"
        | "NoSuchKey"
        | "NoSuchBucket"
        | "NotFound"
        | "ParameterNotFound"
        | "QueueDoesNotExist"
        | "AWS.SimpleQueueService.NonExistentQueue" => Fault::Missing,
        "ValidationException"
        | "ValidationError"
        | "ItemCollectionSizeLimitExceeded"
        | "ItemCollectionSizeLimitExceededException"
        | "UnknownOperationException"
        | "InvalidParameterValue"
        | "SerializationException" => Fault::Rejected,
        "AccessDeniedException"
        | "AccessDenied"
        | "UnrecognizedClientException"
        | "InvalidSignatureException"
        | "ExpiredTokenException" => Fault::Denied,
        _ => Fault::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttling_conflict_refusal_and_validation_are_different_values() {
        for (code, fault) in [
            ("ProvisionedThroughputExceededException", Fault::Throttled),
            ("ThrottlingException", Fault::Throttled),
            ("RequestThrottled", Fault::Throttled),
            ("TransactionConflictException", Fault::Conflict),
            ("ConditionalCheckFailedException", Fault::ConditionFailed),
            ("ValidationException", Fault::Rejected),
            ("InternalServerError", Fault::Unavailable),
        ] {
            assert_eq!(fault_of(code), fault, "{code}");
        }
    }

    #[test]
    fn a_cancelled_transaction_is_what_its_weightiest_reason_is() {
        for (reasons, fault) in [
            (&["None", "TransactionConflict"][..], Fault::Conflict),
            (&["ThrottlingError", "TransactionConflict"], Fault::Throttled),
            (&["ProvisionedThroughputExceeded"], Fault::Throttled),
            (&["TransactionConflict", "ConditionalCheckFailed"], Fault::ConditionFailed),
            (&["ValidationError", "None"], Fault::Rejected),
            (&[], Fault::Unavailable),
        ] {
            assert_eq!(fault_of_cancellation(reasons.iter().copied()), fault, "{reasons:?}");
        }
    }
}
