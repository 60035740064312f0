//! A caller of the HTTP API of a running local mode.

use ledgerline_store::KeyScope;
use reqwest::Method;
use serde_json::Value;

use crate::{World, at, name, until};

/// In milliseconds.
pub const HOUR: u64 = 3_600_000;

/// The time of the machine.
pub fn now() -> u64 {
    u64::try_from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis())
        .unwrap()
}

/// A caller with a key of their own.
pub struct Caller<'w> {
    world: &'w World,
    key: String,
}

impl<'w> Caller<'w> {
    /// One with a new key of `tenant`.
    pub async fn new(world: &'w World, tenant: &str, scope: KeyScope) -> Self {
        let made = world.api_keys().create(&name(tenant), scope, None, at(now())).await.unwrap();
        Self { world, key: made.1 }
    }

    /// One with the key of the local mode.
    pub fn admin(world: &'w World) -> Self {
        Self { world, key: world.local.state.api_key.clone() }
    }

    /// The status and the body of the answer.
    pub async fn send(&self, method: Method, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let url = format!("{}{path}", self.world.local.state.api_url);
        self.world.answer(self.world.http.request(method, url).bearer_auth(&self.key).body(body)).await
    }

    /// `GET`
    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.send(Method::GET, path, "").await
    }

    /// `POST`
    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send(Method::POST, path, body.to_string()).await
    }

    /// `POST` with one more header.
    pub async fn with_header(&self, header: &str, value: &str, path: &str, body: &Value) -> (u16, Value) {
        let url = format!("{}{path}", self.world.local.state.api_url);
        let request = self.world.http.post(url).bearer_auth(&self.key).header(header, value);
        self.world.answer(request.body(body.to_string())).await
    }

    /// `POST` that has to be answered with 201.
    pub async fn created(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 201, "{answer}");
        answer
    }

    /// The items of a list that has one page.
    pub async fn items(&self, path: &str) -> Vec<Value> {
        let (status, answer) = self.get(path).await;
        assert_eq!(status, 200, "{answer}");
        assert!(answer["cursor"].is_null());
        answer["items"].as_array().unwrap().clone()
    }

    /// The tasks that were started: each has its `Task Pending`.
    pub async fn tasks(&self) -> Vec<Value> {
        let (_, answer) = self.get("/api/events/recent?type=Task+Pending&limit=500").await;
        answer["items"].as_array().unwrap().clone()
    }

    /// Waits until so many tasks were started, and returns them.
    pub async fn tasks_at_least(&self, count: usize) -> Vec<Value> {
        until("the tasks are there", || async { Some(self.tasks().await).filter(|all| all.len() >= count) })
            .await
    }
}

/// What a refusal says.
pub fn detail_of(problem: &Value) -> &str {
    problem["detail"].as_str().unwrap()
}

/// Waits until what is at a path is in a state.
pub async fn in_state(caller: &Caller<'_>, path: &str, state: &str) -> Value {
    until(&format!("{path} is {state}"), || async {
        let (status, answer) = caller.get(path).await;
        (status == 200 && answer["state"] == state).then_some(answer)
    })
    .await
}

/// The ids on all pages of a list.
pub async fn all(caller: &Caller<'_>, path: &str, id: &str) -> Vec<String> {
    let mut ids = Vec::new();
    let mut next = path.to_owned();
    loop {
        let (status, page) = caller.get(&next).await;
        assert_eq!(status, 200, "{next}: {page}");
        ids.extend(
            page["items"].as_array().unwrap().iter().map(|item| item[id].as_str().unwrap().to_owned()),
        );
        let Some(cursor) = page["cursor"].as_str() else { return ids };
        next = format!("{path}&cursor={cursor}");
    }
}
