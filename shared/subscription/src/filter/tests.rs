use serde_json::json;

use super::*;

fn event() -> Value {
    json!({
        "entityType": "ITEM", "timestamp": 1_767_453_739_640_u64, "context": {"via": []},
        "properties": {"amount": 150, "price": 1.5, "large": u64::MAX, "none": null, "list": [1, 2, 3],
            "name": "größe", "flag": true, "lines": [{"qty": 4, "tags": ["a"]}, {"qty": 1, "tags": []}]},
    })
}

fn passes(text: &str) -> Result<bool, String> {
    Filter::compile(text).unwrap_or_else(|error| panic!("{text}: {error}")).passes(&event())
}

#[test]
fn a_filter_says_yes_or_no() {
    for (text, expected) in [
        (r#"event.properties.amount > 100 && event.entityType == "ITEM""#, true),
        ("event.properties.amount > 100.5", true),
        ("event.properties.price > 1", true),
        ("event.properties.amount == 150.0", true),
        ("event.properties.large > 1", true),
        ("event.properties.none == null", true),
        ("event.properties.flag", true),
        ("has(event.properties.nothing)", false),
        ("event.properties.?nothing.orValue(0) > 0", false),
        ("2 in event.properties.list", true),
        ("event.entityType in ['ITEM', 'STORE']", true),
        ("event.properties.lines.exists(l, l.qty > 3 && l.tags.exists(t, t == 'a'))", true),
        ("event.properties.lines.all(l, l.qty > 3)", false),
        ("event.properties.name.matches('^gr.?ö') && size(event.properties.name) == 5", true),
        ("event.properties.name.startsWith('x') || event['entityType'] == 'ITEM'", true),
        ("type(event.properties.name) == string ? true : false", true),
        // What is decided without the missing field needs no field.
        ("event.properties.nothing > 1 || true", true),
        ("event.properties.nothing > 1 && false", false),
    ] {
        assert_eq!(passes(text), Ok(expected), "{text}");
    }
}

#[test]
fn an_event_that_lacks_a_field_of_the_filter_does_not_pass() {
    for text in [
        "event.properties.nothing > 1",
        "!(event.properties.nothing > 1)",
        "event['properties']['nothing'] == null",
        "event.properties.lines.exists(l, l.nothing > 1)",
    ] {
        assert_eq!(passes(text), Ok(false), "{text}");
        let outcome = Filter::compile(text).unwrap().evaluate(&Activation::new(&event()));
        assert_eq!(outcome, Ok(FilterOutcome::MissingField("nothing".into())), "{text}");
    }
}

#[test]
fn a_filter_that_cannot_be_decided_says_why() {
    for (text, expected) in [
        ("event.properties.amount", "neither true nor false but a number"),
        ("event.properties", "neither true nor false but a map"),
        ("event.properties.name > 1", "`>` cannot be applied to string and int"),
        ("event.properties.none > 1", "`>` cannot be applied to null_type and int"),
        ("event.properties.amount + 1.5 > 1.0", "a number and a number cannot be combined by `"),
        ("event.properties.list[7] == 1", "a list has no such index"),
        ("event.properties.amount / 0 == 1", "divides by zero"),
        ("9223372036854775807 + 1 > 0", "a number becomes too large"),
        ("int(event.properties.name) == 1", "`int`: "),
        ("'a'.matches(event.properties.name + '(')", "is no regular expression"),
    ] {
        let error = passes(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(error.len() < 200, "{text}: {error}");
    }
}

#[test]
fn a_filter_that_cannot_be_read_says_where() {
    for (text, expected) in [
        ("event.a >> 3", "at line 1, column 10: unexpected token\n  event.a >> 3\n           ^"),
        ("'ä' == )", "at line 1, column 8: unexpected token\n  'ä' == )\n         ^"),
        ("event.a ==\n  == 3", "at line 2, column 3: unexpected token\n    == 3\n    ^"),
        ("event.a > ", "column 11: mismatched input the end"),
        ("'abc", "column 1: unterminated string literal"),
        ("'event' == evnt.a", "column 12: `evnt` is not known; the fields of the event begin with `event.`"),
        ("event.a.all(x, y > x)", "column 16: `y` is not known"),
        ("event.a.foo()", "column 9: there is no function `foo`"),
        ("event.a.all(1)", "column 9: there is no function `all`"),
        ("Event{a: 1}", "column 1: there is no type `Event`"),
        ("event.a.matches('(')", "column 9: `(` is no regular expression: unclosed group"),
        ("", "is empty"),
    ] {
        let error = Filter::compile(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert!(Filter::compile(&format!("'{}' == ''", "x".repeat(4096))).unwrap_err().contains("4104 bytes"));
}

#[test]
fn a_hostile_filter_neither_overflows_the_stack_nor_runs_for_long() {
    let nested = |open: &str, close: &str, n: usize| format!("{}true{}", open.repeat(n), close.repeat(n));
    for text in [
        nested("(", ")", 2000),
        nested("!(", ")", 1300),
        nested("[", "]", 2000),
        nested("{1:", "}", 1000),
        nested("true ? false : ", "", 270),
        nested("size(", ")", 600),
        nested("[1].all(x, ", ")", 300),
        nested("[1].all(x, ", ")", 4),
        nested("!", "", 4000),
        nested("-", "", 4000),
        nested("1+", "", 2000),
        format!("event{}", "[0]".repeat(1000)),
        "(".repeat(4096),
    ] {
        if let Ok(filter) = Filter::compile(&text) {
            let _ = filter.passes(&event());
        }
    }
    let large = json!({"a": vec![0; 20_000]});
    for text in [
        "event.a.all(x, event.a.all(y, x == y))",
        "event.a.all(x, x in event.a)",
        "size(event.a.map(x, event.a)) > 0",
    ] {
        let error = Filter::compile(text).unwrap().passes(&large).unwrap_err();
        assert!(error.contains("too long in this event"), "{text}: {error}");
    }
    for text in ["event.a.all(x, x in [0, 1])", "event.a.all(x, x == 0)", "size(event.a.map(x, x + 1)) > 0"] {
        assert_eq!(Filter::compile(text).unwrap().passes(&large), Ok(true), "{text}");
    }
}

/// The library has two parsers. We call the one that the library does not use by default, so both must agree.
#[test]
fn our_parser_agrees_with_the_default_parser_of_the_library() {
    for text in [
        "event.a > 100 && event.b == \"ITEM\" || !event.c",
        "event.a.b['c d'][0] in [1, 2u, 3.5, -4, 'x', b'y', null, true]",
        "event.a.exists(x, x.y.all(z, z > 1)) ? 1 + 2 * 3 - 4 / 5 % 6 : {'k': 1, 2: 'v'}",
        "has(event.a.b) && event.a.filter(x, x > 1).map(y, y * 2) == [4]",
        "r'\\d' == '\\u00e4\\n' && \"\"\"a\nb\"\"\" != ''",
        "event.a.startsWith('x') // a comment",
    ] {
        let ours = PrattParser::new().enable_optional_syntax(true).parse(text).unwrap();
        let theirs = ENVIRONMENT.compile(text).unwrap();
        assert_eq!(bare(&ours), bare(theirs.expression()), "{text}");
    }
}

/// An expression without the numbers of its nodes.
fn bare(expression: &Expression) -> String {
    let text = format!("{expression:?}");
    let parts = text.split("id: ");
    parts.map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit())).collect()
}

#[test]
fn a_filter_that_can_work_on_no_event_is_refused_with_the_place() {
    for text in [
        r#"event.properties.amount > 100 && event.entityType == "ITEM""#,
        "event.properties.flag",
        "event.context.anything.at.all == 1",
        "has(event.causedBy) && !has(event.properties.x)",
        "event.properties.?nothing.orValue(false)",
        "event.properties.lines.exists(l, l.qty > 3 && l.tags.exists(t, t == 'a'))",
        "event.properties.lines.exists_one(event, event.foo == 1)",
        "event.properties.lines.filter(l, l.foo).size() > 0",
        "event.properties.a ? event.properties.b : true",
        "event['entityType'] in ['ITEM'] || event[event.properties.name] == 1",
        "type(event.properties.name) == string ? true : false",
        "bool(event.properties.x) && dyn(event.properties.y)",
        "true",
    ] {
        assert_eq!(Filter::check(text), Ok(()), "{text}");
    }
    let needs = "true or false is needed here, and this is";
    for (text, column, expected) in [
        ("event.properties.n + 1", 1, format!("{needs} a number")),
        (" \"x\"", 2, format!("{needs} a text")),
        ("1", 1, format!("{needs} a number")),
        ("null", 1, format!("{needs} null")),
        ("[event.properties.a]", 1, format!("{needs} a list")),
        ("event", 1, format!("{needs} a map")),
        ("event.eventType", 1, format!("{needs} a text")),
        ("event.properties.lines.map(l, l.qty)", 1, format!("{needs} a list")),
        ("size(event.properties.list)", 1, format!("{needs} a number")),
        ("event.properties.a ? 1 : 'x'", 1, format!("{needs} something else")),
        ("event.properties.a && event.entityType", 29, format!("{needs} a text")),
        ("!event.timestamp", 8, format!("{needs} a number")),
        ("event.type == 'x'", 7, "no event has a field `type`; did you mean `eventType`?".into()),
        ("true || event.foo > 1", 15, "no event has a field `foo`; there are ".into()),
        ("has(event.payload)", 11, "did you mean `properties`?".into()),
        ("event['type'] == 'x'", 8, "did you mean `eventType`?".into()),
        ("event.?type.hasValue()", 8, "did you mean `eventType`?".into()),
        ("event.properties.lines.all(l, l.n == event.sequence)", 44, "did you mean `sequenceNo`?".into()),
    ] {
        let error = Filter::check(text).unwrap_err();
        assert!(error.starts_with(&format!("at line 1, column {column}: ")), "{text}: {error}");
        assert!(error.contains(&expected) && error.contains('^'), "{text}: {error}");
        assert!(Filter::compile(text).is_ok(), "{text}: one that is stored is compiled all the same");
    }
    // However deep it is, each part is looked at once.
    let deep = format!("{}true{}", "!(".repeat(60), ")".repeat(60));
    assert_eq!(Filter::check(&deep), Ok(()));
}

#[test]
fn a_filter_that_panics_is_a_failure_of_its_event() {
    let failed = outcome_of(|| panic!("the evaluator gave up"));
    assert_eq!(failed, Err("cannot be evaluated for this event".to_owned()));
    assert_eq!(outcome_of(|| Ok(CelValue::Bool(true))), Ok(FilterOutcome::Passes));
}
