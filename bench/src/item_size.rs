//! The size of an item as DynamoDB counts it: names and values in bytes, numbers by their
//! digits, and a little for every list, map and element.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

/// The bytes of a whole item.
pub(crate) fn item_size(item: &HashMap<String, AttributeValue>) -> usize {
    item.iter().map(|(name, value)| name.len() + value_size(value)).sum()
}

fn value_size(value: &AttributeValue) -> usize {
    const CONTAINER: usize = 3;
    const ELEMENT: usize = 1;
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(number) => number_size(number),
        AttributeValue::B(bytes) => bytes.as_ref().len(),
        AttributeValue::L(list) => {
            CONTAINER + list.iter().map(|value| ELEMENT + value_size(value)).sum::<usize>()
        }
        AttributeValue::M(map) => {
            CONTAINER
                + map.iter().map(|(name, value)| ELEMENT + name.len() + value_size(value)).sum::<usize>()
        }
        AttributeValue::Ss(texts) => texts.iter().map(String::len).sum(),
        AttributeValue::Ns(numbers) => numbers.iter().map(|number| number_size(number)).sum(),
        AttributeValue::Bs(blobs) => blobs.iter().map(|bytes| bytes.as_ref().len()).sum(),
        // Booleans and null.
        _ => 1,
    }
}

/// One byte for every two significant digits, and one more; a sign costs another.
fn number_size(number: &str) -> usize {
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => (1, digits),
        None => (0, number),
    };
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    let significant = digits.trim_matches('0').len();
    significant.div_ceil(2) + 1 + sign
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_published() {
        let item = HashMap::from([
            ("PK".to_owned(), AttributeValue::S("TENANT#é".into())),
            ("n".to_owned(), AttributeValue::N("1767453739640".into())),
            (
                "m".to_owned(),
                AttributeValue::M(HashMap::from([("a".to_owned(), AttributeValue::Bool(true))])),
            ),
        ]);
        assert_eq!(item_size(&item), (2 + 9) + (1 + 7) + (1 + 3 + 1 + 1 + 1));
        assert_eq!(number_size("-200000"), 3);
    }
}
