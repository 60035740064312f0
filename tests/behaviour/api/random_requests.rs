//! Requests made up by chance, over every route of the API: none of them is the server's fault.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use ledgerline_test_support::{World, seeds};

/// Requests for each seed; `LEDGERLINE_FUZZ` says another number.
const REQUESTS: usize = 1_000;

/// Every route, and the methods that it takes.
const ROUTES: [(&str, &[Method]); 31] = [
    ("/api/events/recent", &[Method::GET]),
    ("/api/events/record", &[Method::POST]),
    ("/api/events/drain", &[Method::POST]),
    ("/api/events/send", &[Method::POST]),
    ("/api/events/sent", &[Method::GET]),
    ("/api/subscriptions", &[Method::GET, Method::POST]),
    ("/api/subscriptions/test", &[Method::POST]),
    ("/api/subscriptions/{}", &[Method::GET, Method::PATCH, Method::DELETE]),
    ("/api/workflows", &[Method::GET, Method::POST]),
    ("/api/workflows/{}", &[Method::DELETE]),
    ("/api/workflows/{}/start", &[Method::POST]),
    ("/api/tasks", &[Method::GET, Method::POST]),
    ("/api/tasks/{}", &[Method::GET]),
    ("/api/tasks/{}/history", &[Method::GET]),
    ("/api/jobs", &[Method::GET, Method::POST]),
    ("/api/jobs/{}", &[Method::GET]),
    ("/api/jobs/{}/tasks", &[Method::POST]),
    ("/api/jobs/{}/resume", &[Method::POST]),
    ("/api/runs", &[Method::GET, Method::POST]),
    ("/api/runs/{}", &[Method::GET]),
    ("/api/runs/{}/events", &[Method::GET, Method::POST]),
    ("/api/runs/{}/cancel", &[Method::POST]),
    ("/api/hooks/{}", &[Method::POST]),
    ("/api/drainers", &[Method::GET]),
    ("/api/drainers/{}/rewind", &[Method::POST]),
    ("/api/parked", &[Method::GET]),
    ("/api/parked/{}", &[Method::GET, Method::DELETE]),
    ("/api/parked/{}/retry", &[Method::POST]),
    ("/api/failed-deliveries", &[Method::GET]),
    ("/api/failed-deliveries/redrive", &[Method::POST]),
    ("/api/health", &[Method::GET]),
];

const FIELDS: [&str; 36] = [
    "eventType",
    "entityType",
    "entityId",
    "properties",
    "idempotencyKey",
    "causedBy",
    "workflowRunId",
    "sourceSystem",
    "sequenceNo",
    "occurredAt",
    "app",
    "name",
    "requestId",
    "input",
    "jobId",
    "tasks",
    "taskId",
    "dependsOn",
    "workflow",
    "runId",
    "version",
    "event",
    "match",
    "data",
    "workflowType",
    "kind",
    "filter",
    "eventTypeGlob",
    "mapper",
    "onFailure",
    "correlationId",
    "eventData",
    "reason",
    "to",
    "ids",
    "missingOnly",
];

const QUERIES: [&str; 14] = [
    "limit",
    "cursor",
    "state",
    "since",
    "until",
    "type",
    "app",
    "entityType",
    "entityId",
    "all",
    "waitMs",
    "event",
    "tenantId",
    "order",
];

/// The routes that the bodies below are for, in their order.
const BODIES: [&str; 8] = [
    "/api/events/record",
    "/api/tasks",
    "/api/jobs",
    "/api/runs/",
    "/api/runs",
    "/api/events/send",
    "/api/workflows",
    "/api/subscriptions",
];

struct Dice(fastrand::Rng);

impl Dice {
    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.0.usize(..all.len())]
    }

    fn text(&mut self) -> String {
        match self.0.u8(..14) {
            0 => String::new(),
            1 => "a#b".into(),
            2 => "x".repeat(self.0.usize(1..4_000)),
            3 => "\u{fffe}\u{ffff}".into(),
            4 => "é\u{10ffff}\u{0}\u{200b}".into(),
            5 => "../../etc/passwd".into(),
            6 => "r".into(),
            7 => "job:task".into(),
            8 => format!("step_{}", "0".repeat(26)),
            9 => "1767453739640".into(),
            10 => "-1".into(),
            11 => "price.*".into(),
            12 => "event.properties.new > 1".into(),
            _ => (0..self.0.usize(1..20)).map(|_| self.0.char(' '..)).collect(),
        }
    }

    fn value(&mut self, depth: u32) -> Value {
        match self.0.u8(..if depth > 3 { 6 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.0.bool()),
            2 => json!(self.0.i64(..)),
            3 => json!(self.0.f64() * 1e300),
            4 | 5 => json!(self.text()),
            6 => (0..self.0.usize(..4)).map(|_| self.value(depth + 1)).collect(),
            7 => (0..40).fold(json!(1), |inner, _| json!([inner])),
            _ => self.object(depth + 1),
        }
    }

    fn object(&mut self, depth: u32) -> Value {
        let fields = 0..self.0.usize(..6);
        Value::Object(fields.map(|_| (self.of(&FIELDS).to_owned(), self.value(depth))).collect())
    }

    /// A body that some route takes, perhaps with a field changed.
    fn plausible(&mut self, path: &str) -> Value {
        let id = format!("id-{}", self.0.u8(..5));
        let of_route = BODIES.iter().position(|of| path.starts_with(of) && self.0.u8(..4) > 0);
        let mut body = match of_route.unwrap_or_else(|| self.0.usize(..BODIES.len())) {
            0 => json!({"eventType": "price.changed", "entityType": "ITEM", "entityId": id}),
            1 => json!({"name": "step", "requestId": id, "input": {"n": 1}}),
            2 => {
                json!({"jobId": id, "tasks": [{"taskId": "a", "name": "s"}, {"taskId": "b", "name": "s", "dependsOn": ["a"]}]})
            }
            3 => json!({"eventType": "run_created", "eventData": {"workflowName": "w", "input": null}}),
            4 => json!({"workflow": "w", "runId": id, "input": null}),
            5 => json!({"event": "paid", "match": {"order": id}, "data": {}}),
            6 => json!({"workflowType": "reprice", "kind": "task"}),
            _ => json!({"eventTypeGlob": "price.*", "workflowType": "reprice"}),
        };
        if self.0.u8(..3) == 0 {
            body[self.of(&FIELDS)] = self.value(0);
        }
        body
    }

    fn body(&mut self, path: &str) -> Vec<u8> {
        match self.0.u8(..10) {
            0 => Vec::new(),
            1 => (0..self.0.usize(..200)).map(|_| self.0.u8(..)).collect(),
            2 => {
                let mut text = self.plausible(path).to_string().into_bytes();
                text.truncate(self.0.usize(..=text.len()));
                text
            }
            3 => self.value(0).to_string().into_bytes(),
            4 | 5 => self.object(0).to_string().into_bytes(),
            6 if self.0.u8(..20) == 0 => vec![b'['; 2 << 20],
            _ => self.plausible(path).to_string().into_bytes(),
        }
    }

    fn target(&mut self) -> (Method, String) {
        let (path, methods) = self.of(&ROUTES);
        let method = match self.0.u8(..20) {
            0 => [Method::PUT, Method::OPTIONS, Method::HEAD, Method::DELETE][self.0.usize(..4)].clone(),
            _ => methods[self.0.usize(..methods.len())].clone(),
        };
        let id = match self.0.u8(..8) {
            0 | 1 => encoded(&self.text()),
            2..=6 => format!("id-{}", self.0.u8(..5)),
            _ => "%".to_owned() + &format!("{:02X}", self.0.u8(..)),
        };
        let mut path = path.replace("{}", if id.is_empty() { "r" } else { &id });
        for number in 0..self.0.usize(..8).saturating_sub(5) {
            path.push(if number == 0 { '?' } else { '&' });
            let value = match self.0.bool() {
                true => encoded(&self.text()),
                false => self.0.u16(..600).to_string(),
            };
            path.push_str(&format!("{}={value}", self.of(&QUERIES)));
        }
        (method, path)
    }
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_answered_with_a_server_error_or_not_at_all() {
    let requests =
        std::env::var("LEDGERLINE_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(REQUESTS);
    let world = World::start().await;
    let url = &world.local.state.api_url;
    let mut counts = std::collections::BTreeMap::<u16, usize>::new();
    for seed in seeds(1) {
        let mut dice = Dice(fastrand::Rng::with_seed(seed));
        for number in 0..requests {
            let (method, path) = dice.target();
            let body = dice.body(&path);
            let mut request = world.http.request(method.clone(), format!("{url}{path}"));
            match dice.0.u8(..20) {
                0 => {}
                1 => request = request.bearer_auth("ll_nonsense"),
                _ => request = request.bearer_auth(&world.local.state.api_key),
            }
            if dice.0.u8(..6) == 0
                && let Ok(key) = reqwest::header::HeaderValue::from_bytes(dice.text().as_bytes())
            {
                request = request.header("Idempotency-Key", key);
            }
            let shown = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
            let what = format!("seed {seed}, request {number}: {method} {path:.300} {shown}");
            let answer = request.body(body).timeout(Duration::from_secs(60)).send().await;
            let answer = answer.unwrap_or_else(|error| panic!("{what}: {error:?}"));
            let status = answer.status().as_u16();
            *counts.entry(status).or_default() += 1;
            let text = answer.text().await.unwrap();
            assert!(status < 500 || (status == 503 && text.contains("busy")), "{what}: {status} {text}");
        }
    }
    println!("{requests} requests: {counts:?}");
    let (status, health) = world.get("/api/health").await;
    // No worker takes what was submitted: after two minutes that is a note.
    let findings: Vec<&Value> =
        health["findings"].as_array().unwrap().iter().filter(|finding| finding["level"] != "note").collect();
    assert!(status == 200 && findings.is_empty(), "{health}");
    world.local.stop().await;
}
