//! An update of one record on a condition. If the condition does not hold, the caller gets the record as it is.

use aws_sdk_dynamodb::{
    error::SdkError,
    operation::update_item::{UpdateItemError, builders::UpdateItemFluentBuilder},
    types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure},
};

use serde::de::DeserializeOwned;

use crate::{RequestRetry, StoreError, read};

/// What became of an update on a condition.
#[derive(Debug)]
pub enum Conditional<T> {
    /// The condition held; the record after the update.
    Done(T),
    /// The condition did not hold; the record as it is, if there is one.
    Refused(Option<T>),
}

/// Sends the update. Retries, a bounded number of times, while a transaction is in its way or the table throttles.
pub async fn conditionally<T: DeserializeOwned>(
    update: UpdateItemFluentBuilder,
) -> Result<Conditional<T>, StoreError> {
    let update = update
        .return_values(ReturnValue::AllNew)
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
    let mut retries = RequestRetry::default();
    loop {
        match update.clone().send().await {
            Ok(answer) => return Ok(Conditional::Done(read(answer.attributes.unwrap_or_default())?)),
            Err(SdkError::ServiceError(refused)) if refused.err().is_conditional_check_failed_exception() => {
                let UpdateItemError::ConditionalCheckFailedException(there) = refused.into_err() else {
                    unreachable!("checked by the guard");
                };
                return Ok(Conditional::Refused(there.item.map(read).transpose()?));
            }
            Err(error) => retries.wait_after(StoreError::new("UpdateItem", error)).await?,
        }
    }
}

/// A string attribute.
pub fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

/// A number attribute.
pub fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}
