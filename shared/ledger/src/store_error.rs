//! What an AWS service answered, classified once: the callers decide by [`Fault`], never by text.

use std::error::Error;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

/// What kind of trouble it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A condition did not hold: somebody else was first.
    Conflict,
    /// Too much at once; the same call succeeds later.
    Throttled,
    /// The thing is not there.
    Missing,
    /// The request itself is wrong; it fails again.
    Rejected,
    /// The credentials do not allow it; it fails until somebody changes that.
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
    #[source]
    pub(crate) source: Option<Box<dyn Error + Send + Sync>>,
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
        let fault = match (&code, &error) {
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

    /// Trouble that an answer tells of in its own way: one entry of a batch, say.
    pub fn told(operation: &'static str, fault: Fault, code: &str, message: impl Into<String>) -> Self {
        Self { operation, fault, code: Some(code.to_owned()), message: message.into(), source: None }
    }

    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self.fault, Fault::Throttled | Fault::Unavailable | Fault::Conflict)
    }
}

fn innermost(error: &dyn Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

fn fault_of(code: &str) -> Fault {
    match code {
        "ConditionalCheckFailedException"
        | "TransactionCanceledException"
        | "TransactionConflictException"
        | "TransactionInProgressException"
        | "ParameterAlreadyExists"
        | "PreconditionFailed"
        | "ConditionalRequestConflict"
        | "ResourceInUseException" => Fault::Conflict,
        "ProvisionedThroughputExceededException"
        | "ThrottlingException"
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
