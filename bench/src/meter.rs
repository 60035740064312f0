//! A DynamoDB client that notes what each write weighs and costs, whoever makes it: so it is
//! the saver's own requests that are measured, not ones made up to resemble them.

use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_dynamodb::{
    Client,
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        interceptors::{AfterDeserializationInterceptorContextRef, BeforeSerializationInterceptorContextMut},
    },
    error::BoxError,
    operation::{
        put_item::{PutItemInput, PutItemOutput},
        transact_write_items::{TransactWriteItemsInput, TransactWriteItemsOutput},
    },
    types::{ConsumedCapacity, ReturnConsumedCapacity},
};

use crate::item_size::item_size;

/// What the writes since the last reading came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    /// The largest item that was put: the event's.
    pub(crate) bytes: usize,
    /// Write units, of all tables and indexes.
    pub(crate) units: f64,
}

/// Notes what writes weigh and cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Arc<Mutex<Reading>>);

impl Meter {
    /// `client` with this meter in it.
    pub(crate) fn install(&self, client: &Client) -> Client {
        Client::from_conf(client.config().to_builder().interceptor(self.clone()).build())
    }

    /// What came together since the last call.
    pub(crate) fn take(&self) -> Reading {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, change: impl FnOnce(&mut Reading)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Intercept for Meter {
    fn name(&self) -> &'static str {
        "Meter"
    }

    fn modify_before_serialization(
        &self,
        context: &mut BeforeSerializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let input = context.input_mut();
        let mut largest = None;
        if let Some(put) = input.downcast_mut::<PutItemInput>() {
            put.return_consumed_capacity = Some(ReturnConsumedCapacity::Total);
            largest = put.item().map(item_size);
        } else if let Some(transaction) = input.downcast_mut::<TransactWriteItemsInput>() {
            transaction.return_consumed_capacity = Some(ReturnConsumedCapacity::Total);
            let puts = transaction.transact_items().iter().filter_map(|write| write.put());
            largest = puts.map(|put| item_size(put.item())).max();
        }
        let largest = largest.unwrap_or(0);
        self.note(|reading| reading.bytes = reading.bytes.max(largest));
        Ok(())
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let Ok(output) = context.output_or_error() else { return Ok(()) };
        let consumed: Vec<&ConsumedCapacity> = if let Some(put) = output.downcast_ref::<PutItemOutput>() {
            put.consumed_capacity().into_iter().collect()
        } else if let Some(transaction) = output.downcast_ref::<TransactWriteItemsOutput>() {
            transaction.consumed_capacity().iter().collect()
        } else {
            Vec::new()
        };
        let units: f64 = consumed.iter().filter_map(|table| table.capacity_units()).sum();
        self.note(|reading| reading.units += units);
        Ok(())
    }
}
