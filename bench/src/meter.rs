//! A DynamoDB client that records the size and the cost of each request that goes through it. The bench
//! therefore measures the product's own requests, not requests that imitate them.

use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_dynamodb::{
    Client,
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        interceptors::{AfterDeserializationInterceptorContextRef, BeforeSerializationInterceptorContextMut},
    },
    error::BoxError,
    operation::{
        batch_get_item::{BatchGetItemInput, BatchGetItemOutput},
        batch_write_item::{BatchWriteItemInput, BatchWriteItemOutput},
        delete_item::{DeleteItemInput, DeleteItemOutput},
        get_item::{GetItemInput, GetItemOutput},
        put_item::{PutItemInput, PutItemOutput},
        query::{QueryInput, QueryOutput},
        transact_write_items::{TransactWriteItemsInput, TransactWriteItemsOutput},
        update_item::{UpdateItemInput, UpdateItemOutput},
    },
    types::{ConsumedCapacity, ReturnConsumedCapacity},
};

use crate::item_size::item_size;

/// What the requests since the last reading came to. A write that its condition refused costs units too, but
/// the store does not say how many.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    /// The largest item that was put: the event's.
    pub(crate) bytes: usize,
    /// Write units, of all tables and indexes.
    pub(crate) units: f64,
    /// Read units, of all tables and indexes.
    pub(crate) read_units: f64,
}

/// Notes what requests weigh and cost.
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
        if let Some(put) = input.downcast_ref::<PutItemInput>() {
            largest = put.item().map(item_size);
        } else if let Some(transaction) = input.downcast_ref::<TransactWriteItemsInput>() {
            let puts = transaction.transact_items().iter().filter_map(|write| write.put());
            largest = puts.map(|put| item_size(put.item())).max();
        }
        macro_rules! ask {
            ($($request:ty),*) => {$(
                if let Some(request) = input.downcast_mut::<$request>() {
                    request.return_consumed_capacity = Some(ReturnConsumedCapacity::Total);
                }
            )*};
        }
        ask!(PutItemInput, UpdateItemInput, DeleteItemInput, BatchWriteItemInput, TransactWriteItemsInput);
        ask!(GetItemInput, QueryInput, BatchGetItemInput);
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
        let mut written: Vec<&ConsumedCapacity> = Vec::new();
        let mut read: Vec<&ConsumedCapacity> = Vec::new();
        macro_rules! answered {
            ($($answer:ty => $to:ident),*) => {$(
                if let Some(answer) = output.downcast_ref::<$answer>() {
                    $to.extend(answer.consumed_capacity());
                }
            )*};
        }
        answered!(PutItemOutput => written, UpdateItemOutput => written, DeleteItemOutput => written);
        answered!(BatchWriteItemOutput => written, TransactWriteItemsOutput => written);
        answered!(GetItemOutput => read, QueryOutput => read, BatchGetItemOutput => read);
        let units =
            |of: Vec<&ConsumedCapacity>| of.iter().filter_map(|table| table.capacity_units()).sum::<f64>();
        let (written, read) = (units(written), units(read));
        self.note(|reading| {
            reading.units += written;
            reading.read_units += read;
        });
        Ok(())
    }
}
