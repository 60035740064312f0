//! Which tables a request names.

use std::collections::BTreeMap;

use serde::{Deserialize, de::IgnoredAny};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Batch {
    request_items: BTreeMap<String, IgnoredAny>,
}

/// The tables that a request names, as it writes them; what cannot be read names none.
///
/// In requests for single items and in transactions a name is the text beside `TableName`. Nothing else looks like it:
/// an attribute has an object there, and a quote within a text is escaped.
pub(super) fn named(operation: &str, body: &[u8]) -> Vec<String> {
    match operation {
        "BatchGetItem" | "BatchWriteItem" => serde_json::from_slice::<Batch>(body)
            .map(|batch| batch.request_items.into_keys().map(|name| short(&name).to_owned()).collect())
            .unwrap_or_default(),
        // Only these name more than one.
        "TransactGetItems" | "TransactWriteItems" => texts(body, b"\"TableName\"").collect(),
        "ListTagsOfResource" | "TagResource" | "UntagResource" => texts(body, b"\"ResourceArn\"").collect(),
        _ => texts(body, b"\"TableName\"").take(1).collect(),
    }
}

/// The texts beside a field, wherever it occurs.
fn texts(body: &[u8], field: &'static [u8]) -> impl Iterator<Item = String> {
    let ends = (0..body.len().saturating_sub(field.len()))
        .filter(move |at| body[*at] == b'"' && body[*at..].starts_with(field))
        .map(move |at| at + field.len());
    ends.filter_map(|end| {
        let rest =
            body[end..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start().strip_prefix(b"\"")?;
        let length = rest.iter().position(|byte| *byte == b'"')?;
        std::str::from_utf8(&rest[..length]).ok().map(|name| short(name).to_owned())
    })
}

/// A table may be named by its ARN.
fn short(name: &str) -> &str {
    match name.starts_with("arn:").then(|| name.split_once(":table/")).flatten() {
        Some((_, name)) => name.split('/').next().unwrap_or(name),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn names(operation: &str, body: &str, expected: &[&str]) {
        assert_eq!(named(operation, body.as_bytes()), expected, "{body}");
    }

    #[test]
    fn the_tables_of_a_request_are_found_wherever_they_stand() {
        names("PutItem", r#"{"Item":{},"TableName":"events-local"}"#, &["events-local"]);
        names("PutItem", "{ \"TableName\" :\n \"a.b_c\" }", &["a.b_c"]);
        names("Query", r#"{"TableName":"arn:aws:dynamodb:us-east-1:0:table/a/index/i"}"#, &["a"]);
        names("TagResource", r#"{"ResourceArn":"arn:aws:dynamodb:us-east-1:0:table/a"}"#, &["a"]);
        names(
            "TransactWriteItems",
            r#"{"TransactItems":[{"Put":{"TableName":"a"}},{"Update":{"TableName": "b"}}]}"#,
            &["a", "b"],
        );
        names("BatchWriteItem", r#"{"RequestItems":{"b":[{"PutRequest":{}}],"a":[]}}"#, &["a", "b"]);
        names("PutItem", r#"{"TableName":"cut sho"#, &[]);
        names("BatchGetItem", r#"{"RequestItems":["#, &[]);
        names("ListTables", "", &[]);
    }

    #[test]
    fn what_only_looks_like_a_table_is_none() {
        let item = r#"{"Item":{"TableName":{"S":"x"},"s":{"S":"\"TableName\":\"y\""}},"TableName":"a"}"#;
        names("PutItem", item, &["a"]);
    }
}
