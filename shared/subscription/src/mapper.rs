//! Input mappers: for each name of the input a recipe that makes its value from the event.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::{
    envelope::{self, ValueType},
    path::Path,
    source::{EventSource, InputSource, Source},
};

/// The prefix of a recipe that is a text.
pub(crate) const LITERAL: &str = "literal:";

/// The compiled recipes of a mapper.
#[derive(Clone, Debug)]
pub struct Recipes(Vec<(String, Recipe)>);

#[derive(Clone, Debug)]
enum Recipe {
    Text(String),
    Path(Path),
}

impl Recipes {
    /// Reads recipes over events; snake_case names of the event row are aliases of the fields.
    pub(crate) fn over_events(recipes: &BTreeMap<String, String>) -> Result<Self, String> {
        Self::parse(recipes, alias)
    }

    /// Checks recipes over events, and refuses those that find nothing in any event. Stored mappers are read without this
    /// check: an earlier version did not have it.
    pub(crate) fn check_over_events(recipes: &BTreeMap<String, String>) -> Result<(), String> {
        Self::over_events(recipes)?;
        let has_fields = |name: &str| match envelope::field(name) {
            Some(kind) => Ok(kind == ValueType::Map),
            None => Err(envelope::unknown_field(name)),
        };
        check_roots(recipes, alias, has_fields)
    }

    /// Checks recipes over the input of a start, whose fields are not known.
    pub(crate) fn check_over_input(recipes: &BTreeMap<String, String>) -> Result<(), String> {
        Self::over_input(recipes)?;
        check_roots(recipes, |_| None, |_| Ok(true))
    }

    /// Reads recipes over the input of a start.
    pub fn over_input(recipes: &BTreeMap<String, String>) -> Result<Self, String> {
        Self::parse(recipes, |_| None)
    }

    fn parse(
        recipes: &BTreeMap<String, String>,
        alias: impl Fn(&str) -> Option<&'static str>,
    ) -> Result<Self, String> {
        let one = |(name, text): (&String, &String)| match Recipe::parse(text, &alias) {
            Ok(recipe) => Ok((name.clone(), recipe)),
            Err(reason) => Err(format!("{name}: {reason}")),
        };
        recipes.iter().map(one).collect::<Result<_, _>>().map(Self)
    }

    /// The result of the recipes for `input`.
    pub fn fill(&self, input: &Map<String, Value>) -> Result<Map<String, Value>, String> {
        self.apply(&InputSource::new(input), "the input")
    }

    /// The result of the recipes for an event.
    pub(crate) fn map(&self, event: &EventSource<'_>) -> Result<Map<String, Value>, String> {
        self.apply(event, "this event")
    }

    fn apply(&self, source: &impl Source, called: &str) -> Result<Map<String, Value>, String> {
        let one = |(name, recipe): &(String, Recipe)| match recipe {
            Recipe::Text(text) => Ok((name.clone(), Value::from(text.as_str()))),
            Recipe::Path(path) => match path.find_in(source, called) {
                Ok(value) => Ok((name.clone(), value)),
                Err(reason) => Err(format!("{name}: {reason}")),
            },
        };
        self.0.iter().map(one).collect()
    }
}

impl Recipe {
    fn parse(text: &str, alias: impl Fn(&str) -> Option<&'static str>) -> Result<Self, String> {
        if let Some(literal) = text.strip_prefix(LITERAL) {
            return Ok(Self::Text(literal.into()));
        }
        if text.starts_with('$') {
            return Path::parse_with(text, alias).map(Self::Path);
        }
        let trimmed = text.trim_start();
        let hint = match trimmed.chars().next() {
            Some('$') => format!("write `{trimmed}`, without the space before it"),
            Some(c) if c.is_alphanumeric() => format!("did you mean `$.{trimmed}` or `literal:{trimmed}`?"),
            _ => "such as `$.payload.amount` or `literal:daily`".into(),
        };
        Err(format!("{text:?} is neither a JSONPath, which begins with `$`, nor `literal:…`; {hint}"))
    }
}

fn check_roots(
    recipes: &BTreeMap<String, String>,
    alias: impl Fn(&str) -> Option<&'static str>,
    known: impl Fn(&str) -> Result<bool, String>,
) -> Result<(), String> {
    recipes.iter().filter(|(_, text)| text.starts_with('$')).try_for_each(|(name, text)| {
        Path::check_root(text, &alias, &known).map_err(|reason| format!("{name}: {reason}"))
    })
}

/// Aliases of the envelope's fields: the column names that other systems give the same rows.
fn alias(name: &str) -> Option<&'static str> {
    Some(match name {
        "payload" | "payload_json" => "properties",
        "event_id" => "eventId",
        "event_type" => "eventType",
        "entity_type" => "entityType",
        "entity_id" => "entityId",
        "tenant_id" => "tenantId",
        "app_name" => "appName",
        "caused_by" => "causedBy",
        "workflow_run_id" => "workflowRunId",
        "source_system" => "sourceSystem",
        "sequence_no" => "sequenceNo",
        "idempotency_key" => "idempotencyKey",
        "occurred_at" => "timestamp",
        "recorded_at" => "receivedAt",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use ledgerline_event::Event;
    use serde_json::json;

    use super::*;

    fn event() -> Event {
        serde_json::from_value(json!({
            "eventId": "01J0XYZ", "tenantId": "acme", "appName": "shop", "entityType": "item", "entityId": "10472",
            "eventType": "price.changed", "timestamp": 1_779_719_000_000_u64, "receivedAt": 1_779_719_000_500_u64,
            "context": {"source": "drain"}, "causedBy": "workflow:bid", "workflowRunId": "run_01J0",
            "sourceSystem": "platform", "sequenceNo": 142, "idempotencyKey": "k",
            "properties": {"old_price": 1.42, "payload": "inner", "lines": [{"sku": "a", "n": 1}, {"sku": "b", "n": 5}]},
        }))
        .unwrap()
    }

    fn map(recipe: &str) -> Result<Value, String> {
        let recipes = BTreeMap::from([("x".to_owned(), recipe.to_owned())]);
        let event = event();
        let mut mapped = Recipes::over_events(&recipes)?.map(&EventSource::new(&event))?;
        Ok(mapped.remove("x").unwrap())
    }

    #[test]
    fn a_recipe_is_a_path_into_the_event_row_or_a_text() {
        for (recipe, expected) in [
            ("$.entityId", json!("10472")),
            ("$.properties.old_price", json!(1.42)),
            ("literal:foo", json!("foo")),
            ("literal:", json!("")),
            ("literal:$.entity_id", json!("$.entity_id")),
            ("$.context.source", json!("drain")),
            ("$.payload.lines[1].sku", json!("b")),
            ("$.payload.lines[*].sku", json!(["a", "b"])),
            ("$.payload.lines[?@.n > 3].sku", json!(["b"])),
            ("$.payload.lines[?@.n >= $.payload.lines[1].n].sku", json!(["b"])),
            ("$.payload.nothing[*]", json!([])),
        ] {
            assert_eq!(map(recipe), Ok(expected), "{recipe}");
        }
        assert_eq!(map("$").unwrap()["eventId"], "01J0XYZ");
    }

    #[test]
    fn the_names_of_the_ledgers_rows_mean_fields_of_the_envelope() {
        for (recipe, expected) in [
            ("$.event_id", json!("01J0XYZ")),
            ("$.event_type", json!("price.changed")),
            ("$.entity_type", json!("item")),
            ("$.entity_id", json!("10472")),
            ("$['entity_id']", json!("10472")),
            ("$ [ \"entity_id\" ]", json!("10472")),
            ("$.tenant_id", json!("acme")),
            ("$.app_name", json!("shop")),
            ("$.caused_by", json!("workflow:bid")),
            ("$.workflow_run_id", json!("run_01J0")),
            ("$.source_system", json!("platform")),
            ("$.sequence_no", json!(142)),
            ("$.idempotency_key", json!("k")),
            ("$.occurred_at", json!(1_779_719_000_000_u64)),
            ("$.recorded_at", json!(1_779_719_000_500_u64)),
            ("$.payload_json.old_price", json!(1.42)),
            ("$['payload']['old_price']", json!(1.42)),
            ("$['entity_id','event_id']", json!(["10472", "01J0XYZ"])),
            // Only the first segment has other names.
            ("$.payload.payload", json!("inner")),
            ("$.properties.payload", json!("inner")),
            ("$..payload", json!(["inner"])),
        ] {
            assert_eq!(map(recipe), Ok(expected), "{recipe}");
        }
    }

    #[test]
    fn what_is_missing_and_what_is_no_recipe_is_named() {
        let missing = map("$.payload.vendor").unwrap_err();
        assert_eq!(missing, "x: `$.payload.vendor` finds nothing in this event");
        for (recipe, expected) in [
            ("entity_id", "did you mean `$.entity_id` or `literal:entity_id`?"),
            (" $.a", "write `$.a`, without the space before it"),
            ("", "such as `$.payload.amount`"),
            ("$.payload[", "x: \"$.payload[\" is no JSONPath: it ends where a `]` is missing at position 11"),
        ] {
            let error = map(recipe).unwrap_err();
            assert!(error.starts_with("x: ") && error.contains(expected), "{recipe}: {error}");
        }
    }

    #[test]
    fn a_path_that_finds_nothing_in_any_event_is_refused_with_the_place() {
        let check =
            |recipe: &str| Recipes::check_over_events(&BTreeMap::from([("x".to_owned(), recipe.to_owned())]));
        for recipe in [
            "$",
            "$.entity_id",
            "$['payload']['x']",
            "$.payload.anything[0].at.all",
            "$.context.anything",
            "$..foo",
            "$.*",
            "$['entity_id','event_id']",
            "$.payload.lines[?@.foo >= $.payload.n]",
            "literal:$.foo",
            "$.ttl",
        ] {
            assert_eq!(check(recipe), Ok(()), "{recipe}");
        }
        for (recipe, expected) in [
            ("$.foo", "x: \"$.foo\" at position 3: no event has a field `foo`; there are eventId, "),
            ("$.entity_ix", "x: \"$.entity_ix\" at position 3: no event has a field `entity_ix`; there are"),
            ("$.type", "no event has a field `type`; did you mean `eventType`?"),
            ("$['entity_id', 'foo']", "at position 16: no event has a field `foo`"),
            ("$.payload[?@.n > $.foo.n]", "at position 20: no event has a field `foo`"),
            ("$[0]", "x: \"$[0]\" at position 2: `$` is an object and has no index"),
            ("$.event_type.x", "at position 13: `event_type` is a text or a number, with nothing inside"),
        ] {
            let error = check(recipe).unwrap_err();
            assert!(error.starts_with("x: ") && error.contains(expected), "{recipe}: {error}");
        }
    }

    #[test]
    fn over_the_input_of_a_start_names_are_just_names() {
        let recipes = BTreeMap::from([("id".to_owned(), "$.entity_id".to_owned())]);
        let recipes = Recipes::over_input(&recipes).unwrap();
        let input = json!({"entity_id": 7, "entityId": 8});
        assert_eq!(recipes.fill(input.as_object().unwrap()).unwrap()["id"], 7);
        assert!(recipes.fill(&Map::new()).unwrap_err().contains("finds nothing in the input"));
    }
}
