use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, Put, ScalarAttributeType,
    StreamSpecification, StreamViewType, TransactWriteItem,
};

use crate::world::World;

pub(crate) async fn table(world: &World, name: &str) {
    let stream = StreamSpecification::builder().stream_enabled(true);
    world
        .dynamo
        .create_table()
        .table_name(name)
        .billing_mode(BillingMode::PayPerRequest)
        .key_schema(KeySchemaElement::builder().attribute_name("pk").key_type(KeyType::Hash).build().unwrap())
        .attribute_definitions(
            AttributeDefinition::builder()
                .attribute_name("pk")
                .attribute_type(ScalarAttributeType::S)
                .build()
                .unwrap(),
        )
        .stream_specification(stream.stream_view_type(StreamViewType::NewImage).build().unwrap())
        .send()
        .await
        .unwrap();
}

pub(crate) fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

#[tokio::test]
async fn items_are_put_under_conditions_and_read_back() {
    let world = World::in_memory().await;
    table(&world, "items").await;
    let put = || {
        let put = world.dynamo.put_item().table_name("items").item("pk", text("a")).item("v", text("é"));
        put.condition_expression("attribute_not_exists(pk)").send()
    };
    put().await.unwrap();
    let error = put().await.unwrap_err().into_service_error();
    assert!(error.is_conditional_check_failed_exception(), "{error:?}");
    let got = world.dynamo.get_item().table_name("items").key("pk", text("a")).send().await.unwrap();
    assert_eq!(got.item.unwrap()["v"], text("é"));
}

#[tokio::test]
async fn a_cancelled_transaction_says_why() {
    let world = World::in_memory().await;
    table(&world, "items").await;
    let put = |key: &str| {
        let put = Put::builder().table_name("items").item("pk", text(key));
        let put = put.condition_expression("attribute_not_exists(pk)").build().unwrap();
        TransactWriteItem::builder().put(put).build()
    };
    let write = |items| world.dynamo.transact_write_items().set_transact_items(Some(items)).send();
    write(vec![put("a")]).await.unwrap();
    let error = write(vec![put("b"), put("a")]).await.unwrap_err().into_service_error();
    let aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError::TransactionCanceledException(
        cancelled,
    ) = error
    else {
        panic!("{error:?}")
    };
    let codes: Vec<_> = cancelled.cancellation_reasons().iter().map(|reason| reason.code()).collect();
    assert_eq!(codes, [Some("None"), Some("ConditionalCheckFailed")]);
}

#[tokio::test]
async fn a_table_comes_without_the_stream_it_asked_for() {
    let world = World::in_memory().await;
    table(&world, "items").await;
    let described = world.dynamo.describe_table().table_name("items").send().await.unwrap();
    assert_eq!(described.table().unwrap().latest_stream_arn(), None);
}

#[tokio::test]
async fn an_operation_that_is_not_there_is_refused_as_aws_would() {
    let world = World::in_memory().await;
    let error = world.dynamo.describe_limits().send().await.unwrap_err().into_service_error();
    assert_eq!(error.code(), Some("UnknownOperationException"), "{error:?}");
}

#[tokio::test]
async fn a_key_condition_of_parentheses_is_refused_and_ends_nothing() {
    let world = World::in_memory().await;
    table(&world, "items").await;
    let condition = format!("pk = :a AND {}", "(".repeat(4_000));
    let query = world.dynamo.query().table_name("items").key_condition_expression(condition);
    let error = query.expression_attribute_values(":a", text("x")).send().await.unwrap_err();
    assert_eq!(error.code(), Some("ValidationException"), "{error:?}");
}
