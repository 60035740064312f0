//! A Slack on loopback.

use std::sync::{Arc, Mutex};

use axum::{Router, extract::State, http::StatusCode, response::IntoResponse, routing::post};
use serde_json::Value;

use crate::until;

/// A status and the `Retry-After` beside it.
pub type Trouble = (u16, Option<&'static str>);

/// A Slack on loopback: answers what it is told to, then `ok`, and keeps what it accepted.
#[derive(Clone, Default)]
pub struct Slack {
    troubles: Arc<Mutex<Vec<Trouble>>>,
    /// What it has accepted.
    pub messages: Arc<Mutex<Vec<String>>>,
}

impl Slack {
    /// Its URL too. The last of the troubles comes first.
    pub async fn start(troubles: &[Trouble]) -> (Self, String) {
        let slack = Self { troubles: Arc::new(Mutex::new(troubles.to_vec())), ..Self::default() };
        let app = Router::new().route("/hook", post(Self::take)).with_state(slack.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (slack, url)
    }

    async fn take(State(slack): State<Self>, body: String) -> axum::response::Response {
        let trouble = slack.troubles.lock().unwrap().pop();
        match trouble {
            Some((status, retry_after)) => {
                let status = StatusCode::from_u16(status).unwrap();
                match retry_after {
                    Some(seconds) => (status, [("retry-after", seconds)]).into_response(),
                    None => status.into_response(),
                }
            }
            None => {
                let text = serde_json::from_str::<Value>(&body).unwrap()["text"].as_str().unwrap().to_owned();
                slack.messages.lock().unwrap().push(text);
                "ok".into_response()
            }
        }
    }

    /// Waits until it was told of so many deliveries, and returns its messages.
    pub async fn told(&self, deliveries: usize) -> Vec<String> {
        until("Slack was told", || async {
            let messages = self.messages.lock().unwrap().clone();
            let told: usize = messages.iter().map(|text| text.matches("*Message ID:*").count()).sum();
            (told >= deliveries).then_some(messages)
        })
        .await
    }
}
