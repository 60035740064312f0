//! The change stream of local mode, in place of the DynamoDB stream: an interceptor sees every write at the gateway and wakes the
//! dispatcher for the tenants whose rows changed.

use std::{collections::BTreeSet, sync::Arc};

use ledgerline_embedded::{Call, Interceptor, Moment, Service, Verdict};
use ledgerline_event::{Name, keys::parse_pk};
use ledgerline_ledger::Names;
use ledgerline_store::keys;
use serde_json::Value;
use tokio::sync::{Mutex, mpsc};

/// Tenants to visit. The running dispatcher holds the lock; after a restart it continues with the tenants that are left.
pub(super) type WakeUps = Arc<Mutex<mpsc::UnboundedReceiver<WakeUp>>>;

/// A tenant to visit, and when.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WakeUp {
    pub(super) tenant: Name,
    pub(super) urgency: Urgency,
}

/// When the dispatcher visits a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// At once.
    Now,
    /// After a delay: only events of runs have come.
    Later,
}

/// An interceptor that sends a wake-up for every tenant whose events, subscriptions or cursors change; it calls `inner` first.
pub(super) fn change_stream(names: &Names, inner: Option<Interceptor>) -> (Interceptor, WakeUps) {
    let (sender, wake_ups) = mpsc::unbounded_channel();
    let names = Arc::new((names.events_table.clone(), names.control_table.clone()));
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let (inner, sender, names) = (inner.clone(), sender.clone(), names.clone());
        Box::pin(async move {
            let verdict = match inner {
                Some(inner) => inner(call.clone(), moment).await,
                None => Verdict::Proceed,
            };
            if moment == (Moment::After { status: 200 }) && call.service == Service::DynamoDb {
                for wake_up in changed_tenants(&call, &names.0, &names.1) {
                    // The receiver is dropped when local mode stops.
                    let _ = sender.send(wake_up);
                }
            }
            verdict
        })
    });
    (interceptor, Arc::new(Mutex::new(wake_ups)))
}

/// The tenants whose rows a request has written.
fn changed_tenants(call: &Call, events: &str, control: &str) -> BTreeSet<WakeUp> {
    let is_write = matches!(call.operation.as_str(), "PutItem" | "TransactWriteItems" | "BatchWriteItem");
    let Some(body) = is_write.then(|| serde_json::from_slice::<Value>(&call.body).ok()).flatten() else {
        return BTreeSet::new();
    };
    let text = |item: &Value, name: &str| item[name]["S"].as_str().map(str::to_owned);
    let event = |table: &Value, item: &Value| {
        let pk = text(item, "PK").filter(|_| table.as_str() == Some(events))?;
        let urgency = match item["entityType"]["S"].as_str() {
            Some("RUN" | "STEP" | "HOOK" | "WAIT") => Urgency::Later,
            _ => Urgency::Now,
        };
        parse_pk(&pk).ok().map(|tenant| (tenant.to_owned(), urgency))
    };
    // A change of a subscription, or a rewind, puts its mark in its transaction. A drainer puts its own mark in a request
    // of its own, and that must not wake the drainer again.
    let mark = |table: &Value, item: &Value| {
        let is_mark = table.as_str() == Some(control)
            && text(item, "PK").is_some_and(|pk| keys::is_dirty_partition(&pk));
        let sk = text(item, "SK").filter(|_| is_mark)?;
        keys::parse_dirty_mark(&sk).map(|(tenant, _)| (tenant.to_owned(), Urgency::Now))
    };
    let single = event(&body["TableName"], &body["Item"]);
    let transaction = body["TransactItems"].as_array().into_iter().flatten().flat_map(|write| {
        let (put, update) = (&write["Put"], &write["Update"]);
        [event(&put["TableName"], &put["Item"]), mark(&update["TableName"], &update["Key"])]
    });
    let batch = body["RequestItems"][events].as_array().into_iter().flatten();
    let batch = batch.map(|write| event(&Value::from(events), &write["PutRequest"]["Item"]));
    let tenants = std::iter::once(single).chain(transaction).chain(batch).flatten();
    tenants
        .filter_map(|(tenant, urgency)| {
            Some(WakeUp { tenant: Name::stored("tenantId", tenant).ok()?, urgency })
        })
        .collect()
}
