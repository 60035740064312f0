//! What may go wrong, how often, and in what form.

use fastrand::Rng;
use serde_json::{Value, json};

use super::request::{Reply, Request, Response, Service};

/// How likely each kind of trouble is, per request that is picked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// An error is answered, or the connection is lost, and the request was never applied.
    pub fail: f64,
    /// The request is applied and its answer lost.
    pub lose: f64,
    /// The answer is lost, and the request stays in the network: it is applied later, or never.
    pub linger: f64,
    /// The answer is lost, and the sender's client sends the same request again at once, as the SDK's retries do.
    pub repeat: f64,
    /// The request is applied now; its answer arrives many steps later.
    pub late_answer: f64,
    /// The sender dies, just before the request is applied or just after.
    pub kill: f64,
    /// The sender is not run for a while, often for longer than a lease.
    pub pause: f64,
    /// The time leaps by up to two minutes for all actors.
    pub jump: f64,
    /// One entry of a batch to the bus or to a queue is refused.
    pub refuse_entry: f64,
    /// A message that one actor receives goes to the next receiver as well.
    pub redeliver: f64,
    /// A query or scan that sets no limit ends its page after a few items.
    pub short_page: f64,
    /// Requests about this are picked last, mostly: what must not be slow is found by making it slow.
    pub slow: Option<&'static str>,
    /// Most requests about this are throttled for as long as the trouble lasts, as those of a hot partition are.
    pub throttled: Option<&'static str>,
}

/// What a history may be slow with.
const SLOW: [&str; 5] = ["LATE#", "DRAIN#", "CLAIM#", "DIRTY", "TENANT#"];

/// What a history may throttle.
const THROTTLED: [&str; 6] = ["LATE#", "DRAIN#", "CLAIM#", "DIRTY", "TASK#", "RUN#"];
/// How likely a request about that is throttled.
const THROTTLED_SHARE: f64 = 0.7;

/// What becomes of the request that was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Serve,
    Fail,
    Lose,
    Linger,
    Repeat,
    AnswerLate,
    KillBefore,
    KillAfter,
    Pause,
}

impl Faults {
    /// Everything goes well: a history comes to rest.
    pub fn none() -> Self {
        Self::default()
    }

    /// Another mixture for each history: most have a few kinds of trouble, so that each also occurs alone.
    pub fn random(random: &mut Rng) -> Self {
        let slow = random.bool().then(|| SLOW[random.usize(..SLOW.len())]);
        let mut up_to = |most: f64| if random.bool() { 0.0 } else { most * random.f64() };
        Self {
            fail: up_to(0.2),
            lose: up_to(0.15),
            linger: up_to(0.05),
            late_answer: up_to(0.1),
            kill: up_to(0.05),
            pause: up_to(0.04),
            jump: up_to(0.02),
            refuse_entry: up_to(0.2),
            redeliver: up_to(0.2),
            short_page: up_to(0.8),
            slow,
            throttled: (random.u8(..5) == 0).then(|| THROTTLED[random.usize(..THROTTLED.len())]),
            // A history that tries it says so.
            repeat: 0.0,
        }
    }

    /// Whether a hot partition throttles the request.
    pub(crate) fn throttles(&self, request: &Request, random: &mut Rng) -> bool {
        self.throttled.is_some_and(|hot| request.service == Service::Dynamo && request.about.contains(hot))
            && random.f64() < THROTTLED_SHARE
    }

    pub(crate) fn fate(&self, random: &mut Rng) -> Fate {
        let mut point = random.f64();
        let fates = [
            (self.fail, Fate::Fail),
            (self.lose, Fate::Lose),
            (self.linger, Fate::Linger),
            (self.late_answer, Fate::AnswerLate),
            (self.kill / 2.0, Fate::KillBefore),
            (self.kill / 2.0, Fate::KillAfter),
            (self.pause, Fate::Pause),
            (self.repeat, Fate::Repeat),
        ];
        for (share, fate) in fates {
            if point < share {
                return fate;
            }
            point -= share;
        }
        Fate::Serve
    }
}

/// The answer of a hot partition.
pub(crate) fn throttled(request: &Request) -> Reply {
    let code = "ProvisionedThroughputExceededException";
    Reply::Response(Response::error(request.service, 400, code, "simulated"))
}

/// How a request fails that is not applied. `contended`: a transaction has touched the same item.
pub(crate) fn failure(request: &Request, contended: bool, random: &mut Rng) -> Reply {
    let error =
        |status, code: &str| Reply::Response(Response::error(request.service, status, code, "simulated"));
    match (random.u8(..5), request.service) {
        (0, _) => Reply::TimedOut,
        (1, _) => Reply::ConnectionLost,
        (2, Service::Dynamo) if request.operation == "TransactWriteItems" => {
            Reply::Response(conflict(request))
        }
        (2, Service::Dynamo) if contended => error(400, "TransactionConflictException"),
        (2 | 3, Service::Dynamo) => error(400, "ProvisionedThroughputExceededException"),
        (2 | 3, Service::Events | Service::Ssm) => error(400, "ThrottlingException"),
        (2 | 3, Service::Sqs) => error(400, "RequestThrottled"),
        (2 | 3, Service::S3) => error(503, "SlowDown"),
        (_, Service::Events) => error(500, "InternalException"),
        (_, Service::Sqs | Service::S3) => error(500, "InternalError"),
        (_, Service::Dynamo | Service::Ssm) => error(500, "InternalServerError"),
    }
}

/// A transaction that met another one.
fn conflict(request: &Request) -> Response {
    let input: Value = serde_json::from_str(request.text()).expect("the SDK sends JSON");
    let count = input["TransactItems"].as_array().map_or(0, Vec::len);
    let reason = |position: usize| match position {
        0 => json!({ "Code": "TransactionConflict", "Message": "Transaction is ongoing for the item" }),
        _ => json!({ "Code": "None" }),
    };
    let body = json!({
        "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
        "Message": "Transaction cancelled, please refer cancellation reasons for specific reasons",
        "CancellationReasons": (0..count).map(reason).collect::<Vec<_>>(),
    });
    Response::json(400, body.to_string())
}
