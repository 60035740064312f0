use ledgerline_store::{Fault, StoreError};

/// The value of an SSM parameter, if it is set.
pub async fn parameter(ssm: &aws_sdk_ssm::Client, name: &str) -> Result<Option<String>, StoreError> {
    let answer = ssm.get_parameter().name(name).with_decryption(true).send().await;
    match answer.map_err(|error| StoreError::new("GetParameter", error)) {
        Ok(found) => Ok(found.parameter.and_then(|parameter| parameter.value)),
        Err(error) if error.fault == Fault::Missing => Ok(None),
        Err(error) => Err(error),
    }
}
