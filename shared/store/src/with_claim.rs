//! Records of tasks and jobs, which are claims as well.

use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use serde::Serialize;

use crate::Claim;

/// A record with a claim in it, to be written.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct WithClaim<'a, R> {
    #[serde(flatten)]
    pub record: &'a R,
    #[serde(flatten)]
    pub claim: &'a Claim,
}

/// Adds the values for [`Claim::SET`], which the expression of `update` contains.
pub(crate) fn with_claim(update: UpdateItemFluentBuilder, claim: &Claim) -> UpdateItemFluentBuilder {
    let values = claim.values().into_iter();
    values.fold(update, |update, (name, value)| update.expression_attribute_values(name, value))
}
