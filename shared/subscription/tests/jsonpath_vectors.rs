//! JSONPath as RFC 9535 has it, with our rule on top: a singular path gives its one value.

use ledgerline_subscription::Path;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Rfc {
    sections: Vec<Section>,
}

#[derive(Deserialize)]
struct Section {
    section: String,
    document: Value,
    #[serde(default)]
    invalid: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Case {
    path: String,
    finds: Vec<Value>,
    #[serde(default)]
    any_order: bool,
}

#[derive(Deserialize)]
struct Suite {
    tests: Vec<SuiteCase>,
}

#[derive(Deserialize)]
struct SuiteCase {
    name: String,
    selector: String,
    #[serde(default)]
    document: Value,
    result: Option<Vec<Value>>,
    results: Option<Vec<Vec<Value>>>,
    #[serde(default)]
    invalid_selector: bool,
}

/// What `path` finds, as the list that the RFC speaks of.
fn nodes(path: &Path, document: &Value) -> Vec<Value> {
    match (path.is_singular(), path.find(document)) {
        (true, Ok(value)) => vec![value],
        (true, Err(reason)) => {
            assert!(reason.contains("finds nothing"), "{reason}");
            vec![]
        }
        (false, Ok(Value::Array(all))) => all,
        (false, other) => panic!("{}: {other:?}", path.as_str()),
    }
}

fn sorted(mut values: Vec<Value>) -> Vec<Value> {
    values.sort_by_key(Value::to_string);
    values
}

/// Where the library departs from the RFC: `<=` between two absent values is false, though `==` is true.
const ABSENT: &str = "$[?$.absent1 <= $.absent2]";

#[test]
fn the_examples_of_the_rfc_find_what_the_rfc_says() {
    let rfc: Rfc = serde_json::from_str(include_str!("vectors/rfc9535.json")).unwrap();
    let mut wrong = Vec::new();
    for Section { section, document, invalid, cases } in rfc.sections {
        for Case { path, finds, any_order } in cases {
            let found = nodes(&Path::parse(&path).unwrap(), &document);
            let (found, finds) = if any_order { (sorted(found), sorted(finds)) } else { (found, finds) };
            if found != finds {
                wrong.push(path);
            }
        }
        for path in invalid {
            assert!(Path::parse(&path).is_err(), "section {section}: {path}");
        }
    }
    assert_eq!(wrong, [ABSENT]);
}

#[test]
fn the_compliance_suite_of_the_standard_passes() {
    let suite: Suite = serde_json::from_str(include_str!("vectors/jsonpath-compliance/cts.json")).unwrap();
    let mut wrong = Vec::new();
    for case in &suite.tests {
        let found = Path::parse(&case.selector).map(|path| nodes(&path, &case.document));
        let right = match &found {
            Err(_) => case.invalid_selector,
            Ok(found) => {
                let expected = case.result.iter().chain(case.results.iter().flatten());
                !case.invalid_selector && expected.into_iter().any(|expected| expected == found)
            }
        };
        if !right {
            wrong.push(format!("{}: {:?} gives {found:?}", case.name, case.selector));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), suite.tests.len(), wrong.join("\n"));
}
