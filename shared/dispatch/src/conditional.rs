//! A change of one record on a condition, and what was there if the condition did not hold.

use std::time::Duration;

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata, SdkError},
    operation::update_item::{UpdateItemError, builders::UpdateItemFluentBuilder},
    types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure},
};
use ledgerline_ledger::{StoreError, control::read};
use serde::de::DeserializeOwned;

/// How often an update is sent again when a transaction is in its way.
const ATTEMPTS: u32 = 6;

/// What became of it.
#[derive(Debug)]
pub(crate) enum Answer<T> {
    /// The record as it is now.
    Done(T),
    /// The record as it is, if there is one.
    Refused(Option<T>),
}

/// Sends the update.
pub(crate) async fn conditionally<T: DeserializeOwned>(
    update: UpdateItemFluentBuilder,
) -> Result<Answer<T>, StoreError> {
    let update = update
        .return_values(ReturnValue::AllNew)
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
    let mut attempt = 0;
    let sent = loop {
        match update.clone().send().await {
            // A transaction on the same record was in the way: it is over in a moment.
            Err(error) if attempt < ATTEMPTS && is_transaction_conflict(&error) => {
                tokio::time::sleep(Duration::from_millis(5 << attempt)).await;
                attempt += 1;
            }
            other => break other,
        }
    };
    match sent {
        Ok(answer) => Ok(Answer::Done(read(answer.attributes.unwrap_or_default())?)),
        Err(SdkError::ServiceError(refused)) if refused.err().is_conditional_check_failed_exception() => {
            let UpdateItemError::ConditionalCheckFailedException(there) = refused.into_err() else {
                unreachable!("checked by the guard");
            };
            Ok(Answer::Refused(there.item.map(read).transpose()?))
        }
        Err(error) => Err(StoreError::new("UpdateItem", error)),
    }
}

fn is_transaction_conflict<R>(error: &SdkError<UpdateItemError, R>) -> bool {
    error.as_service_error().is_some_and(|error| error.code() == Some("TransactionConflictException"))
}

pub(crate) fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

pub(crate) fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}
