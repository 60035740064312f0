//! Tables with a store of their own.

use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::{Put, PutRequest, TransactWriteItem, WriteRequest};

use crate::dynamo::{table, text};
use crate::world::World;

async fn put(world: &World, table: &str, key: &str) {
    world.dynamo.put_item().table_name(table).item("pk", text(key)).send().await.unwrap();
}

async fn is_there(world: &World, table: &str, key: &str) -> bool {
    let got = world.dynamo.get_item().table_name(table).key("pk", text(key)).send().await.unwrap();
    got.item.is_some()
}

#[tokio::test]
async fn they_are_tables_like_any_other_and_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::with_apart(folder.path(), &["busy"]).await;
    for name in ["aaa", "busy", "ccc"] {
        table(&world, name).await;
        put(&world, name, "1").await;
    }
    let list = || world.dynamo.list_tables();
    assert_eq!(list().send().await.unwrap().table_names(), ["aaa", "busy", "ccc"]);
    let first = list().limit(2).send().await.unwrap();
    assert_eq!(
        (first.table_names(), first.last_evaluated_table_name()),
        (&["aaa".into(), "busy".into()][..], Some("busy"))
    );
    let rest = list().limit(2).exclusive_start_table_name("busy").send().await.unwrap();
    assert_eq!((rest.table_names(), rest.last_evaluated_table_name()), (&["ccc".into()][..], None));
    world.dynamo.delete_table().table_name("ccc").send().await.unwrap();
    world.embedded.stop().await;

    let world = World::with_apart(folder.path(), &["busy"]).await;
    assert!(is_there(&world, "aaa", "1").await);
    assert!(is_there(&world, "busy", "1").await);
    assert_eq!(world.dynamo.list_tables().send().await.unwrap().table_names(), ["aaa", "busy"]);
    world.embedded.stop().await;
}

#[tokio::test]
async fn a_table_that_was_made_before_stays_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::in_folder(folder.path()).await;
    table(&world, "busy").await;
    put(&world, "busy", "1").await;
    world.embedded.stop().await;
    let world = World::with_apart(folder.path(), &["busy"]).await;
    assert!(is_there(&world, "busy", "1").await);
    world.embedded.stop().await;
}

#[tokio::test]
async fn a_request_for_one_and_for_others_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::with_apart(folder.path(), &["busy"]).await;
    for name in ["aaa", "busy", "ccc"] {
        table(&world, name).await;
    }
    let write = |tables: [&str; 2]| {
        let puts = tables.map(|table| {
            let put = Put::builder().table_name(table).item("pk", text("1")).build().unwrap();
            TransactWriteItem::builder().put(put).build()
        });
        world.dynamo.transact_write_items().set_transact_items(Some(puts.into())).send()
    };
    write(["aaa", "ccc"]).await.unwrap();
    let error = write(["aaa", "busy"]).await.unwrap_err().into_service_error();
    assert_eq!(error.code(), Some("ValidationException"));
    assert_eq!(error.message(), Some("here a request for busy cannot be one for other tables too"));
    let put = PutRequest::builder().item("pk", text("2")).build().unwrap();
    let puts = vec![WriteRequest::builder().put_request(put).build()];
    let batch = || world.dynamo.batch_write_item().request_items("busy", puts.clone());
    let error = batch().request_items("aaa", puts.clone()).send().await.unwrap_err().into_service_error();
    assert_eq!(error.code(), Some("ValidationException"));
    batch().send().await.unwrap();
    assert!(is_there(&world, "busy", "2").await);
    assert!(!is_there(&world, "aaa", "2").await);
    world.embedded.stop().await;
}
