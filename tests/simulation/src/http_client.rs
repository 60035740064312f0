//! The SDK's way out of the process: instead of a socket, the list of requests on their way.

use std::sync::Arc;

use aws_config::{BehaviorVersion, Region, SdkConfig, retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_dynamodb::config::StalledStreamProtectionConfig;
use aws_sdk_s3::config::{RequestChecksumCalculation, ResponseChecksumValidation};
use aws_smithy_runtime_api::client::{
    http::{HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector},
    orchestrator::{HttpRequest, HttpResponse},
    result::ConnectorError,
    runtime_components::RuntimeComponents,
};
use aws_smithy_types::body::SdkBody;
use ledgerline_ledger::Clients;

use super::{
    request::{Reply, Request, Response},
    store::Shared,
};

/// Clients of all services. They may be used by every actor: a request belongs to the actor that is being polled.
/// Outside of actors they are served at once and without faults.
pub(crate) fn clients(shared: Arc<Shared>) -> Clients {
    let config = SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url("http://simulated")
        // The SDK's own retries and timeouts would hide faults behind waiting.
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        // Checksums of S3 objects would turn bodies into streams.
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .http_client(SimulatedHttp(shared))
        .build();
    // Nothing here checks signatures, and making them would take a sixth of the time that a history takes.
    let Clients { dynamo, events, s3, sqs, ssm } = Clients::new(&config);
    Clients {
        dynamo: aws_sdk_dynamodb::Client::from_conf(dynamo.config().to_builder().allow_no_auth().build()),
        events: aws_sdk_eventbridge::Client::from_conf(events.config().to_builder().allow_no_auth().build()),
        s3: aws_sdk_s3::Client::from_conf(s3.config().to_builder().allow_no_auth().build()),
        sqs: aws_sdk_sqs::Client::from_conf(sqs.config().to_builder().allow_no_auth().build()),
        ssm: aws_sdk_ssm::Client::from_conf(ssm.config().to_builder().allow_no_auth().build()),
    }
}

#[derive(Clone, Debug)]
struct SimulatedHttp(Arc<Shared>);

impl HttpClient for SimulatedHttp {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for SimulatedHttp {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        match self.0.send(Request::of(request)) {
            Ok(reply) => HttpConnectorFuture::new(async move {
                // The simulation itself is gone: like any other lost connection.
                response(reply.await.unwrap_or(Reply::ConnectionLost))
            }),
            Err((answer, None)) => HttpConnectorFuture::ready(response(Reply::Response(answer))),
            Err((answer, Some(delay))) => HttpConnectorFuture::new(async move {
                tokio::time::sleep(delay).await;
                response(Reply::Response(answer))
            }),
        }
    }
}

fn response(reply: Reply) -> Result<HttpResponse, ConnectorError> {
    match reply {
        Reply::Response(Response { status, headers, body }) => {
            let status = status.try_into().expect("a status is a number of three digits");
            let mut response = HttpResponse::new(status, SdkBody::from(body));
            response.headers_mut().insert("x-amzn-requestid", "simulated");
            for (name, value) in headers {
                response.headers_mut().insert(name, value);
            }
            Ok(response)
        }
        Reply::TimedOut => Err(ConnectorError::timeout("no answer in time".into())),
        Reply::ConnectionLost => Err(ConnectorError::io("the connection was lost".into())),
    }
}
