//! What a person filters by, and the index that answers it best: used by the API and the CLI alike.

use ledgerline_event::{Event, Invalid, Millis, Name, glob, keys::Scope};

use crate::{EventQuery, Order, Page, QueryError, Reader};

/// Filters as they were typed.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct EventFilter {
    /// A type or a glob.
    pub event_type: Option<String>,
    pub entity_type: Option<String>,
    /// Needs `entity_type`.
    pub entity_id: Option<String>,
    pub app: Option<String>,
    pub since: Millis,
    pub until: Millis,
}

/// Filters that make sense together.
#[derive(Clone, Debug)]
pub struct CheckedFilter(EventFilter);

impl EventFilter {
    /// Everything, always.
    pub fn everything() -> Self {
        Self {
            event_type: None,
            entity_type: None,
            entity_id: None,
            app: None,
            since: Millis::MIN,
            until: Millis::MAX,
        }
    }

    /// Checks each filter; the error names the one at fault.
    pub fn checked(self) -> Result<CheckedFilter, Invalid> {
        let named = [
            ("type", &self.event_type),
            ("entityType", &self.entity_type),
            ("entityId", &self.entity_id),
            ("app", &self.app),
        ];
        for (field, value) in named {
            if let Some(value) = value {
                Name::new(field, value.clone())?;
            }
        }
        if self.entity_id.is_some() && self.entity_type.is_none() {
            return Err(Invalid::new("entityId", "needs entityType beside it: ids are per type"));
        }
        if self.since > self.until {
            return Err(Invalid::new("since", "is after until"));
        }
        Ok(CheckedFilter(self))
    }
}

impl CheckedFilter {
    /// The narrowest index.
    fn scope(&self) -> Scope<'_> {
        let filter = &self.0;
        let event_type = filter.event_type.as_deref().filter(|text| glob::is_literal(text));
        let entity = filter.entity_type.as_deref().zip(filter.entity_id.as_deref());
        match (event_type, filter.app.as_deref(), entity) {
            (Some(event), Some(app), Some((kind, id))) => Scope::TypeAppEntity(event, app, kind, id),
            (Some(event), Some(app), None) => Scope::TypeApp(event, app),
            (Some(event), None, Some((kind, id))) => Scope::TypeEntity(event, kind, id),
            (Some(event), None, None) => Scope::Type(event),
            (None, Some(app), Some((kind, id))) => Scope::AppEntity(app, kind, id),
            (None, None, Some((kind, id))) => Scope::Entity(kind, id),
            (None, Some(app), None) => Scope::App(app),
            (None, None, None) => Scope::Tenant,
        }
    }

    /// Whether the index does not answer all of it.
    fn leaves_open(&self) -> bool {
        let filter = &self.0;
        let type_by_glob = filter.event_type.as_deref().is_some_and(|text| !glob::is_literal(text));
        type_by_glob || (filter.entity_type.is_some() && filter.entity_id.is_none())
    }

    /// What the index leaves open.
    fn keeps(&self, event: &Event) -> bool {
        let filter = &self.0;
        filter.event_type.as_deref().is_none_or(|glob| glob::matches(glob, &event.event_type))
            && filter.entity_type.as_deref().is_none_or(|kind| *event.entity_type == *kind)
    }
}

impl Reader {
    /// Up to `limit` events that the filter lets through.
    pub async fn recent(
        &self,
        tenant: &Name,
        filter: &CheckedFilter,
        order: Order,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<Page, QueryError> {
        let keep = |event: &Event| filter.keeps(event);
        let keep: &(dyn Fn(&Event) -> bool + Sync) = &keep;
        let query = EventQuery {
            since: filter.0.since,
            until: filter.0.until,
            order,
            keep: filter.leaves_open().then_some(keep),
            ..EventQuery::new(tenant, filter.scope())
        };
        self.page(&query, limit, cursor).await
    }
}
