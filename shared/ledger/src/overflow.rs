//! The large properties of an event: into S3 before it is sent, back into it when it is read.

use aws_sdk_s3::primitives::ByteStream;
use ledgerline_event::{
    Event, Properties, content_hash,
    overflow::{self, MARKER},
};

use crate::{Fault, StoreError};

/// The payload bucket.
#[derive(Clone, Debug)]
pub struct Payloads {
    s3: aws_sdk_s3::Client,
    bucket: String,
}

impl Payloads {
    /// The bucket of a stage.
    pub fn new(s3: aws_sdk_s3::Client, bucket: impl Into<String>) -> Self {
        Self { s3, bucket: bucket.into() }
    }

    /// The bucket's name.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Writes one JSON object.
    pub async fn put(&self, key: &str, body: Vec<u8>) -> Result<(), StoreError> {
        self.s3
            .put_object()
            .bucket(&self.bucket)
            .key(key)
            .content_type("application/json")
            .body(ByteStream::from(body))
            .send()
            .await
            .map(|_| ())
            .map_err(|error| StoreError::new("PutObject", error))
    }

    /// Writes one JSON object if none is there; `false` if another one is, with other content.
    pub async fn put_once(&self, key: &str, body: Vec<u8>) -> Result<bool, StoreError> {
        let put = self
            .s3
            .put_object()
            .bucket(&self.bucket)
            .key(key)
            .content_type("application/json")
            .if_none_match("*")
            .body(ByteStream::from(body.clone()))
            .send()
            .await
            .map_err(|error| StoreError::new("PutObject", error));
        match put {
            Ok(_) => Ok(true),
            // Our own earlier attempt, or another event that has taken the id.
            Err(error) if error.fault == Fault::Conflict => {
                Ok(self.get(key).await?.is_none_or(|there| there == body))
            }
            Err(error) => Err(error),
        }
    }

    /// Reads one object whole; `None` if it is not there.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let answer = self.s3.get_object().bucket(&self.bucket).key(key).send().await;
        let object = match answer.map_err(|error| StoreError::new("GetObject", error)) {
            Ok(object) => object,
            Err(error) if error.fault == Fault::Missing => return Ok(None),
            Err(error) => return Err(error),
        };
        let body = object.body.collect().await.map_err(|error| StoreError {
            fault: Fault::Unavailable,
            ..StoreError::unreadable("GetObject", error.to_string())
        })?;
        Ok(Some(body.into_bytes().to_vec()))
    }

    /// Makes `event` whole again.
    ///
    /// Only the event's own object in the stage's own bucket is ever read: a marker is the
    /// sender's word, and must not open anything else. One that cannot be followed stays in
    /// place, so that a reader sees that something is missing.
    pub async fn restore(&self, event: &mut Event) -> Result<(), StoreError> {
        let Some(marker) = overflow::marker(&event.properties) else { return Ok(()) };
        let own = overflow::object_key(&event.entity_id, &event.event_id);
        if marker.bucket != self.bucket || marker.key != own {
            tracing::warn!(event_id = %event.event_id, key = marker.key, "overflow marker points elsewhere; left as it is");
            return Ok(());
        }
        let Some(body) = self.get(&own).await? else {
            tracing::error!(event_id = %event.event_id, key = own, "overflow payload is missing; {MARKER} left in place");
            return Ok(());
        };
        let moved: Properties = serde_json::from_slice(&body).map_err(|error| {
            StoreError::unreadable("GetObject", format!("{own} is not a JSON object: {error}"))
        })?;
        let mut whole = event.clone();
        overflow::join(&mut whole.properties, moved);
        if marker.hash.is_some_and(|hash| hash != content_hash(&whole)) {
            tracing::error!(event_id = %event.event_id, key = own, "overflow payload is not what was sent; {MARKER} left in place");
            return Ok(());
        }
        *event = whole;
        Ok(())
    }
}
