use aws_sdk_ssm::types::ParameterType;

use crate::world::World;

#[tokio::test]
async fn a_parameter_is_put_overwritten_read_and_deleted() {
    let world = World::in_memory().await;
    let put = |value: &str, overwrite| {
        let put = world.ssm.put_parameter().name("/app/url").value(value).overwrite(overwrite);
        put.r#type(ParameterType::SecureString).send()
    };
    assert_eq!(put("one", false).await.unwrap().version(), 1);
    assert!(put("two", false).await.unwrap_err().into_service_error().is_parameter_already_exists());
    assert_eq!(put("two", true).await.unwrap().version(), 2);

    let get = || world.ssm.get_parameter().name("/app/url").with_decryption(true).send();
    let parameter = get().await.unwrap().parameter.unwrap();
    assert_eq!(parameter.value(), Some("two"));
    assert_eq!(parameter.r#type(), Some(&ParameterType::SecureString));
    let several = world.ssm.get_parameters().names("/app/url").names("/none").send().await.unwrap();
    assert_eq!((several.parameters().len(), several.invalid_parameters()), (1, &["/none".to_owned()][..]));

    world.ssm.delete_parameter().name("/app/url").send().await.unwrap();
    assert!(get().await.unwrap_err().into_service_error().is_parameter_not_found());
}
