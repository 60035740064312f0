//! Items of tables as they are stored.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_ledger::Clients;

/// An item.
pub type Item = HashMap<String, AttributeValue>;

/// A text attribute.
pub fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

/// A number attribute.
pub fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// Every item of a table.
pub async fn scan(clients: &Clients, table: &str) -> Vec<Item> {
    let mut pages =
        clients.dynamo.scan().table_name(table).consistent_read(true).into_paginator().items().send();
    let mut rows = Vec::new();
    while let Some(row) = pages.next().await {
        rows.push(row.unwrap());
    }
    rows
}

/// The rows of one tenant.
pub async fn rows_of(clients: &Clients, table: &str, tenant: &str) -> Vec<Item> {
    let query =
        clients.dynamo.query().table_name(table).consistent_read(true).key_condition_expression("PK = :pk");
    let query = query.expression_attribute_values(":pk", text(&format!("TENANT#{tenant}")));
    let mut pages = query.into_paginator().items().send();
    let mut rows = Vec::new();
    while let Some(row) = pages.next().await {
        rows.push(row.unwrap());
    }
    rows
}
