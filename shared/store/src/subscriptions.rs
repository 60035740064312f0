//! Subscriptions of tenants. Each change is counted in the state of the drainer in the same transaction, so that a pass
//! knows without a request whether what it compiled is still true; and a mark brings the drainer.

use aws_sdk_dynamodb::types::TransactWriteItem;
use ledgerline_event::Name;
use ledgerline_subscription::Subscription;

use crate::drain_states::{count_subscription_change, transact, update_item};
use crate::{ControlKey, ControlTable, MarkStamp, StoreError, build_error, dirty_marks, keys};

/// Reads and changes subscriptions.
#[derive(Clone, Debug)]
pub struct SubscriptionRecords {
    table: ControlTable,
}

impl SubscriptionRecords {
    /// The subscriptions of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// A tenant's subscriptions, in the order of their creation.
    pub async fn of_tenant(&self, tenant: &Name) -> Result<Vec<Subscription>, StoreError> {
        self.table.all(&keys::subscriptions(tenant)).await
    }

    /// One subscription.
    pub async fn get(&self, tenant: &Name, id: &str) -> Result<Option<Subscription>, StoreError> {
        self.table.get(&keys::subscription(tenant, id)).await
    }

    /// Adds a subscription, whose id is new. A drainer that is new to the tenant begins at `begin`.
    pub async fn add(
        &self,
        subscription: &Subscription,
        begin: &str,
        stamp: &MarkStamp,
    ) -> Result<(), StoreError> {
        let put = self.table.put_for_transaction(&key(subscription), subscription)?;
        let put = put.condition_expression("attribute_not_exists(PK)").build().map_err(build_error)?;
        self.change(subscription, TransactWriteItem::builder().put(put).build(), begin, stamp).await
    }

    /// Replaces a subscription that there is.
    pub async fn replace(&self, subscription: &Subscription, stamp: &MarkStamp) -> Result<(), StoreError> {
        let put = self.table.put_for_transaction(&key(subscription), subscription)?;
        let put = put.condition_expression("attribute_exists(PK)").build().map_err(build_error)?;
        self.change(subscription, TransactWriteItem::builder().put(put).build(), "", stamp).await
    }

    /// Deletes a subscription.
    pub async fn delete(&self, subscription: &Subscription, stamp: &MarkStamp) -> Result<(), StoreError> {
        let delete = self.table.delete_for_transaction(&key(subscription)).build().map_err(build_error)?;
        self.change(subscription, TransactWriteItem::builder().delete(delete).build(), "", stamp).await
    }

    /// Writes a change together with its count and a mark.
    async fn change(
        &self,
        subscription: &Subscription,
        write: TransactWriteItem,
        begin: &str,
        stamp: &MarkStamp,
    ) -> Result<(), StoreError> {
        let drain_key = (&subscription.tenant_id, &subscription.drainer_id);
        let count = count_subscription_change(&self.table, drain_key, begin, stamp.now);
        let mark = dirty_marks::mark_update_for_change(&self.table, drain_key, stamp);
        transact(&self.table, [write, update_item(count)?, update_item(mark)?]).await
    }
}

fn key(subscription: &Subscription) -> ControlKey {
    keys::subscription(&subscription.tenant_id, &subscription.subscription_id)
}
