//! The operations on buckets and objects.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Bytes;
use futures::TryStreamExt;
use md5::{Digest, Md5};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use s3s::dto::*;
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use serde::{Deserialize, Serialize};

use super::listing::{self, Query};
use crate::Clock;
use crate::store::Store;

/// Buckets and objects in the store.
pub(crate) struct Objects {
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Clock,
    pub(crate) region: String,
}

/// What a client said about an object, to be given back as it was.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Described {
    content_type: Option<String>,
    content_encoding: Option<String>,
    cache_control: Option<String>,
    content_disposition: Option<String>,
    metadata: Option<HashMap<String, String>>,
}

struct Stored {
    id: i64,
    size: u64,
    etag: String,
    modified_at: u64,
    described: Described,
}

/// Why a transaction was not committed.
enum TransactionError {
    /// The database failed.
    Database(rusqlite::Error),
    /// The request is refused, with the answer for the client.
    Refused(S3Error),
}

impl From<rusqlite::Error> for TransactionError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl From<S3Error> for TransactionError {
    fn from(error: S3Error) -> Self {
        Self::Refused(error)
    }
}

impl Objects {
    /// Runs `work` in one transaction on a thread where it may block: bodies can be large. Work that refuses a request must
    /// not have written anything.
    async fn run<T: Send + 'static, E: Into<TransactionError>>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> S3Result<T> {
        let store = self.store.clone();
        // A refusal is no failure of the store, so the store gets it as a result.
        let work = move |tx: &Transaction<'_>| match work(tx).map_err(E::into) {
            Ok(done) => Ok(Ok(done)),
            Err(TransactionError::Refused(refusal)) => Ok(Err(refusal)),
            Err(TransactionError::Database(error)) => Err(error),
        };
        let done = tokio::task::spawn_blocking(move || store.transaction(work)).await;
        done.map_err(S3Error::internal_error)?.map_err(|error| {
            tracing::error!(%error, "the store failed");
            S3Error::internal_error(error)
        })?
    }

    /// Finds an object and reads it. The error tells a missing bucket from a missing key.
    async fn find<T: Send + 'static>(
        &self,
        bucket: String,
        key: String,
        read: impl FnOnce(&Transaction<'_>, Stored) -> Result<T, TransactionError> + Send + 'static,
    ) -> S3Result<T> {
        self.run(move |tx| match stored(tx, &bucket, &key)? {
            Some(object) => read(tx, object),
            None if bucket_exists(tx, &bucket)? => {
                Err(s3_error!(NoSuchKey, "The specified key does not exist.").into())
            }
            None => Err(s3_error!(NoSuchBucket, "The specified bucket does not exist.").into()),
        })
        .await
    }

    async fn require_bucket(&self, bucket: &str) -> S3Result<()> {
        let name = bucket.to_owned();
        match self.run(move |tx| bucket_exists(tx, &name)).await? {
            true => Ok(()),
            false => Err(s3_error!(NoSuchBucket, "The specified bucket does not exist.")),
        }
    }
}

#[async_trait::async_trait]
impl S3 for Objects {
    async fn create_bucket(
        &self,
        req: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let (name, now) = (req.input.bucket, (self.clock)());
        let location = Some(format!("/{name}"));
        let insert = "INSERT INTO buckets (name, created_at) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        match self.run(move |tx| tx.execute(insert, params![name, now])).await? {
            0 => Err(s3_error!(BucketAlreadyOwnedByYou)),
            _ => Ok(S3Response::new(CreateBucketOutput { location })),
        }
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.require_bucket(&req.input.bucket).await?;
        let bucket_region = Some(self.region.clone());
        Ok(S3Response::new(HeadBucketOutput { bucket_region, ..Default::default() }))
    }

    async fn get_bucket_location(
        &self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.require_bucket(&req.input.bucket).await?;
        let location_constraint = Some(BucketLocationConstraint::from(self.region.clone()));
        Ok(S3Response::new(GetBucketLocationOutput { location_constraint }))
    }

    async fn list_buckets(&self, _: S3Request<ListBucketsInput>) -> S3Result<S3Response<ListBucketsOutput>> {
        let buckets = self
            .run(|tx| {
                let mut rows = tx.prepare_cached("SELECT name, created_at FROM buckets ORDER BY name")?;
                rows.query_map([], |row| {
                    let (name, creation_date) = (Some(row.get(0)?), Some(timestamp(row.get(1)?)));
                    Ok(Bucket { name, creation_date, ..Default::default() })
                })?
                .collect::<rusqlite::Result<Vec<_>>>()
            })
            .await?;
        Ok(S3Response::new(ListBucketsOutput { buckets: Some(buckets), ..Default::default() }))
    }

    async fn delete_bucket(
        &self,
        req: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        let name = req.input.bucket;
        self.require_bucket(&name).await?;
        let deleted = self
            .run(move |tx| {
                tx.execute(
                    "DELETE FROM buckets WHERE name = ?1 AND NOT EXISTS \
                     (SELECT 1 FROM objects WHERE bucket = ?1)",
                    [name],
                )
            })
            .await?;
        match deleted {
            0 => Err(s3_error!(BucketNotEmpty)),
            _ => Ok(S3Response::new(DeleteBucketOutput {})),
        }
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let input = req.input;
        let mut body = Vec::new();
        if let Some(mut stream) = input.body {
            while let Some(bytes) = stream.try_next().await.map_err(unreadable)? {
                body.extend_from_slice(&bytes);
            }
        }
        if input.key.len() > 1024 {
            return Err(s3_error!(KeyTooLongError));
        }
        let etag = crate::sqs::hex(&Md5::digest(&body));
        let described = Described {
            content_type: input.content_type.map(|kind| kind.to_string()),
            content_encoding: input.content_encoding.map(|coding| coding.to_string()),
            cache_control: input.cache_control,
            content_disposition: input.content_disposition,
            metadata: input.metadata,
        };
        let described = serde_json::to_string(&described).map_err(S3Error::internal_error)?;
        let (only_new, only_over) = (input.if_none_match, input.if_match);
        let (bucket, key, now, tag) = (input.bucket, input.key, (self.clock)(), etag.clone());
        self.run(move |tx| -> Result<(), TransactionError> {
            if !bucket_exists(tx, &bucket)? {
                return Err(s3_error!(NoSuchBucket, "The specified bucket does not exist.").into());
            }
            let before = stored(tx, &bucket, &key)?;
            if before.is_some() && only_new.is_some() {
                return Err(s3_error!(PreconditionFailed).into());
            }
            if let Some(condition) = &only_over {
                match (&before, condition.as_etag()) {
                    (None, _) => {
                        return Err(s3_error!(NoSuchKey, "The specified key does not exist.").into());
                    }
                    (Some(before), Some(wanted)) if wanted.value() != before.etag => {
                        return Err(s3_error!(PreconditionFailed).into());
                    }
                    (Some(_), _) => {}
                }
            }
            tx.prepare_cached(
                "INSERT INTO objects (bucket, key, size, etag, modified_at, headers, body) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (bucket, key) DO UPDATE SET \
                 size = excluded.size, etag = excluded.etag, modified_at = excluded.modified_at, \
                 headers = excluded.headers, body = excluded.body",
            )?
            .execute(params![bucket, key, body.len(), tag, now, described, body])?;
            Ok(())
        })
        .await?;
        Ok(S3Response::new(PutObjectOutput { e_tag: Some(ETag::Strong(etag)), ..Default::default() }))
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let GetObjectInput { bucket, key, range, if_match, if_none_match, .. } = req.input;
        let read = move |tx: &Transaction<'_>, object: Stored| -> Result<_, TransactionError> {
            let wanted = match range.map(|range| range.check(object.size)) {
                None => None,
                Some(Ok(wanted)) => Some(wanted),
                Some(Err(_)) => return Err(s3_error!(InvalidRange).into()),
            };
            let part = wanted.clone().unwrap_or(0..object.size);
            let body: Vec<u8> = tx
                .prepare_cached(
                    "SELECT coalesce(substr(body, ?2 + 1, ?3), zeroblob(0)) FROM objects WHERE id = ?1",
                )?
                .query_row(params![object.id, part.start, part.end - part.start], |row| row.get(0))?;
            Ok((object, wanted, body))
        };
        let (object, wanted, body) = self.find(bucket, key, read).await?;
        check_conditions(&object, if_match.as_ref(), if_none_match.as_ref())?;
        let content_range =
            wanted.as_ref().map(|part| format!("bytes {}-{}/{}", part.start, part.end - 1, object.size));
        let described = object.described;
        let output = GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(body.len()).ok(),
            content_range,
            content_type: described.content_type,
            content_encoding: described.content_encoding,
            cache_control: described.cache_control,
            content_disposition: described.content_disposition,
            metadata: described.metadata,
            e_tag: Some(ETag::Strong(object.etag)),
            last_modified: Some(timestamp(object.modified_at)),
            body: Some(StreamingBlob::from(s3s::Body::from(Bytes::from(body)))),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let HeadObjectInput { bucket, key, if_match, if_none_match, .. } = req.input;
        let object = self.find(bucket, key, |_, object| Ok(object)).await?;
        check_conditions(&object, if_match.as_ref(), if_none_match.as_ref())?;
        let described = object.described;
        let output = HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(object.size).ok(),
            content_type: described.content_type,
            content_encoding: described.content_encoding,
            cache_control: described.cache_control,
            content_disposition: described.content_disposition,
            metadata: described.metadata,
            e_tag: Some(ETag::Strong(object.etag)),
            last_modified: Some(timestamp(object.modified_at)),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let DeleteObjectInput { bucket, key, .. } = req.input;
        self.require_bucket(&bucket).await?;
        self.run(move |tx| delete(tx, &bucket, &key)).await?;
        Ok(S3Response::with_status(DeleteObjectOutput::default(), axum::http::StatusCode::NO_CONTENT))
    }

    async fn delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let DeleteObjectsInput { bucket, delete: list, .. } = req.input;
        self.require_bucket(&bucket).await?;
        let keys: Vec<String> = list.objects.into_iter().map(|object| object.key).collect();
        let deleted = match list.quiet {
            Some(true) => None,
            _ => Some(
                keys.iter()
                    .map(|key| DeletedObject { key: Some(key.clone()), ..Default::default() })
                    .collect(),
            ),
        };
        self.run(move |tx| keys.iter().try_for_each(|key| delete(tx, &bucket, key))).await?;
        Ok(S3Response::new(DeleteObjectsOutput { deleted, ..Default::default() }))
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = req.input;
        self.require_bucket(&input.bucket).await?;
        let query = Query::new(&input)?;
        let bucket = input.bucket.clone();
        let page = self.run(move |tx| listing::page(tx, &bucket, &query)).await?;
        Ok(S3Response::new(page.into_output(input)))
    }
}

fn unreadable(source: s3s::StdError) -> S3Error {
    S3Error::with_source(S3ErrorCode::IncompleteBody, source)
}

fn check_conditions(
    object: &Stored,
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<()> {
    let names = |condition: &ETagCondition| match condition.as_etag() {
        Some(etag) => etag.value() == object.etag,
        None => true,
    };
    if if_match.is_some_and(|condition| !names(condition)) {
        return Err(s3_error!(PreconditionFailed));
    }
    if if_none_match.is_some_and(names) {
        return Err(s3_error!(NotModified));
    }
    Ok(())
}

fn bucket_exists(tx: &Transaction<'_>, bucket: &str) -> rusqlite::Result<bool> {
    tx.prepare_cached("SELECT 1 FROM buckets WHERE name = ?1")?.exists([bucket])
}

fn stored(tx: &Transaction<'_>, bucket: &str, key: &str) -> rusqlite::Result<Option<Stored>> {
    let read = |row: &Row<'_>| {
        let headers = row.get_ref(4)?.as_str()?;
        let described = serde_json::from_str(headers).unwrap_or_default();
        Ok(Stored {
            id: row.get(0)?,
            size: row.get(1)?,
            etag: row.get(2)?,
            modified_at: row.get(3)?,
            described,
        })
    };
    tx.prepare_cached(
        "SELECT id, size, etag, modified_at, headers FROM objects WHERE bucket = ?1 AND key = ?2",
    )?
    .query_row([bucket, key], read)
    .optional()
}

fn delete(tx: &Transaction<'_>, bucket: &str, key: &str) -> rusqlite::Result<()> {
    tx.prepare_cached("DELETE FROM objects WHERE bucket = ?1 AND key = ?2")?.execute([bucket, key])?;
    Ok(())
}

/// Milliseconds since the epoch as S3 writes time.
pub(crate) fn timestamp(milliseconds: u64) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_millis(milliseconds))
}
