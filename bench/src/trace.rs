//! The requests of a running local mode, one by one: what a run spends its time on.

use std::{
    fmt::Write,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use ledgerline_embedded::{Call, Interceptor, Moment};
use serde_json::Value;

/// One request.
struct Seen {
    what: String,
    /// To recognise it by when it is answered.
    body: usize,
    came: Instant,
    answered: Option<Instant>,
}

/// The requests since the last reading.
#[derive(Clone, Default)]
pub(crate) struct Trace(Arc<Mutex<Vec<Seen>>>);

impl Trace {
    fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes when requests come and are answered; `inner` is asked too.
    pub(crate) fn interceptor(&self, inner: Interceptor) -> Interceptor {
        let trace = self.clone();
        Arc::new(move |call: Call, moment| {
            let (now, body) = (Instant::now(), call.body.as_ptr() as usize);
            match moment {
                Moment::Before => {
                    let what = name(&call);
                    trace.seen().push(Seen { what, body, came: now, answered: None });
                }
                Moment::After { status } => {
                    let mut seen = trace.seen();
                    let open = seen.iter_mut().rev().find(|one| one.body == body && one.answered.is_none());
                    if let Some(one) = open {
                        one.answered = Some(now);
                        if status != 200 {
                            one.what.push_str(&format!(": {status}"));
                        }
                    }
                }
            }
            inner(call, moment)
        })
    }

    /// What there was since `from`, one line each: when it came, how long it took, and what it was.
    pub(crate) fn take(&self, from: Instant) -> String {
        let mut text = String::new();
        for one in self.seen().drain(..).filter(|one| one.came >= from) {
            let ms = |at: Instant| at.saturating_duration_since(from).as_secs_f64() * 1e3;
            let took = one.answered.map(|answered| ms(answered) - ms(one.came));
            let took = took.map_or("?".to_owned(), |took| format!("{took:.2}"));
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{:>8.2} ms {:>6} {}", ms(one.came), took, one.what);
        }
        text
    }
}

/// The operation, and on what.
fn name(call: &Call) -> String {
    let body: Value = serde_json::from_slice(&call.body).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let key = |item: &Value| format!("{} {}", text(&item["PK"]["S"]), text(&item["SK"]["S"]));
    let detail = match call.operation.as_str() {
        "PutItem" => key(&body["Item"]),
        "GetItem" | "UpdateItem" | "DeleteItem" => key(&body["Key"]),
        "TransactWriteItems" => {
            let writes = body["TransactItems"].as_array().into_iter().flatten();
            writes.map(|write| key(&write["Put"]["Item"])).collect::<Vec<_>>().join(" + ")
        }
        "Query" => text(&body["ExpressionAttributeValues"][":pk"]["S"]),
        "PutEvents" => format!("{} events", body["Entries"].as_array().map_or(0, Vec::len)),
        _ => String::new(),
    };
    format!("{:?} {} {} {detail}", call.service, call.operation, text(&body["TableName"]))
}
