//! AWS clients in the same process: they send the same requests and get the same answers as on the port, without a
//! connection.

use std::fmt;
use std::sync::Weak;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use axum::body::{Body, Bytes};
use axum::http::Response;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::gateway::Gateway;

/// Marks a request that did not come over a connection.
#[derive(Clone)]
pub(crate) struct IsInProcess;

/// An HTTP client for AWS SDKs that reaches the embedded services by a call.
#[derive(Clone)]
pub struct InProcess {
    /// Gone once the services have stopped, even while clients still exist.
    pub(crate) gateway: Weak<Gateway>,
    /// The runtime that serves the requests, whichever runtime the caller is on.
    pub(crate) runtime: Handle,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InProcess")
    }
}

impl HttpClient for InProcess {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for InProcess {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let Some(gateway) = self.gateway.upgrade() else {
            let stopped = ConnectorError::io("the embedded services have stopped".into());
            return HttpConnectorFuture::ready(Err(stopped));
        };
        let mut request = match request.try_into_http1x() {
            Ok(request) => request.map(Body::new),
            Err(error) => return HttpConnectorFuture::ready(Err(ConnectorError::user(error.into()))),
        };
        request.extensions_mut().insert(IsInProcess);
        let served = self.runtime.spawn(async move {
            let (head, body) = gateway.handle(request).await.into_parts();
            axum::body::to_bytes(body, usize::MAX).await.map(|body| Response::from_parts(head, body))
        });
        let served = Served(served);
        HttpConnectorFuture::new(async move { served.answer().await })
    }
}

/// A request that is being served. It is aborted when its caller stops waiting: a receive without a caller must not
/// take messages.
struct Served(JoinHandle<Result<Response<Bytes>, axum::Error>>);

impl Served {
    async fn answer(mut self) -> Result<HttpResponse, ConnectorError> {
        match (&mut self.0).await {
            Ok(Ok(answer)) => {
                let answer = answer.map(SdkBody::from);
                HttpResponse::try_from(answer).map_err(|error| ConnectorError::other(error.into(), None))
            }
            Ok(Err(error)) => Err(ConnectorError::io(error.into())),
            Err(error) => Err(ConnectorError::io(error.into())),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.abort();
    }
}
