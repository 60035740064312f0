//! Takes the signature off a request.
//!
//! Any credentials will do here, but s3s checks each signature it finds and unwraps signed streams only as
//! part of that check. So the signature goes, and a body sent in `aws-chunked` coding is unwrapped here.

use axum::body::Bytes;
use axum::http::{HeaderName, HeaderValue, Uri, header, request::Parts, uri::PathAndQuery};

use crate::answer::AwsError;

const DECODED_LENGTH: HeaderName = HeaderName::from_static("x-amz-decoded-content-length");
const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");

/// Makes a signed request an anonymous one and gives its plain body.
pub(crate) fn strip(parts: &mut Parts, body: Bytes) -> Result<Bytes, AwsError> {
    parts.headers.remove(header::AUTHORIZATION);
    if let Some(uri) = without_signature(&parts.uri) {
        parts.uri = uri;
    }
    let payload = parts.headers.remove(CONTENT_SHA256);
    if !payload.is_some_and(|payload| payload.as_bytes().starts_with(b"STREAMING-")) {
        return Ok(body);
    }
    let malformed =
        || AwsError::sender("IncompleteBody", "The body is not what its aws-chunked coding announces.");
    let (plain, trailer) = decode(&body).ok_or_else(malformed)?;
    let announced = parts.headers.remove(DECODED_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length != plain.len()) {
        return Err(malformed());
    }
    parts.headers.remove("x-amz-trailer");
    parts.headers.remove(header::TRANSFER_ENCODING);
    strip_coding(parts);
    parts.headers.insert(header::CONTENT_LENGTH, plain.len().into());
    for (name, value) in trailer {
        parts.headers.insert(name, value);
    }
    Ok(plain.into())
}

/// `aws-chunked` describes the transfer, not the object, unlike what else may stand beside it.
fn strip_coding(parts: &mut Parts) {
    let Some(coding) = parts.headers.remove(header::CONTENT_ENCODING) else { return };
    let others = coding.to_str().unwrap_or_default().split(',').map(str::trim);
    let others: Vec<&str> = others.filter(|coding| !coding.is_empty() && *coding != "aws-chunked").collect();
    if !others.is_empty()
        && let Ok(coding) = HeaderValue::from_str(&others.join(", "))
    {
        parts.headers.insert(header::CONTENT_ENCODING, coding);
    }
}

/// The address without what a presigned URL adds.
fn without_signature(uri: &Uri) -> Option<Uri> {
    const SIGNING: [&str; 10] = [
        "AWSAccessKeyId",
        "Signature",
        "Expires",
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
        "X-Amz-Security-Token",
    ];
    let query = uri.query().filter(|query| query.contains("Signature="))?;
    let name = |pair: &str| pair.split('=').next().map(str::to_owned).unwrap_or_default();
    let kept: Vec<&str> = query.split('&').filter(|pair| !SIGNING.contains(&name(pair).as_str())).collect();
    let path = format!("{}?{}", uri.path(), kept.join("&"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path.trim_end_matches('?')).ok()?);
    Uri::from_parts(parts).ok()
}

type Trailer = Vec<(HeaderName, HeaderValue)>;

/// Unwraps `size[;chunk-signature=…]\r\n data \r\n … 0\r\n name:value\r\n \r\n`.
fn decode(body: &[u8]) -> Option<(Vec<u8>, Trailer)> {
    let mut plain = Vec::with_capacity(body.len());
    let mut rest = body;
    loop {
        let (line, after) = split_line(rest)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some((plain, trailer(after)));
        }
        let (data, after) = after.split_at_checked(size)?;
        plain.extend_from_slice(data);
        rest = after.strip_prefix(b"\r\n")?;
    }
}

fn trailer(mut rest: &[u8]) -> Trailer {
    let mut headers = Vec::new();
    while let Some((line, after)) = split_line(rest) {
        if let Some((name, value)) = line.split_once(':')
            && name != "x-amz-trailer-signature"
            && let (Ok(name), Ok(value)) = (name.trim().parse(), value.trim().parse())
        {
            headers.push((name, value));
        }
        rest = after;
    }
    headers
}

fn split_line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 2..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined_and_the_trailer_read() {
        let body = b"5;chunk-signature=ab\r\nhello\r\n3\r\n\r\n!\r\n0\r\nx-amz-checksum-crc32:AAAA==\r\n\r\n";
        let (plain, trailer) = decode(body).unwrap();
        assert_eq!(plain, b"hello\r\n!");
        assert_eq!(trailer[0].0, "x-amz-checksum-crc32");
        assert_eq!(trailer[0].1, "AAAA==");
    }

    #[test]
    fn a_body_cut_short_is_refused() {
        assert!(decode(b"5\r\nhel").is_none());
        assert!(decode(b"5\r\nhello\r\n").is_none());
        assert!(decode(b"ffffffffffffffff\r\nhello\r\n").is_none());
    }
}
