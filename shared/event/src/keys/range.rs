//! The index that answers a query, and the key range of the answer.

use super::{Digits, KeyFields, Keys, join};
use crate::Millis;

/// The base table or one of its seven indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// The base table: all events of a tenant by time.
    Base,
    /// `GSI1-index` … `GSI7-index`.
    Gsi(u8),
}

/// The events that a query asks for. Each scope has its own index; the tenant's is the base table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Everything of the tenant (base table).
    Tenant,
    /// One entity (GSI1).
    Entity(&'a str, &'a str),
    /// One app (GSI2).
    App(&'a str),
    /// One entity within an app (GSI3): app, entity type, entity id.
    AppEntity(&'a str, &'a str, &'a str),
    /// One event type (GSI4).
    Type(&'a str),
    /// One event type of an entity (GSI5): event type, entity type, entity id.
    TypeEntity(&'a str, &'a str, &'a str),
    /// One event type within an app (GSI6): event type, app.
    TypeApp(&'a str, &'a str),
    /// One event type of an entity within an app (GSI7): event type, app, entity type, entity id.
    TypeAppEntity(&'a str, &'a str, &'a str, &'a str),
}

/// One partition of an index and two sort keys, both inclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The index.
    pub index: Index,
    /// The partition.
    pub pk: String,
    /// The first sort key that may belong to it.
    pub from: String,
    /// The last one.
    pub to: String,
    /// Whether the partition may also hold other tenants' events.
    pub shared: bool,
}

impl Index {
    /// The name that DynamoDB knows; none for the base table.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Base => None,
            Self::Gsi(1) => Some("GSI1-index"),
            Self::Gsi(2) => Some("GSI2-index"),
            Self::Gsi(3) => Some("GSI3-index"),
            Self::Gsi(4) => Some("GSI4-index"),
            Self::Gsi(5) => Some("GSI5-index"),
            Self::Gsi(6) => Some("GSI6-index"),
            Self::Gsi(_) => Some("GSI7-index"),
        }
    }

    /// Partition and sort attribute.
    pub const fn attributes(self) -> (&'static str, &'static str) {
        match self {
            Self::Base => ("PK", "SK"),
            Self::Gsi(1) => ("GSI1PK", "GSI1SK"),
            Self::Gsi(2) => ("GSI2PK", "GSI2SK"),
            Self::Gsi(3) => ("GSI3PK", "GSI3SK"),
            Self::Gsi(4) => ("GSI4PK", "GSI4SK"),
            Self::Gsi(5) => ("GSI5PK", "GSI5SK"),
            Self::Gsi(6) => ("GSI6PK", "GSI6SK"),
            Self::Gsi(_) => ("GSI7PK", "GSI7SK"),
        }
    }

    /// The key of one event in this index, as a query's start key wants it: the index's own
    /// attributes and the base table's.
    pub fn start_key(self, of: &KeyFields<'_>) -> Vec<(&'static str, String)> {
        let (pk, sk) = self.attributes();
        let keys = Keys::build(of);
        keys.attributes()
            .filter(|(attribute, _)| [pk, sk, "PK", "SK"].contains(attribute))
            .map(|(attribute, value)| (attribute, value.to_owned()))
            .collect()
    }
}

impl Range {
    /// The range for `scope` of `tenant` between two moments, both inclusive.
    pub fn new(tenant: &str, scope: Scope<'_>, since: Millis, until: Millis) -> Self {
        let tenant_part = ["TENANT", tenant];
        let (index, pk, prefix): (Index, String, Vec<&str>) = match scope {
            Scope::Tenant => (Index::Base, join(&tenant_part), vec![]),
            Scope::Entity(kind, id) => (Index::Gsi(1), join(&[kind, id]), vec![kind]),
            Scope::App(app) => (Index::Gsi(2), join(&["APP", app]), vec![]),
            Scope::AppEntity(app, kind, id) => (Index::Gsi(3), join(&["APP", app]), vec![kind, id]),
            Scope::Type(event) => (Index::Gsi(4), join(&["EVENT", event]), tenant_part.into()),
            Scope::TypeEntity(event, kind, id) => {
                (Index::Gsi(5), join(&["EVENT", event]), vec!["TENANT", tenant, kind, id])
            }
            Scope::TypeApp(event, app) => {
                (Index::Gsi(6), join(&["EVENT", event]), vec!["TENANT", tenant, "APP", app])
            }
            Scope::TypeAppEntity(event, app, kind, id) => {
                (Index::Gsi(7), join(&["EVENT", event]), vec!["TENANT", tenant, "APP", app, kind, id])
            }
        };
        let bound = |time: Millis| {
            let digits = Digits::of(time);
            join(&[&prefix[..], &["TIMESTAMP", digits.as_str()]].concat())
        };
        // `$` follows `#`: the upper bound takes in `…#EVENT#<id>` of the base table's own keys.
        let to = bound(until) + "$";
        Self { index, pk, from: bound(since), to, shared: matches!(index, Index::Gsi(1..=3)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(time: u64) -> KeyFields<'static> {
        KeyFields {
            tenant_id: "t",
            app_name: "a",
            entity_type: "TASK",
            entity_id: "req-1",
            event_type: "Task Completed",
            timestamp: Millis::try_from(time).unwrap(),
            event_id: "e",
        }
    }

    #[test]
    fn every_scope_takes_in_its_own_event_and_both_ends_of_the_time() {
        let scopes = [
            Scope::Tenant,
            Scope::Entity("TASK", "req-1"),
            Scope::App("a"),
            Scope::AppEntity("a", "TASK", "req-1"),
            Scope::Type("Task Completed"),
            Scope::TypeEntity("Task Completed", "TASK", "req-1"),
            Scope::TypeApp("Task Completed", "a"),
            Scope::TypeAppEntity("Task Completed", "a", "TASK", "req-1"),
        ];
        let at = |ms| Millis::try_from(ms).unwrap();
        for (position, scope) in scopes.into_iter().enumerate() {
            let range = Range::new("t", scope, at(1_700_000_000_010), at(1_700_000_000_020));
            for (time, inside) in [(9, false), (10, true), (15, true), (20, true), (21, false)] {
                let key = range.index.start_key(&fields(1_700_000_000_000 + time));
                let (pk, sk) = range.index.attributes();
                let value = |name| &key.iter().find(|(attribute, _)| *attribute == name).unwrap().1;
                assert_eq!(value(pk), &range.pk);
                let found = *value(sk) >= range.from && *value(sk) <= range.to;
                assert_eq!(found, inside, "{scope:?} at {time}");
                assert_eq!(key.len(), if position == 0 { 2 } else { 4 });
            }
        }
    }

    #[test]
    fn an_id_that_begins_another_id_is_not_mixed_up_with_it() {
        let range =
            Range::new("t", Scope::TypeEntity("Task Completed", "TASK", "req"), Millis::MIN, Millis::MAX);
        let other = range.index.start_key(&fields(1_700_000_000_000));
        let sk = &other.iter().find(|(attribute, _)| *attribute == "GSI5SK").unwrap().1;
        assert!(!(*sk >= range.from && *sk <= range.to));
    }
}
