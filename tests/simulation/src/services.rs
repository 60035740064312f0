//! Everything but the tables: bus, queues, bucket and parameters, each as far as the ledger uses it.

mod queues;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use self::queues::Queues;

pub(crate) use self::queues::queue_name;
pub use self::queues::{Depth, Message};
use super::{
    request::{Request, Response, Service},
    store::PartialFaults,
};

/// What the services have received in one history.
#[derive(Debug, Default)]
pub(crate) struct Services {
    /// The details that the bus has taken, in its order.
    pub(crate) bus: Vec<String>,
    pub(crate) queues: Queues,
    objects: BTreeMap<String, Vec<u8>>,
    parameters: BTreeMap<String, String>,
    /// Ids of answers count upwards.
    last_id: u64,
}

impl Services {
    /// Carries out one operation at the time `now`.
    pub(crate) fn serve(&mut self, request: &Request, now: u64, partial: &mut PartialFaults<'_>) -> Response {
        if request.service == Service::S3 {
            return self.object(request);
        }
        let input: Value = serde_json::from_slice(request.body()).expect("the SDK sends JSON");
        let text = |field: &str| input[field].as_str().unwrap_or_default();
        let answer = match (request.service, request.operation.as_str()) {
            (Service::Events, "PutEvents") => self.put_events(&input, partial),
            (Service::Events, "CreateEventBus") => {
                json!({ "EventBusArn": arn("events", "event-bus/", text("Name")) })
            }
            (Service::Events, "PutRule") => json!({ "RuleArn": arn("events", "rule/", text("Name")) }),
            (Service::Events, "PutTargets") => json!({ "FailedEntryCount": 0, "FailedEntries": [] }),
            (Service::Sqs, operation) => match self.queues.serve(operation, &input, now, partial) {
                Ok(answer) => answer,
                Err(refused) => return refused.answer(),
            },
            (Service::Ssm, "PutParameter") => {
                self.parameters.insert(text("Name").to_owned(), text("Value").to_owned());
                json!({ "Version": 1, "Tier": "Standard" })
            }
            (Service::Ssm, "GetParameter") if self.parameters.contains_key(text("Name")) => {
                json!({ "Parameter": { "Name": text("Name"), "Value": self.parameters[text("Name")] } })
            }
            (Service::Ssm, "GetParameter" | "DeleteParameter") => {
                return Response::error(Service::Ssm, 400, "ParameterNotFound", text("Name"));
            }
            (service, operation) => {
                let said = format!("The operation {operation} is not available here.");
                return Response::error(service, 400, "UnknownOperationException", &said);
            }
        };
        Response::json(200, answer.to_string())
    }

    fn next_id(&mut self) -> String {
        self.last_id += 1;
        format!("00000000-0000-4000-8000-{:012}", self.last_id)
    }

    fn put_events(&mut self, input: &Value, partial: &mut PartialFaults<'_>) -> Value {
        let mut failed = 0;
        let mut answers = Vec::new();
        for entry in input["Entries"].as_array().into_iter().flatten() {
            if partial.refuses_entry() {
                failed += 1;
                answers.push(json!({ "ErrorCode": "InternalFailure", "ErrorMessage": "simulated" }));
            } else {
                self.bus.push(entry["Detail"].as_str().unwrap_or_default().to_owned());
                answers.push(json!({ "EventId": self.next_id() }));
            }
        }
        json!({ "FailedEntryCount": failed, "Entries": answers })
    }

    fn object(&mut self, request: &Request) -> Response {
        match request.operation.as_str() {
            "CreateBucket" => Response::empty(200),
            "PutObject" if request.if_absent && self.objects.contains_key(&request.path) => {
                Response::error(Service::S3, 412, "PreconditionFailed", "an object is there")
            }
            "PutObject" => {
                self.objects.insert(request.path.clone(), request.body().to_vec());
                Response { headers: vec![("etag", "\"simulated\"".to_owned())], ..Response::empty(200) }
            }
            "GetObject" => match self.objects.get(&request.path) {
                Some(body) => Response {
                    headers: vec![
                        ("etag", "\"simulated\"".to_owned()),
                        ("content-length", body.len().to_string()),
                    ],
                    body: body.clone(),
                    ..Response::empty(200)
                },
                None => Response::error(Service::S3, 404, "NoSuchKey", "no object is there"),
            },
            other => {
                let said = format!("{other} is not available here.");
                Response::error(Service::S3, 400, "UnknownOperation", &said)
            }
        }
    }
}

fn arn(service: &str, kind: &str, name: &str) -> String {
    format!("arn:aws:{service}:us-east-1:000000000000:{kind}{name}")
}
