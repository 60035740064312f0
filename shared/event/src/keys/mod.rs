//! Builds and parses the key attributes of an event item; no other module does.
//!
//! Every part is a [`Name`], which has no `#`, so a key splits back into its parts in one way only. A timestamp always has
//! 13 digits, so keys sort by time. Twelve of the sixteen values differ: `GSI2PK` equals `GSI3PK`, and `GSI4PK` to `GSI7PK`
//! are equal.

mod range;

use serde::{Serialize, Serializer, ser::SerializeMap};

pub use range::{Index, Range, Scope};

use crate::{Millis, Name};

/// The names of the sixteen key attributes, in the order of [`Keys::attributes`].
pub const ATTRIBUTES: [&str; 16] = [
    "PK", "SK", "GSI1PK", "GSI1SK", "GSI2PK", "GSI2SK", "GSI3PK", "GSI3SK", "GSI4PK", "GSI4SK", "GSI5PK",
    "GSI5SK", "GSI6PK", "GSI6SK", "GSI7PK", "GSI7SK",
];

/// The fields that keys are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyFields<'a> {
    /// The tenant whose event it is.
    pub tenant_id: &'a str,
    /// The application that sent it.
    pub app_name: &'a str,
    /// The type of the entity that it is about.
    pub entity_type: &'a str,
    /// The id of that entity.
    pub entity_id: &'a str,
    /// The type of the event.
    pub event_type: &'a str,
    /// When it happened.
    pub timestamp: Millis,
    /// The event's own id.
    pub event_id: &'a str,
}

/// The sixteen key attributes of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    pk: String,
    sk: String,
    entity: String,
    gsi1sk: String,
    app: String,
    time: String,
    gsi3sk: String,
    event_type: String,
    gsi4sk: String,
    gsi5sk: String,
    gsi6sk: String,
    gsi7sk: String,
}

/// A key attribute that does not have the form of its kind, or disagrees with another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{attribute}: `{found}` {reason}")]
pub struct KeyError {
    /// The attribute.
    pub attribute: &'static str,
    /// Its value.
    pub found: String,
    /// What is wrong.
    pub reason: String,
}

fn join(parts: &[&str]) -> String {
    let mut key = String::with_capacity(parts.iter().map(|part| part.len() + 1).sum());
    for (position, part) in parts.iter().enumerate() {
        if position > 0 {
            key.push('#');
        }
        key.push_str(part);
    }
    key
}

impl Keys {
    /// Computes all keys from the fields.
    pub fn build(of: &KeyFields<'_>) -> Self {
        let at = Digits::of(of.timestamp);
        let at = at.as_str();
        let (tenant, app, kind, id) = (of.tenant_id, of.app_name, of.entity_type, of.entity_id);
        Self {
            pk: join(&["TENANT", tenant]),
            sk: place(of.timestamp, of.event_id),
            entity: join(&[kind, id]),
            gsi1sk: join(&[kind, "TIMESTAMP", at]),
            app: join(&["APP", app]),
            time: join(&["TIMESTAMP", at]),
            gsi3sk: join(&[kind, id, "TIMESTAMP", at]),
            event_type: join(&["EVENT", of.event_type]),
            gsi4sk: join(&["TENANT", tenant, "TIMESTAMP", at]),
            gsi5sk: join(&["TENANT", tenant, kind, id, "TIMESTAMP", at]),
            gsi6sk: join(&["TENANT", tenant, "APP", app, "TIMESTAMP", at]),
            gsi7sk: join(&["TENANT", tenant, "APP", app, kind, id, "TIMESTAMP", at]),
        }
    }

    /// The partition of the base table: one per tenant.
    pub fn pk(&self) -> &str {
        &self.pk
    }

    /// The place within the tenant's partition; sorts by time.
    pub fn sk(&self) -> &str {
        &self.sk
    }

    /// The values of the attributes, in the order of [`ATTRIBUTES`].
    pub fn values(&self) -> [&str; 16] {
        [
            &self.pk,
            &self.sk,
            &self.entity,
            &self.gsi1sk,
            &self.app,
            &self.time,
            &self.app,
            &self.gsi3sk,
            &self.event_type,
            &self.gsi4sk,
            &self.event_type,
            &self.gsi5sk,
            &self.event_type,
            &self.gsi6sk,
            &self.event_type,
            &self.gsi7sk,
        ]
    }

    /// The attributes with their values.
    pub fn attributes(&self) -> impl Iterator<Item = (&'static str, &str)> {
        ATTRIBUTES.into_iter().zip(self.values())
    }
}

impl Serialize for Keys {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(ATTRIBUTES.len()))?;
        for (attribute, value) in self.attributes() {
            map.serialize_entry(attribute, value)?;
        }
        map.end()
    }
}

/// Reads the fields back from the sixteen values (in the order of [`ATTRIBUTES`]).
///
/// `GSI7SK`, `GSI7PK` and `SK` together hold every field; the other thirteen must then be
/// what [`Keys::build`] makes of them.
pub fn parse<'a>(values: [&'a str; 16]) -> Result<KeyFields<'a>, KeyError> {
    let (timestamp, event_id) = parse_sk(values[1])?;
    let event_type = part("GSI7PK", values[14], values[14].strip_prefix("EVENT#"))?;
    let narrowest: Vec<&'a str> = values[15].split('#').collect();
    let ["TENANT", tenant_id, "APP", app_name, entity_type, entity_id, "TIMESTAMP", _] = narrowest[..] else {
        let reason = "is not TENANT#…#APP#…#<entity type>#<entity id>#TIMESTAMP#…";
        return Err(KeyError { attribute: "GSI7SK", found: values[15].into(), reason: reason.into() });
    };
    let fields = KeyFields { tenant_id, app_name, entity_type, entity_id, event_type, timestamp, event_id };
    match mismatch(&Keys::build(&fields), values) {
        None => Ok(fields),
        Some(error) => Err(error),
    }
}

/// The first attribute whose value is not the computed one.
pub fn mismatch(computed: &Keys, values: [&str; 16]) -> Option<KeyError> {
    computed.attributes().zip(values).find(|((_, expected), found)| expected != found).map(
        |((attribute, expected), found)| KeyError {
            attribute,
            found: found.into(),
            reason: format!("does not match the event's fields, which give `{expected}`"),
        },
    )
}

/// Time and event id of a base-table sort key; any form of id is accepted.
pub fn parse_sk(sk: &str) -> Result<(Millis, &str), KeyError> {
    let wrong = |reason: &str| KeyError { attribute: "SK", found: sk.into(), reason: reason.into() };
    let (time, id) = sk
        .strip_prefix("TIMESTAMP#")
        .and_then(|rest| rest.split_once("#EVENT#"))
        .ok_or_else(|| wrong("is not TIMESTAMP#<13 digits>#EVENT#<id>"))?;
    let time = digits(time).ok_or_else(|| wrong("has no time of 13 digits"))?;
    part("SK", sk, Some(id)).map(|id| (time, id))
}

/// The place of an event in its tenant's partition.
pub fn place(time: Millis, event_id: &str) -> String {
    join(&["TIMESTAMP", Digits::of(time).as_str(), "EVENT", event_id])
}

/// The place in a tenant's partition just before everything of `time`.
pub fn moment(time: Millis) -> String {
    join(&["TIMESTAMP", Digits::of(time).as_str()])
}

/// The time of a place in a tenant's partition: of an event's sort key or of a [`moment`].
pub fn time_of(place: &str) -> Option<Millis> {
    digits(place.strip_prefix("TIMESTAMP#")?.get(..13)?)
}

/// A tenant's partition of the base table.
pub fn partition(tenant: &str) -> String {
    join(&["TENANT", tenant])
}

/// The app of a `GSI2PK`.
pub fn parse_app(gsi2pk: &str) -> Result<&str, KeyError> {
    part("GSI2PK", gsi2pk, gsi2pk.strip_prefix("APP#"))
}

/// The tenant of a base-table partition key.
pub fn parse_pk(pk: &str) -> Result<&str, KeyError> {
    part("PK", pk, pk.strip_prefix("TENANT#"))
}

fn part<'a>(attribute: &'static str, whole: &str, part: Option<&'a str>) -> Result<&'a str, KeyError> {
    let wrong = |reason: String| KeyError { attribute, found: whole.into(), reason };
    let part = part.ok_or_else(|| wrong("does not begin as this key must".into()))?;
    Name::stored(attribute, part)
        .map(|_| part)
        .map_err(|invalid| wrong(format!("is no key: {}", invalid.reason)))
}

fn digits(text: &str) -> Option<Millis> {
    let plain = text.len() == 13 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !plain {
        return None;
    }
    text.parse::<u64>().ok().and_then(|value| Millis::try_from(value).ok())
}

/// Thirteen decimal digits without an allocation.
struct Digits([u8; 13]);

impl Digits {
    fn of(time: Millis) -> Self {
        let mut rest = time.get();
        let mut digits = [b'0'; 13];
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
        }
        Self(digits)
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_sample_event_has_its_sixteen_published_keys() {
        let keys = Keys::build(&KeyFields {
            tenant_id: "gbinnovations",
            app_name: "task-workflow",
            entity_type: "TASK",
            entity_id: "req-123",
            event_type: "Task Processing Started",
            timestamp: Millis::try_from(1_767_453_739_640).unwrap(),
            event_id: "ddf71f63-b036-4ac7-ad0f-77a7fdfca352",
        });
        let expected = [
            "TENANT#gbinnovations",
            "TIMESTAMP#1767453739640#EVENT#ddf71f63-b036-4ac7-ad0f-77a7fdfca352",
            "TASK#req-123",
            "TASK#TIMESTAMP#1767453739640",
            "APP#task-workflow",
            "TIMESTAMP#1767453739640",
            "APP#task-workflow",
            "TASK#req-123#TIMESTAMP#1767453739640",
            "EVENT#Task Processing Started",
            "TENANT#gbinnovations#TIMESTAMP#1767453739640",
            "EVENT#Task Processing Started",
            "TENANT#gbinnovations#TASK#req-123#TIMESTAMP#1767453739640",
            "EVENT#Task Processing Started",
            "TENANT#gbinnovations#APP#task-workflow#TIMESTAMP#1767453739640",
            "EVENT#Task Processing Started",
            "TENANT#gbinnovations#APP#task-workflow#TASK#req-123#TIMESTAMP#1767453739640",
        ];
        assert_eq!(keys.values(), expected);
    }

    fn name() -> impl Strategy<Value = String> {
        // Also the words that keys themselves are made of: nothing may be confused by them.
        prop_oneof![
            "[!-\"$-~]{1,12}",
            "[a-zA-Z]{1,8}( [a-zA-Z]{1,8}){0,2}",
            Just("TENANT".to_owned()),
            Just("TIMESTAMP".to_owned()),
            Just("EVENT".to_owned()),
            Just("APP".to_owned()),
            "[äß中🦀]{1,5}",
        ]
    }

    proptest! {
        #[test]
        fn keys_round_trip(
            names in proptest::array::uniform6(name()),
            time in Millis::MIN.get()..=Millis::MAX.get(),
        ) {
            let [tenant_id, app_name, entity_type, entity_id, event_type, event_id] = &names;
            let timestamp = Millis::try_from(time).unwrap();
            let fields = KeyFields { tenant_id, app_name, entity_type, entity_id, event_type, timestamp, event_id };
            let keys = Keys::build(&fields);
            prop_assert_eq!(parse(keys.values()), Ok(fields));
        }

        #[test]
        fn one_changed_attribute_is_noticed(names in proptest::array::uniform6(name()), which in 0_usize..16, tail in "[a-z]") {
            let [tenant_id, app_name, entity_type, entity_id, event_type, event_id] = &names;
            let keys = Keys::build(&KeyFields {
                tenant_id, app_name, entity_type, entity_id, event_type, event_id,
                timestamp: Millis::MIN,
            });
            let forged = format!("{}{tail}", keys.values()[which]);
            let mut values = keys.values();
            values[which] = &forged;
            prop_assert_eq!(mismatch(&keys, values).map(|error| error.attribute), Some(ATTRIBUTES[which]));
        }

        #[test]
        fn sort_keys_sort_as_time(a in Millis::MIN.get()..=Millis::MAX.get(), b in Millis::MIN.get()..=Millis::MAX.get()) {
            let sk = |time| join(&["TIMESTAMP", Digits::of(Millis::try_from(time).unwrap()).as_str(), "EVENT", "x"]);
            prop_assert_eq!(a.cmp(&b), sk(a).cmp(&sk(b)));
        }
    }

    #[test]
    fn a_foreign_sort_key_is_refused_with_its_name() {
        for sk in [
            "",
            "TIMESTAMP#1#EVENT#x",
            "TIMESTAMP#1767453739640#EVENT#",
            "TIMESTAMP#1767453739640#EVENT#a#b",
            "X#1767453739640#EVENT#a",
        ] {
            assert_eq!(parse_sk(sk).unwrap_err().attribute, "SK", "{sk}");
        }
    }
}
