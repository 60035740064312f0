//! The fields of the envelope: filters and mappers that use another field are refused when they are written.

/// The fields of the envelope and their types.
const FIELDS: [(&str, ValueType); 16] = [
    ("eventId", ValueType::Text),
    ("eventType", ValueType::Text),
    ("tenantId", ValueType::Text),
    ("appName", ValueType::Text),
    ("entityType", ValueType::Text),
    ("entityId", ValueType::Text),
    ("timestamp", ValueType::Number),
    ("context", ValueType::Map),
    ("properties", ValueType::Map),
    ("idempotencyKey", ValueType::Text),
    ("causedBy", ValueType::Text),
    ("workflowRunId", ValueType::Text),
    ("sourceSystem", ValueType::Text),
    ("sequenceNo", ValueType::Number),
    ("ttl", ValueType::Number),
    ("receivedAt", ValueType::Number),
];

/// The type of a value, as far as it is known before there is an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueType {
    Bool,
    Number,
    Text,
    List,
    Map,
    Null,
    /// Any type but a boolean.
    Other,
    /// It depends on the event.
    Unknown,
}

impl ValueType {
    /// The type in words, for messages.
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

/// The type of the field `name`; `None` if no event has such a field.
pub(crate) fn field(name: &str) -> Option<ValueType> {
    FIELDS.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
}

/// The error for a field that no event has, with the field that may have been meant.
pub(crate) fn unknown_field(name: &str) -> String {
    let plain = |text: &str| -> String {
        text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    let wanted = plain(name);
    let close = FIELDS.iter().map(|(known, _)| *known).find(|known| {
        let known = plain(known);
        known == wanted || wanted.len() > 2 && (known.ends_with(&wanted) || known.starts_with(&wanted))
    });
    match (wanted.as_str(), close) {
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
                Value::String(_) => ValueType::Text,
                Value::Number(_) => ValueType::Number,
                _ => ValueType::Map,
            };
            assert_eq!(field(name), Some(kind), "{name}");
        }
    }

    #[test]
    fn the_error_for_an_unknown_field_names_a_similar_one() {
        for (name, meant) in [
            ("type", "eventType"),
            ("event_type", "eventType"),
            ("entityid", "entityId"),
            ("payload", "properties"),
            ("sequence", "sequenceNo"),
        ] {
            assert!(
                unknown_field(name).ends_with(&format!("did you mean `{meant}`?")),
                "{}",
                unknown_field(name)
            );
        }
        assert!(unknown_field("foo").contains("there are eventId, "));
    }
}
