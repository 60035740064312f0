//! What can go wrong with a queue, and how AWS names it.

use crate::answer::AwsError;

/// An operation on a queue that was refused.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// No queue has that name.
    #[error("The specified queue does not exist.")]
    QueueDoesNotExist,
    /// A queue of that name has other attributes.
    #[error("A queue already exists with the same name and a different value for attribute {0}")]
    QueueNameExists(String),
    /// The receipt is not one of this queue's.
    #[error("The input receipt handle is invalid.")]
    ReceiptHandleIsInvalid,
    /// The message is visible already.
    #[error("The message referred to is not in flight.")]
    MessageNotInflight,
    /// A parameter is outside of what SQS allows.
    #[error("{0}")]
    InvalidParameterValue(String),
    /// A queue has no such attribute.
    #[error("Unknown Attribute {0}.")]
    InvalidAttributeName(String),
    /// An attribute's value is outside of what SQS allows.
    #[error("{0}")]
    InvalidAttributeValue(String),
    /// A required parameter is missing.
    #[error("The request must contain the parameter {0}.")]
    MissingParameter(&'static str),
    /// The body holds characters that SQS does not carry.
    #[error(
        "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF."
    )]
    InvalidMessageContents,
    /// SQS knows it, these queues do not.
    #[error("{0}")]
    UnsupportedOperation(String),
    /// The batch has no entries.
    #[error("There should be at least one {0} in the request.")]
    EmptyBatchRequest(&'static str),
    /// The batch has more than ten entries.
    #[error("Maximum number of entries per request are 10. You have sent {0}.")]
    TooManyEntriesInBatchRequest(usize),
    /// Two entries of the batch share an id.
    #[error("Id {0} repeated.")]
    BatchEntryIdsNotDistinct(String),
    /// An id that is not 1 to 80 letters, digits, hyphens and underscores.
    #[error(
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long."
    )]
    InvalidBatchEntryId,
    /// The messages of the batch are larger together than one may be.
    #[error("Batch requests cannot be longer than 1048576 bytes. You have sent {0} bytes.")]
    BatchRequestTooLong(usize),
    /// The services are being stopped.
    #[error("The queues are being stopped.")]
    Stopping,
    /// The store failed.
    #[error("the store failed: {0}")]
    Store(#[from] rusqlite::Error),
}

impl QueueError {
    /// The type in the JSON protocol and the code in the query protocol where that differs.
    fn codes(&self) -> (&'static str, &'static str) {
        match self {
            Self::QueueDoesNotExist => ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"),
            Self::QueueNameExists(_) => ("QueueNameExists", "QueueAlreadyExists"),
            Self::ReceiptHandleIsInvalid => ("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid"),
            Self::MessageNotInflight => ("MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight"),
            Self::InvalidParameterValue(_) => ("InvalidParameterValue", "InvalidParameterValue"),
            Self::InvalidAttributeName(_) => ("InvalidAttributeName", "InvalidAttributeName"),
            Self::InvalidAttributeValue(_) => ("InvalidAttributeValue", "InvalidAttributeValue"),
            Self::MissingParameter(_) => ("MissingParameter", "MissingParameter"),
            Self::InvalidMessageContents => ("InvalidMessageContents", "InvalidMessageContents"),
            Self::UnsupportedOperation(_) => {
                ("UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation")
            }
            Self::EmptyBatchRequest(_) => ("EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest"),
            Self::TooManyEntriesInBatchRequest(_) => {
                ("TooManyEntriesInBatchRequest", "AWS.SimpleQueueService.TooManyEntriesInBatchRequest")
            }
            Self::BatchEntryIdsNotDistinct(_) => {
                ("BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct")
            }
            Self::InvalidBatchEntryId => {
                ("InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId")
            }
            Self::BatchRequestTooLong(_) => {
                ("BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong")
            }
            Self::Stopping => ("ServiceUnavailable", "ServiceUnavailable"),
            Self::Store(_) => ("InternalError", "InternalError"),
        }
    }

    /// The code of a failed batch entry.
    pub(crate) fn code(&self) -> &'static str {
        self.codes().0
    }

    /// Whether the caller is to blame.
    pub(crate) fn is_senders(&self) -> bool {
        !matches!(self, Self::Store(_) | Self::Stopping)
    }
}

impl From<QueueError> for AwsError {
    fn from(error: QueueError) -> Self {
        let (code, query_code) = error.codes();
        if error.is_senders() {
            AwsError::sender(format!("com.amazonaws.sqs#{code}"), error.to_string())
                .with_query_code(query_code)
        } else {
            AwsError::internal(error.to_string())
        }
    }
}
