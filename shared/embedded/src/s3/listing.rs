//! ListObjectsV2: keys in order, with what lies below a delimiter rolled into one common prefix.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rusqlite::{OptionalExtension, Transaction, params};
use s3s::dto::*;
use s3s::{S3Result, s3_error};

use super::objects::timestamp;

/// Where to begin and what to look for.
pub(crate) struct Query {
    prefix: String,
    delimiter: Option<String>,
    after: Option<String>,
    max: usize,
}

impl Query {
    pub(crate) fn new(input: &ListObjectsV2Input) -> S3Result<Self> {
        let token =
            match &input.continuation_token {
                Some(token) => Some(decode(token).ok_or_else(|| {
                    s3_error!(InvalidArgument, "The continuation token provided is incorrect")
                })?),
                None => None,
            };
        Ok(Self {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone().filter(|delimiter| !delimiter.is_empty()),
            after: token.or_else(|| input.start_after.clone()),
            max: usize::try_from(input.max_keys.unwrap_or(1000)).unwrap_or(0).min(1000),
        })
    }

    /// The common prefix that a key is rolled into, if it is.
    fn rolled<'a>(&self, key: &'a str) -> Option<&'a str> {
        let delimiter = self.delimiter.as_deref()?;
        let at = key[self.prefix.len()..].find(delimiter)?;
        Some(&key[..self.prefix.len() + at + delimiter.len()])
    }
}

/// One page of a listing.
#[derive(Default)]
pub(crate) struct Page {
    objects: Vec<Object>,
    prefixes: Vec<CommonPrefix>,
    /// The last key or common prefix of the page, if more follow.
    next: Option<String>,
}

/// Reads one page, seeking past each common prefix instead of reading what lies below it.
pub(crate) fn page(tx: &Transaction<'_>, bucket: &str, query: &Query) -> rusqlite::Result<Page> {
    let mut statement = tx.prepare_cached(
        "SELECT key, size, etag, modified_at FROM objects WHERE bucket = ?1 AND key >= ?2 AND key > ?3 \
         ORDER BY key LIMIT 1",
    )?;
    let mut page = Page::default();
    let mut last: Option<String> = None;
    let mut after = match &query.after {
        Some(after) => past(query, after),
        None => String::new(),
    };
    loop {
        let found = statement
            .query_row(params![bucket, query.prefix, after], |row| {
                let (key, size, etag): (String, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
                Ok((key, size, etag, row.get::<_, u64>(3)?))
            })
            .optional()?;
        let Some((key, size, etag, modified_at)) = found else { return Ok(page) };
        if !key.starts_with(&query.prefix) {
            return Ok(page);
        }
        if page.objects.len() + page.prefixes.len() >= query.max {
            page.next = last;
            return Ok(page);
        }
        if let Some(prefix) = query.rolled(&key) {
            page.prefixes.push(CommonPrefix { prefix: Some(prefix.to_owned()) });
            after = below(prefix);
            last = Some(prefix.to_owned());
        } else {
            page.objects.push(Object {
                key: Some(key.clone()),
                size: Some(size),
                e_tag: Some(ETag::Strong(etag)),
                last_modified: Some(timestamp(modified_at)),
                storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
                ..Default::default()
            });
            last = Some(key.clone());
            after = key;
        }
    }
}

/// Where to go on after `last`: behind all it stands for, if it was a common prefix.
fn past(query: &Query, last: &str) -> String {
    let rolled = last.starts_with(&query.prefix).then(|| query.rolled(last)).flatten();
    if rolled == Some(last) { below(last) } else { last.to_owned() }
}

/// Greater than every key that begins with `prefix`.
fn below(prefix: &str) -> String {
    format!("{prefix}{}", char::MAX)
}

impl Page {
    pub(crate) fn into_output(self, input: ListObjectsV2Input) -> ListObjectsV2Output {
        let count = self.objects.len() + self.prefixes.len();
        ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(input.prefix.unwrap_or_default()),
            delimiter: input.delimiter,
            start_after: input.start_after,
            continuation_token: input.continuation_token,
            max_keys: Some(input.max_keys.unwrap_or(1000)),
            key_count: i32::try_from(count).ok(),
            is_truncated: Some(self.next.is_some()),
            next_continuation_token: self.next.map(|next| BASE64_URL_SAFE_NO_PAD.encode(next)),
            contents: Some(self.objects),
            common_prefixes: Some(self.prefixes),
            ..Default::default()
        }
    }
}

fn decode(token: &str) -> Option<String> {
    String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(token).ok()?).ok()
}
