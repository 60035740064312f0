//! Emitting: everything about an event is computed here, by its sender.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use futures::future::join_all;
use ledgerline_event::{
    Context, Event, Invalid, Keyed, Kind, Millis, Name, Properties,
    catalogue::Catalogued,
    overflow::{self, LIMIT, MARKER},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use ulid::Ulid;

use crate::{Clients, Clock, Draft, Names, json_limits, system_clock};
use ledgerline_store::{Fault, Payloads, RequestRetry, RetryCause, StoreError};

/// Every event has this `DetailType`; the saving rule matches on it.
pub const DETAIL_TYPE: &str = "log-event";
/// EventBridge takes this many entries at once…
const MAX_ENTRIES: usize = 10;
/// …and this many bytes, with some room for how it counts them.
const MAX_BYTES: usize = 950_000;
/// Attempts per entry after errors other than throttling.
const ATTEMPTS: u32 = 5;

/// What is the same for every event of an [`Emitter`].
#[derive(Clone, Debug)]
pub struct EmitScope {
    /// The tenant whose events they are.
    pub tenant: Name,
    /// The application that emits them.
    pub app: Name,
    /// Where and by what they are emitted; `via` included.
    pub context: Context,
    /// What caused them.
    pub caused_by: Option<String>,
    /// The run that they belong to.
    pub workflow_run_id: Option<String>,
}

/// Emits events in one scope. Cheap to clone.
#[derive(Clone)]
pub struct Emitter {
    bus: Arc<Bus>,
    scope: Arc<EmitScope>,
}

struct Bus {
    events: aws_sdk_eventbridge::Client,
    name: String,
    payloads: Payloads,
    clock: Clock,
    last_id: Mutex<Ulid>,
}

/// Why an event is not on the bus.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// One of its fields breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Its large properties could not be stored, so it was not sent.
    #[error("storing the overflow: {0}")]
    Overflow(StoreError),
    /// The bus did not take it, or did not answer whether it did. Emitting the same event again is safe.
    #[error("the bus did not accept the event: {code}: {message}")]
    NotAccepted {
        /// EventBridge's code.
        code: String,
        /// EventBridge's words.
        message: String,
    },
}

impl Emitter {
    /// An emitter for `tenant` and `app` on the bus of a stage.
    pub fn new(clients: &Clients, names: &Names, tenant: Name, app: Name) -> Self {
        Self::with_clock(clients, names, tenant, app, system_clock())
    }

    /// The same with a clock of the caller's.
    pub fn with_clock(clients: &Clients, names: &Names, tenant: Name, app: Name, clock: Clock) -> Self {
        let context = Context { environment: Some(names.stage.clone()), ..Context::default() };
        Self {
            bus: Arc::new(Bus {
                events: clients.events.clone(),
                name: names.bus.clone(),
                payloads: Payloads::new(clients.s3.clone(), &names.payload_bucket),
                clock,
                last_id: Mutex::new(Ulid::nil()),
            }),
            scope: Arc::new(EmitScope { tenant, app, context, caused_by: None, workflow_run_id: None }),
        }
    }

    /// What every event of this emitter gets.
    pub fn scope(&self) -> &EmitScope {
        &self.scope
    }

    /// An emitter on the same bus, with the scope that `change` makes of this one's.
    pub fn with_scope(&self, change: impl FnOnce(&mut EmitScope)) -> Self {
        let mut scope = EmitScope::clone(&self.scope);
        change(&mut scope);
        Self { bus: self.bus.clone(), scope: Arc::new(scope) }
    }

    /// An emitter for what follows from `event`: its events name `event` as their cause, belong to the same tenant and
    /// run, and carry its `via`.
    pub fn handling<P>(&self, event: &Event<P>) -> Self {
        self.with_scope(|scope| {
            scope.tenant = event.tenant_id.clone();
            scope.caused_by = Some(format!("event:{}:{}", event.event_type, event.event_id));
            scope.workflow_run_id = event.workflow_run_id.clone();
            scope.context.via = event.context.carried_via();
        })
    }

    /// Begins an event of any type.
    pub fn event(&self, event_type: impl Into<String>) -> Draft {
        Draft::new(self.clone(), event_type.into(), Value::Null)
    }

    /// Begins an event of the catalogue.
    pub fn catalogued<P: Catalogued>(&self, entity_id: impl Into<String>, properties: P) -> Draft<P> {
        Draft::new(self.clone(), P::EVENT_TYPE.to_owned(), properties).entity(P::ENTITY_TYPE, entity_id)
    }

    /// The time by the emitter's clock.
    pub fn now(&self) -> Millis {
        (self.bus.clock)()
    }

    /// An event id that sorts after every id that this emitter has made before, also within a millisecond: its events
    /// keep their order. [`new_event_id`](Self::new_event_id) keeps no order.
    pub(crate) fn next_ordered_event_id(&self) -> Name {
        let fresh = Ulid::from_parts(self.now().get(), random());
        let Ok(mut last) = self.bus.last_id.lock() else { return Kind::Event.id(fresh) };
        let next = match last.increment() {
            Ok(next) if fresh <= *last => next,
            _ => fresh,
        };
        *last = next;
        Kind::Event.id(next)
    }

    /// Sends many events. Returns one result per draft, in the same order.
    pub async fn emit_all<P: Serialize + Send + Sync>(
        &self,
        drafts: Vec<Draft<P>>,
    ) -> Vec<Result<Name, EmitError>> {
        let prepared =
            join_all(drafts.into_iter().map(|draft| async { self.seal(draft.build()?).await })).await;
        let mut results: Vec<Option<Result<Name, EmitError>>> = Vec::with_capacity(prepared.len());
        let mut sendable = Vec::new();
        for (position, entry) in prepared.into_iter().enumerate() {
            match entry {
                Ok(entry) => {
                    sendable.push((position, entry));
                    results.push(None);
                }
                Err(error) => results.push(Some(Err(error))),
            }
        }
        for (position, result) in self.send_batches(sendable).await {
            results[position] = Some(result);
        }
        let lost =
            || Err(EmitError::NotAccepted { code: "Lost".into(), message: "the bus gave no answer".into() });
        results.into_iter().map(|result| result.unwrap_or_else(lost)).collect()
    }

    /// Sends events that were sealed before, in their order, as full batches; the first one that the
    /// bus does not take is the error.
    pub async fn send_sealed(&self, events: Vec<SealedEvent>) -> Result<(), EmitError> {
        let results = self.send_batches(events.into_iter().enumerate().collect()).await;
        results.into_iter().try_for_each(|(_, result)| result.map(|_| ()))
    }

    async fn send_batches(&self, events: Vec<(usize, SealedEvent)>) -> Vec<(usize, Result<Name, EmitError>)> {
        let mut results = Vec::with_capacity(events.len());
        for batch in batches(events) {
            results.extend(self.send(batch).await);
        }
        results
    }

    /// A new event id that nothing else has. Two of one millisecond are in no order.
    pub fn new_event_id(&self) -> Name {
        self.new_id(Kind::Event)
    }

    /// A new id of `kind` that nothing else has. Two of one millisecond are in no order.
    pub fn new_id(&self, kind: Kind) -> Name {
        kind.id(Ulid::from_parts(self.now().get(), random()))
    }

    /// Everything that can be done before the bus is asked; S3 first, so that no event is on
    /// the bus whose payload is not there. From here on the event is fixed byte for byte: it may
    /// be sent any number of times and is saved once.
    pub async fn seal<P: Serialize>(&self, event: Event<P>) -> Result<SealedEvent, EmitError> {
        let properties = raw_properties(&event.properties)?;
        let event = event.map_properties(|_| properties);
        let keys = event.keys();
        let detail = to_json(&Keyed { keys: &keys, event: &event })?;
        let (source, at) = (format!("task-workflow.{}", event.app_name), event.timestamp);
        let event_id = event.event_id.clone();
        if detail.len() <= LIMIT {
            return Ok(SealedEvent { event_id, source, detail, at });
        }
        let properties = serde_json::from_str(event.properties.get());
        let properties: Properties =
            properties.map_err(|error| Invalid::new("properties", error.to_string()))?;
        let mut event = event.map_properties(|_| properties);
        if let Some((marker, moved)) = overflow::split(&mut event, self.bus.payloads.bucket())? {
            let body =
                serde_json::to_vec(&moved).map_err(|error| Invalid::new("properties", error.to_string()))?;
            if !self.bus.payloads.put_once(&marker.key, body).await.map_err(EmitError::Overflow)? {
                let reason = format!("event id {event_id} is already used by an event with other content");
                return Err(Invalid::new("eventId", reason).into());
            }
        }
        let detail = to_json(&Keyed { keys: &keys, event: &event })?;
        Ok(SealedEvent { event_id, source, detail, at })
    }

    /// Sends one batch. An entry that the bus refuses for a passing reason is sent again alone, the others at the same
    /// time.
    async fn send(&self, batch: Vec<(usize, SealedEvent)>) -> Vec<(usize, Result<Name, EmitError>)> {
        let answers = self.put(batch.iter().map(|(_, entry)| entry)).await;
        let retried = batch.into_iter().zip(answers).map(|((position, entry), answer)| async move {
            let mut answer = answer;
            let (mut attempt, mut retries) = (1, RequestRetry::default());
            while let Err(error) = &answer {
                let chance = fastrand::f64();
                let pause = match error.fault {
                    Fault::Throttled => retries.pause(RetryCause::Throttled, chance),
                    Fault::Unavailable if attempt < ATTEMPTS => Some(backoff(attempt).mul_f64(chance)),
                    _ => None,
                };
                let Some(pause) = pause else { break };
                tokio::time::sleep(pause).await;
                attempt += 1;
                answer = self.put([&entry]).await.pop().unwrap_or(answer);
            }
            let result = answer
                .map(|()| entry.event_id)
                .map_err(|error| EmitError::NotAccepted { code: error.code, message: error.message });
            (position, result)
        });
        join_all(retried).await
    }

    async fn put<'a>(
        &self,
        entries: impl IntoIterator<Item = &'a SealedEvent>,
    ) -> Vec<Result<(), EntryError>> {
        let entries: Vec<_> = entries.into_iter().map(|entry| entry.request(&self.bus.name)).collect();
        let count = entries.len();
        match self.bus.events.put_events().set_entries(Some(entries)).send().await {
            Ok(answer) => {
                let mut results: Vec<_> = answer
                    .entries()
                    .iter()
                    .map(|entry| match entry.error_code() {
                        None => Ok(()),
                        Some(code) => Err(EntryError::entry(code, entry.error_message())),
                    })
                    .collect();
                results.resize_with(count, || {
                    Err(EntryError::entry("InternalFailure", Some("no answer for the entry")))
                });
                results
            }
            Err(error) => {
                let error = StoreError::new("PutEvents", error);
                (0..count).map(|_| Err(EntryError::request(&error))).collect()
            }
        }
    }
}

/// One event as the bus takes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SealedEvent {
    event_id: Name,
    source: String,
    detail: String,
    at: Millis,
}

impl SealedEvent {
    /// The event's id.
    pub fn event_id(&self) -> &Name {
        &self.event_id
    }

    /// As EventBridge counts: source, detail type, detail, and 14 bytes for the time.
    pub fn size(&self) -> usize {
        self.source.len() + DETAIL_TYPE.len() + self.detail.len() + 14
    }

    fn request(&self, bus: &str) -> PutEventsRequestEntry {
        let time = aws_sdk_eventbridge::primitives::DateTime::from(std::time::SystemTime::from(self.at));
        PutEventsRequestEntry::builder()
            .event_bus_name(bus)
            .source(&self.source)
            .detail_type(DETAIL_TYPE)
            .detail(&self.detail)
            .time(time)
            .build()
    }
}

#[derive(Debug)]
struct EntryError {
    code: String,
    message: String,
    fault: Fault,
}

impl EntryError {
    fn entry(code: &str, message: Option<&str>) -> Self {
        let fault = match code {
            "ThrottlingException" => Fault::Throttled,
            "InternalFailure" | "InternalException" => Fault::Unavailable,
            _ => Fault::Rejected,
        };
        Self { code: code.to_owned(), message: message.unwrap_or(code).to_owned(), fault }
    }

    fn request(error: &StoreError) -> Self {
        let code = error.code.clone().unwrap_or_else(|| "NoAnswer".into());
        Self { code, message: error.message.clone(), fault: error.fault }
    }
}

fn batches(entries: Vec<(usize, SealedEvent)>) -> Vec<Vec<(usize, SealedEvent)>> {
    let mut batches: Vec<Vec<(usize, SealedEvent)>> = Vec::new();
    let mut bytes = 0;
    for (position, entry) in entries {
        let size = entry.size();
        match batches.last_mut() {
            Some(batch) if batch.len() < MAX_ENTRIES && bytes + size <= MAX_BYTES => {
                bytes += size;
                batch.push((position, entry));
            }
            _ => {
                bytes = size;
                batches.push(vec![(position, entry)]);
            }
        }
    }
    batches
}

/// JSON as a queue takes it: an event travels through one, and two characters have to be escaped there.
fn to_json(value: &impl Serialize) -> Result<String, Invalid> {
    let json = serde_json::to_string(value).map_err(|error| Invalid::new("properties", error.to_string()))?;
    match json.contains(['\u{fffe}', '\u{ffff}']) {
        true => Ok(json.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")),
        false => Ok(json),
    }
}

/// Properties as JSON text: an object without the overflow marker. Only the emitter writes the
/// marker: a producer's marker could point readers at a payload that is not the producer's.
/// `null` stands for no properties.
pub(crate) fn raw_properties(properties: &impl Serialize) -> Result<Box<RawValue>, Invalid> {
    let wrong = |reason: String| Invalid::new("properties", reason);
    let raw = serde_json::value::to_raw_value(properties).map_err(|error| wrong(error.to_string()))?;
    if raw.get() == "null" {
        return RawValue::from_string("{}".into()).map_err(|error| wrong(error.to_string()));
    }
    if !raw.get().starts_with('{') {
        return Err(wrong("must be a JSON object".into()));
    }
    json_limits::check(raw.get()).map_err(wrong)?;
    if raw.get().contains(MARKER) {
        let fields: Properties = serde_json::from_str(raw.get()).map_err(|error| wrong(error.to_string()))?;
        if fields.contains_key(MARKER) {
            return Err(wrong(format!("{MARKER} is reserved for properties that were moved to S3")));
        }
    }
    Ok(raw)
}

/// The longest pause after an attempt that the bus did not answer.
fn backoff(attempt: u32) -> Duration {
    Duration::from_millis(50 << attempt.min(6))
}

fn random() -> u128 {
    let mut bytes = [0; 16];
    // Without randomness ids could repeat: stopping is the only safe answer.
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    u128::from_le_bytes(bytes)
}

impl std::fmt::Debug for Emitter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Emitter").field("bus", &self.bus.name).field("scope", &self.scope).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_keep_to_ten_entries_and_to_the_size() {
        let entry = |size: usize| SealedEvent {
            event_id: Kind::Event.id(Ulid::nil()),
            source: String::new(),
            detail: "x".repeat(size),
            at: Millis::MIN,
        };
        let sizes = |sizes: &[usize]| {
            let entries = sizes.iter().map(|size| entry(*size)).enumerate().collect();
            batches(entries).iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[1; 21]), [10, 10, 1]);
        assert_eq!(sizes(&[200_000; 7]), [4, 3]);
        assert_eq!(sizes(&[]), Vec::<usize>::new());
    }
}
