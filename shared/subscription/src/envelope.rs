//! The fields that an event has beside its properties: what a filter or a mapper can ask for is known when it is written.

/// The fields of the envelope, and what each is.
const FIELDS: [(&str, Kind); 16] = [
    ("eventId", Kind::Text),
    ("eventType", Kind::Text),
    ("tenantId", Kind::Text),
    ("appName", Kind::Text),
    ("entityType", Kind::Text),
    ("entityId", Kind::Text),
    ("timestamp", Kind::Number),
    ("context", Kind::Map),
    ("properties", Kind::Map),
    ("idempotencyKey", Kind::Text),
    ("causedBy", Kind::Text),
    ("workflowRunId", Kind::Text),
    ("sourceSystem", Kind::Text),
    ("sequenceNo", Kind::Number),
    ("ttl", Kind::Number),
    ("receivedAt", Kind::Number),
];

/// What a value is, as far as that is known before there is an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    Number,
    Text,
    List,
    Map,
    Null,
    /// Something, but no boolean.
    Other,
    /// It depends on the event.
    Unknown,
}

impl Kind {
    /// As a message says it.
    pub(crate) const fn in_words(self) -> &'static str {
        match self {
            Self::Bool => "a boolean",
            Self::Number => "a number",
            Self::Text => "a text",
            Self::List => "a list",
            Self::Map => "a map",
            Self::Null => "null",
            Self::Other | Self::Unknown => "something else",
        }
    }
}

/// What the field `name` of every event is; `None` if no event has such a field.
pub(crate) fn field(name: &str) -> Option<Kind> {
    FIELDS.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
}

/// What is wrong with asking an event for `name`, and what may have been meant.
pub(crate) fn no_field(name: &str) -> String {
    let plain = |text: &str| -> String {
        text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    let asked = plain(name);
    let close = FIELDS.iter().map(|(known, _)| *known).find(|known| {
        let known = plain(known);
        known == asked || asked.len() > 2 && (known.ends_with(&asked) || known.starts_with(&asked))
    });
    match (asked.as_str(), close) {
        ("payload" | "data", _) => format!("no event has a field `{name}`; did you mean `properties`?"),
        (_, Some(close)) => format!("no event has a field `{name}`; did you mean `{close}`?"),
        (_, None) => {
            let known: Vec<&str> = FIELDS.iter().map(|(known, _)| *known).collect();
            format!(
                "no event has a field `{name}`; there are {}, and what an event says of its own is in `properties`",
                known.join(", ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use ledgerline_event::Event;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn these_are_the_fields_that_a_full_event_has() {
        let full = json!({
            "eventId": "e", "tenantId": "t", "appName": "a", "entityType": "T", "entityId": "1", "eventType": "x",
            "timestamp": 1_779_719_000_000_u64, "receivedAt": 1_779_719_000_500_u64, "context": {}, "causedBy": "c",
            "workflowRunId": "r", "sourceSystem": "s", "sequenceNo": 1, "idempotencyKey": "k", "properties": {},
            "ttl": 1_779_719_000,
        });
        let event: Event = serde_json::from_value(full).unwrap();
        let Value::Object(written) = serde_json::to_value(&event).unwrap() else {
            panic!("an event is an object")
        };
        assert_eq!(written.len(), FIELDS.len());
        for (name, value) in &written {
            let kind = match value {
                Value::String(_) => Kind::Text,
                Value::Number(_) => Kind::Number,
                _ => Kind::Map,
            };
            assert_eq!(field(name), Some(kind), "{name}");
        }
    }

    #[test]
    fn a_field_that_is_none_says_what_may_have_been_meant() {
        for (name, meant) in [
            ("type", "eventType"),
            ("event_type", "eventType"),
            ("entityid", "entityId"),
            ("payload", "properties"),
            ("sequence", "sequenceNo"),
        ] {
            assert!(no_field(name).ends_with(&format!("did you mean `{meant}`?")), "{}", no_field(name));
        }
        assert!(no_field("foo").contains("there are eventId, "));
    }
}
