//! The message that a worker gets: the contract with workers in any language.

use ledgerline_event::{
    Context, Event, Invalid, Name, Properties,
    catalogue::{Catalogued, TaskPending},
};
use ledgerline_ledger::{EmitError, Emitter};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Tasks;
use ledgerline_outbox::{ComponentError, Effects, Message, Queue, message_group};

/// Larger inputs travel by reference: an SQS message has 1 MiB, and a claim holds it too.
const MAX_INPUT_BYTES: usize = 200_000;

/// What a worker is asked to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskMessage {
    /// Whose task it is.
    pub tenant_id: Name,
    /// The app that its events have.
    pub app_name: Name,
    /// The task's entity id.
    pub request_id: Name,
    /// The job that it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<Name>,
    /// Its id within the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<Name>,
    /// What to run.
    pub name: String,
    /// Its input, unless that is large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Map<String, Value>>,
    /// Where a large input lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_ref: Option<InputRef>,
    /// 1 at first; a resume of the job begins the next.
    #[serde(default = "first_generation")]
    pub generation: u32,
    /// How long an attempt may take, if the submission says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How many attempts there may be, if the submission says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// The context of every event about the task.
    #[serde(default)]
    pub context: Context,
}

/// An object in the payload bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct InputRef {
    pub bucket: String,
    pub key: String,
}

/// A task that is about to start.
#[allow(missing_docs)]
pub struct TaskStart {
    pub request_id: Name,
    pub job: Option<(Name, Name)>,
    pub name: String,
    pub depends_on: Option<Vec<String>>,
    pub input: Map<String, Value>,
    pub generation: u32,
    pub timeout_ms: Option<u64>,
    pub max_attempts: Option<u32>,
    /// Where its message is kept.
    pub message_storage: MessageStorage,
}

/// Where the message of a new task is kept, to enqueue it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageStorage {
    /// In the task's record, or in a row that the record names: the caller puts that record.
    InRecord,
    /// In a row of its own: the task begins without a record.
    Separate,
}

const fn first_generation() -> u32 {
    1
}

impl TaskMessage {
    /// Reads the body of a message; the error names the field.
    pub fn parse(body: &str) -> Result<Self, Invalid> {
        let message: Self =
            serde_json::from_str(body).map_err(|error| Invalid::new("message", error.to_string()))?;
        match message.generation {
            0 => Err(Invalid::new("message", "generation: is 0; the first one is 1")),
            _ => Ok(message),
        }
    }

    /// The message as JSON that a queue accepts: SQS refuses two characters unless they are escaped.
    pub fn body(&self) -> Result<String, Invalid> {
        let json = serde_json::to_string(self).map_err(|error| Invalid::new("message", error.to_string()))?;
        Ok(json.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff"))
    }

    /// The message for the task queue.
    pub fn to_queue(&self) -> Result<Message, Invalid> {
        Ok(Message {
            queue: Queue::Tasks,
            group: message_group(&self.tenant_id),
            body: self.body()?,
            delay_seconds: 0,
        })
    }
}

impl Tasks {
    /// The event and the message of a start, in the context of `emitter`.
    pub async fn task_effects(
        &self,
        emitter: &Emitter,
        start: TaskStart,
    ) -> Result<(TaskMessage, Effects), ComponentError> {
        let emitter = &emitter.with_scope(|scope| scope.context.generation = Some(start.generation));
        let (job_id, task_id) = start.job.unzip();
        let pending = TaskPending {
            request_id: start.request_id.to_string(),
            job_id: job_id.as_ref().map(ToString::to_string),
            name: start.name.clone(),
            depends_on: start.depends_on,
        };
        let event = seal(emitter, &start.request_id, pending).await?;
        let scope = emitter.scope();
        let mut message = TaskMessage {
            tenant_id: scope.tenant.clone(),
            app_name: scope.app.clone(),
            request_id: start.request_id,
            job_id,
            task_id,
            name: start.name,
            input: None,
            input_ref: None,
            generation: start.generation,
            timeout_ms: start.timeout_ms,
            max_attempts: start.max_attempts,
            context: scope.context.clone(),
        };
        self.put_input(&mut message, start.input).await?;
        let queued = message.to_queue()?;
        match start.message_storage {
            MessageStorage::InRecord => {}
            MessageStorage::Separate => self.keep_message(&message, &queued.body).await?,
        }
        Ok((message, Effects { events: vec![event], messages: vec![queued], ..Effects::default() }))
    }

    /// The input itself, or where it lies.
    async fn put_input(
        &self,
        message: &mut TaskMessage,
        input: Map<String, Value>,
    ) -> Result<(), ComponentError> {
        let json = serde_json::to_vec(&input).map_err(|error| Invalid::new("input", error.to_string()))?;
        if json.len() <= MAX_INPUT_BYTES {
            message.input = Some(input);
            return Ok(());
        }
        // Not by the id of the task: tenants choose those, and two tenants may choose the same.
        let key = format!("tasks/{}-input.json", self.emitter.new_event_id());
        self.payloads.put(&key, json).await?;
        message.input_ref = Some(InputRef { bucket: self.payloads.bucket().to_owned(), key });
        Ok(())
    }

    /// The message with its input stored again under a new key, because objects of the bucket expire by their age. A
    /// message whose input is missing stays as it is: the worker that gets it reports that.
    pub async fn with_renewed_input(&self, message: &TaskMessage) -> Result<TaskMessage, ComponentError> {
        let mut message = message.clone();
        if let Some(reference) = &mut message.input_ref
            && reference.bucket == self.payloads.bucket()
            && let Some(input) = self.payloads.get(&reference.key).await?
        {
            reference.key = format!("tasks/{}-input.json", self.emitter.new_event_id());
            self.payloads.put(&reference.key, input).await?;
        }
        Ok(message)
    }

    /// The input of a task, wherever it is.
    pub async fn input_of(&self, message: &TaskMessage) -> Result<Map<String, Value>, ComponentError> {
        let Some(reference) = &message.input_ref else {
            return Ok(message.input.clone().unwrap_or_default());
        };
        let wrong = |reason: String| ComponentError::from(Invalid::new("inputRef", reason));
        // Anyone may have sent the message: it must not give access to anything but an input.
        if reference.bucket != self.payloads.bucket() || !reference.key.starts_with("tasks/") {
            return Err(wrong(format!("{}/{} is no input of this stage", reference.bucket, reference.key)));
        }
        let body = self.payloads.get(&reference.key).await?;
        let body = body.ok_or_else(|| wrong(format!("{} is missing", reference.key)))?;
        serde_json::from_slice(&body).map_err(|error| wrong(format!("{}: {error}", reference.key)))
    }
}

/// An event about a task, fixed byte for byte.
pub async fn seal<P: Catalogued + Send + Sync>(
    emitter: &Emitter,
    request_id: &Name,
    properties: P,
) -> Result<ledgerline_ledger::SealedEvent, ComponentError> {
    let draft = emitter.catalogued(request_id.as_str(), properties);
    let event: Event<Properties> = draft.build_plain()?;
    match emitter.seal(event).await {
        Err(EmitError::Invalid(invalid)) => Err(invalid.into()),
        other => Ok(other?),
    }
}
