use aws_sdk_s3::error::ProvideErrorMetadata;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{Delete, ObjectIdentifier};

use crate::world::World;

async fn put(world: &World, key: &str, body: &[u8]) {
    let put = world.s3.put_object().bucket("bucket").key(key).body(ByteStream::from(body.to_vec()));
    put.content_type("text/plain").metadata("made-by", "test").send().await.unwrap();
}

async fn with_bucket() -> World {
    let world = World::in_memory().await;
    world.s3.create_bucket().bucket("bucket").send().await.unwrap();
    world
}

#[tokio::test]
async fn an_object_comes_back_as_it_was_put() {
    let world = with_bucket().await;
    let body: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    let key = format!("a/../{}/é ?&+", "k".repeat(500));
    put(&world, &key, &body).await;

    let got = world.s3.get_object().bucket("bucket").key(&key).send().await.unwrap();
    assert_eq!(got.content_type(), Some("text/plain"));
    assert_eq!(got.metadata().unwrap()["made-by"], "test");
    assert_eq!(got.body.collect().await.unwrap().to_vec(), body);

    let part = world.s3.get_object().bucket("bucket").key(&key).range("bytes=4-7").send().await.unwrap();
    assert_eq!(part.content_range(), Some("bytes 4-7/1200000"));
    assert_eq!(part.body.collect().await.unwrap().to_vec(), 1u32.to_le_bytes());

    let head = world.s3.head_object().bucket("bucket").key(&key).send().await.unwrap();
    assert_eq!(head.content_length(), Some(1_200_000));
    assert_eq!(head.last_modified().unwrap().secs(), 1_767_453_739);

    put(&world, &key, b"").await;
    let empty = world.s3.get_object().bucket("bucket").key(&key).send().await.unwrap();
    assert!(empty.body.collect().await.unwrap().to_vec().is_empty());
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let world = with_bucket().await;
    let error = world.s3.get_object().bucket("bucket").key("none").send().await.unwrap_err();
    assert!(error.into_service_error().is_no_such_key());
    let error = world.s3.head_object().bucket("bucket").key("none").send().await.unwrap_err();
    assert!(error.into_service_error().is_not_found());
    let error = world.s3.get_object().bucket("elsewhere").key("none").send().await.unwrap_err();
    assert_eq!(error.into_service_error().code(), Some("NoSuchBucket"));
    let error = world.s3.get_bucket_acl().bucket("bucket").send().await.unwrap_err();
    assert_eq!(error.into_service_error().code(), Some("NotImplemented"));
}

#[tokio::test]
async fn a_put_can_ask_not_to_overwrite() {
    let world = with_bucket().await;
    let put = |body: &'static [u8]| {
        let put = world.s3.put_object().bucket("bucket").key("k").if_none_match("*");
        put.body(ByteStream::from_static(body)).send()
    };
    put(b"first").await.unwrap();
    let error = put(b"second").await.unwrap_err().into_service_error();
    assert_eq!(error.code(), Some("PreconditionFailed"));
}

#[tokio::test]
async fn keys_are_listed_by_prefix_delimiter_and_page() {
    let world = with_bucket().await;
    for key in ["a", "b/1", "b/2", "b/c/3", "d", "é"] {
        put(&world, key, b"x").await;
    }
    let list = || world.s3.list_objects_v2().bucket("bucket");
    let mut pages = list().max_keys(2).into_paginator().send();
    let mut keys = Vec::new();
    while let Some(page) = pages.next().await {
        keys.extend(page.unwrap().contents().iter().map(|object| object.key().unwrap().to_owned()));
    }
    assert_eq!(keys, ["a", "b/1", "b/2", "b/c/3", "d", "é"]);

    let mut pages = list().delimiter("/").max_keys(1).into_paginator().send();
    let mut seen = Vec::new();
    while let Some(page) = pages.next().await {
        let page = page.unwrap();
        assert_eq!(page.key_count(), Some(1));
        seen.extend(page.contents().iter().map(|object| object.key().unwrap().to_owned()));
        seen.extend(page.common_prefixes().iter().map(|common| common.prefix().unwrap().to_owned()));
    }
    assert_eq!(seen, ["a", "b/", "d", "é"]);

    let below = list().prefix("b/").delimiter("/").start_after("b/1").send().await.unwrap();
    assert_eq!(below.contents()[0].key(), Some("b/2"));
    assert_eq!(below.common_prefixes()[0].prefix(), Some("b/c/"));
}

#[tokio::test]
async fn buckets_and_objects_are_deleted() {
    let world = with_bucket().await;
    for key in ["a", "b", "c"] {
        put(&world, key, b"x").await;
    }
    let error = world.s3.delete_bucket().bucket("bucket").send().await.unwrap_err().into_service_error();
    assert_eq!(error.code(), Some("BucketNotEmpty"));
    world.s3.delete_object().bucket("bucket").key("a").send().await.unwrap();
    let key = |key: &str| ObjectIdentifier::builder().key(key).build().unwrap();
    let delete = Delete::builder().objects(key("b")).objects(key("c")).build().unwrap();
    let deleted = world.s3.delete_objects().bucket("bucket").delete(delete).send().await.unwrap();
    assert_eq!(deleted.deleted().len(), 2);
    world.s3.head_bucket().bucket("bucket").send().await.unwrap();
    assert_eq!(world.s3.list_buckets().send().await.unwrap().buckets().len(), 1);
    world.s3.delete_bucket().bucket("bucket").send().await.unwrap();
    assert!(world.s3.head_bucket().bucket("bucket").send().await.is_err());
}
