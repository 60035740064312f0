//! The large properties of an event: into S3 before it is sent, back into it when it is read.

use std::time::Duration;

use aws_sdk_s3::primitives::ByteStream;
use ledgerline_event::{
    Event, Properties, content_hash,
    overflow::{self, MARKER, Marker},
};

use crate::{Fault, StoreError};

/// How often a put is retried while S3 answers that another request for the key is under way.
const MAX_CONFLICT_RETRIES: u32 = 5;
/// The metadata in which an object names its tenant, percent-encoded as in keys: for senders that put no hash into the
/// marker.
const TENANT_METADATA: &str = "tenant";

struct Object {
    body: Vec<u8>,
    tenant: Option<String>,
}

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

    /// Writes one JSON object if none is there. Returns `false` if there is one with other content.
    pub async fn put_once(&self, key: &str, body: Vec<u8>) -> Result<bool, StoreError> {
        let mut attempt = 0;
        loop {
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
            let conflict = match put {
                Ok(_) => return Ok(true),
                Err(error) if matches!(error.fault, Fault::ConditionFailed | Fault::Conflict) => error,
                Err(error) => return Err(error),
            };
            match self.get(key).await? {
                // Our own earlier attempt, or another event that has taken the id.
                Some(there) => return Ok(there == body),
                // S3 answers 409 while another request for the key is under way, which may fail in its turn.
                None if attempt < MAX_CONFLICT_RETRIES => {
                    tokio::time::sleep(Duration::from_millis(20 << attempt).mul_f64(fastrand::f64())).await;
                    attempt += 1;
                }
                None => return Err(StoreError { fault: Fault::Unavailable, ..conflict }),
            }
        }
    }

    /// Reads one object whole; `None` if it is not there.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.read(key).await?.map(|object| object.body))
    }

    async fn read(&self, key: &str) -> Result<Option<Object>, StoreError> {
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
        let tenant = object.metadata.and_then(|mut metadata| metadata.remove(TENANT_METADATA));
        Ok(Some(Object { body: body.into_bytes().to_vec(), tenant }))
    }

    /// Makes `event` whole again.
    ///
    /// A marker is the sender's word, and any sender can write one. So only the event's own object in the stage's own
    /// bucket is read, and only what `is_proven` is shown. Otherwise the marker stays, and says what is missing.
    pub async fn restore(&self, event: &mut Event) -> Result<(), StoreError> {
        let Some(marker) = overflow::marker(&event.properties) else { return Ok(()) };
        let missing = match self.follow(event, &marker).await? {
            Followed::Whole(whole) => {
                *event = *whole;
                return Ok(());
            }
            Followed::Missing(why) => why,
        };
        tracing::error!(event_id = %event.event_id, key = marker.key, %missing, "could not restore the overflowed payload; the marker stays");
        overflow::note_missing(&mut event.properties, missing);
        Ok(())
    }

    /// The whole event, or why there is none.
    async fn follow(&self, event: &Event, marker: &Marker) -> Result<Followed, StoreError> {
        let own = overflow::object_key(&event.entity_id, &event.event_id);
        if marker.bucket != self.bucket || marker.key != own {
            return Ok(Followed::Missing("the overflow marker points to what is not this event's own"));
        }
        let Some(object) = self.read(&own).await? else {
            return Ok(Followed::Missing("the overflow payload is not in the bucket"));
        };
        if marker.hash.is_none()
            && object.tenant.as_deref() != Some(&overflow::path_segment(&event.tenant_id))
        {
            return Ok(Followed::Missing(
                "the overflow marker has no hash, and the object does not name the tenant",
            ));
        }
        let moved: Properties = serde_json::from_slice(&object.body).map_err(|error| {
            StoreError::unreadable("GetObject", format!("{own} is not a JSON object: {error}"))
        })?;
        if !is_proven(event, marker, &moved) {
            return Ok(Followed::Missing("the overflow payload is not what was sent"));
        }
        let mut whole = event.clone();
        overflow::join(&mut whole.properties, moved);
        Ok(Followed::Whole(Box::new(whole)))
    }
}

/// Where an overflow marker led.
enum Followed {
    /// To the rest of the event, which is whole now.
    Whole(Box<Event>),
    /// Nowhere, and why.
    Missing(&'static str),
}

/// Whether the payload is the one that the event's sender moved there.
///
/// The key holds no tenant: that of another tenant's event with the same ids is the same. But only a sender that had the
/// whole content in its hands knows its hash, so that a marker with the right one discloses nothing.
fn is_proven(event: &Event, marker: &Marker, moved: &Properties) -> bool {
    let mut whole = event.clone();
    overflow::join(&mut whole.properties, moved.clone());
    // A marker among the moved properties would be believed in place of the content.
    !moved.contains_key(MARKER) && marker.hash.as_ref().is_none_or(|hash| *hash == content_hash(&whole))
}
