//! Checks the form of events that an external runner appends. The history decides whether an event may follow the others.

use serde_json::{Map, Value};

use super::WaitOutcome;
use crate::{
    Invalid, LogDraft, Millis, Name, RunEntity, RunEventType, TEXT_MAX,
    containment::{check_criteria, kind_of},
    id::Kind,
};

/// Checks an event that is to be appended; the error names the field. The correlation id is the id of the entity: for a run
/// any name, for the others the prefix of the kind and a ULID. Unknown fields of `event_data` are kept.
pub fn read_draft(
    event_type: RunEventType,
    correlation_id: Option<&str>,
    event_data: Map<String, Value>,
) -> Result<LogDraft, Invalid> {
    let correlation_id = read_id(event_type, correlation_id)?;
    let data = Data(&event_data);
    match event_type {
        RunEventType::RunCreated => {
            data.name("eventData.workflowName")?;
            data.any("eventData.input")?;
            data.optional_text("eventData.deploymentId")?;
        }
        RunEventType::RunStarted => data.optional_short_text("eventData.workflowVersion")?,
        RunEventType::RunCompleted => data.any("eventData.output")?,
        RunEventType::RunFailed | RunEventType::StepFailed => data.failure()?,
        RunEventType::RunCancelled => data.optional_text("eventData.reason")?,
        RunEventType::StepCreated => data.short_text("eventData.stepName")?,
        RunEventType::StepStarted => data.count("eventData.attempt")?,
        RunEventType::StepCompleted => data.any("eventData.result")?,
        RunEventType::StepRetrying => {
            data.failure()?;
            data.optional_time("eventData.retryAfter")?;
        }
        RunEventType::HookCreated | RunEventType::HookConflict => data.name("eventData.token")?,
        RunEventType::HookReceived => data.any("eventData.payload")?,
        RunEventType::HookDisposed => {}
        RunEventType::WaitCreated => data.wait()?,
        RunEventType::WaitCompleted => data.outcome()?,
    }
    Ok(LogDraft { event_type, correlation_id, event_data })
}

fn read_id(event_type: RunEventType, id: Option<&str>) -> Result<Name, Invalid> {
    const FIELD: &str = "correlationId";
    let entity = event_type.entity();
    let kind = entity.id_kind();
    let Some(id) = id else {
        let what = match entity {
            RunEntity::Run => "run",
            RunEntity::Step => "step",
            RunEntity::Hook => "hook",
            RunEntity::Wait => "wait",
        };
        return Err(Invalid::new(FIELD, format!("is missing; {event_type} needs the id of its {what}")));
    };
    let id = Name::new(FIELD, id)?;
    if entity != RunEntity::Run && Kind::of(&id) != Some(kind) {
        let reason = format!("`{id}` is not `{}_` and a ULID, as {event_type} needs it", kind.prefix());
        return Err(Invalid::new(FIELD, reason));
    }
    Ok(id)
}

/// The fields of `eventData`, by the names that errors give them.
struct Data<'a>(&'a Map<String, Value>);

impl<'a> Data<'a> {
    /// `null` counts as absent: some senders write out what they leave empty.
    fn get(&self, field: &'static str) -> Option<&'a Value> {
        self.0.get(key(field)).filter(|value| !value.is_null())
    }

    fn required(&self, field: &'static str) -> Result<&'a Value, Invalid> {
        self.get(field).ok_or_else(|| Invalid::new(field, "is missing"))
    }

    /// A field that must be there, with any JSON value, `null` included.
    fn any(&self, field: &'static str) -> Result<(), Invalid> {
        if self.0.contains_key(key(field)) {
            return Ok(());
        }
        Err(Invalid::new(field, "is missing; it may be null"))
    }

    fn text(&self, field: &'static str) -> Result<&'a str, Invalid> {
        let value = self.required(field)?;
        value.as_str().ok_or_else(|| wrong(field, value, "a text"))
    }

    fn optional_text(&self, field: &'static str) -> Result<(), Invalid> {
        if self.get(field).is_some() { self.text(field).map(|_| ()) } else { Ok(()) }
    }

    fn short_text(&self, field: &'static str) -> Result<(), Invalid> {
        match self.text(field)?.len() {
            0 => Err(Invalid::new(field, "is empty")),
            bytes if bytes > TEXT_MAX => {
                Err(Invalid::new(field, format!("has {bytes} bytes; at most {TEXT_MAX} are allowed")))
            }
            _ => Ok(()),
        }
    }

    fn optional_short_text(&self, field: &'static str) -> Result<(), Invalid> {
        if self.get(field).is_some() { self.short_text(field) } else { Ok(()) }
    }

    fn name(&self, field: &'static str) -> Result<(), Invalid> {
        Name::new(field, self.text(field)?).map(|_| ())
    }

    fn count(&self, field: &'static str) -> Result<(), Invalid> {
        let value = self.required(field)?;
        match value.as_u64() {
            Some(1..=0xffff_ffff) => Ok(()),
            _ => Err(Invalid::new(field, format!("is {}; 1 or more is expected", brief(value)))),
        }
    }

    fn time(&self, field: &'static str) -> Result<(), Invalid> {
        let value = self.required(field)?;
        let number = value.as_number().ok_or_else(|| wrong(field, value, "a number of milliseconds"))?;
        if let Some(ms) = number.as_u64() {
            return Millis::new(field, ms).map(|_| ());
        }
        let negative = number.as_f64().is_some_and(|number| number < 0.0);
        let fault = if negative { "is negative" } else { "is not a plain whole number" };
        Err(Invalid::new(field, format!("{number} {fault}; epoch milliseconds of 13 digits are expected")))
    }

    fn optional_time(&self, field: &'static str) -> Result<(), Invalid> {
        if self.get(field).is_some() { self.time(field) } else { Ok(()) }
    }

    fn criteria(&self, field: &'static str) -> Result<(), Invalid> {
        check_criteria(field, self.required(field)?)
    }

    fn failure(&self) -> Result<(), Invalid> {
        self.text("eventData.error")?;
        self.optional_text("eventData.errorCode")
    }

    fn wait(&self) -> Result<(), Invalid> {
        const FORMS: [&str; 4] =
            ["eventData.resumeAt", "eventData.eventName", "eventData.task", "eventData.job"];
        let mut given = FORMS.into_iter().filter(|field| self.get(field).is_some());
        let Some(form) = given.next() else {
            let reason = "has none of resumeAt, eventName, task and job: what is waited for?";
            return Err(Invalid::new("eventData", reason));
        };
        if let Some(second) = given.next() {
            let reason = format!("is there beside {}; a wait is for one thing", key(form));
            return Err(Invalid::new(second, reason));
        }
        let (sleep, event) = (form == FORMS[0], form == FORMS[1]);
        for (field, belongs) in
            [("eventData.timeoutAt", !sleep), ("eventData.matchCriteria", event), ("eventData.since", event)]
        {
            if !belongs && self.get(field).is_some() {
                return Err(Invalid::new(field, format!("does not go with {}", key(form))));
            }
        }
        if sleep {
            return self.time(form);
        }
        self.name(form)?;
        self.optional_time("eventData.timeoutAt")?;
        if event {
            self.criteria("eventData.matchCriteria")?;
            self.optional_time("eventData.since")?;
        }
        Ok(())
    }

    fn outcome(&self) -> Result<(), Invalid> {
        const FIELD: &str = "eventData.outcome";
        if self.get(FIELD).is_none() {
            return Ok(());
        }
        let text = self.text(FIELD)?;
        let Some(outcome) = WaitOutcome::parse(text) else {
            let known: Vec<_> = WaitOutcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
            return Err(Invalid::new(FIELD, format!("is none of {}", known.join(", "))));
        };
        match outcome {
            WaitOutcome::Elapsed | WaitOutcome::Timeout | WaitOutcome::Abandoned => Ok(()),
            WaitOutcome::Event => {
                self.name("eventData.eventId")?;
                self.name("eventData.eventName")?;
                self.any("eventData.data")?;
                self.criteria("eventData.matchCriteria")
            }
            WaitOutcome::Ended => {
                const STATE: &str = "eventData.state";
                if !matches!(self.text(STATE)?, "completed" | "failed") {
                    return Err(Invalid::new(STATE, "is neither completed nor failed"));
                }
                self.optional_text("eventData.error")?;
                self.optional_text("eventData.errorCategory")
            }
        }
    }
}

/// The key in `eventData` of the field `eventData.<key>`.
fn key(field: &'static str) -> &'static str {
    field.strip_prefix("eventData.").unwrap_or(field)
}

fn wrong(field: &'static str, found: &Value, expected: &str) -> Invalid {
    Invalid::new(field, format!("is {}; {expected} is expected", kind_of(found)))
}

/// A number itself; of other values their kind.
fn brief(value: &Value) -> String {
    value.as_number().map_or_else(|| kind_of(value).to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use ulid::Ulid;

    use super::*;

    const AT: u64 = 1_767_453_739_640;

    fn id(event_type: RunEventType) -> String {
        event_type.entity().id_kind().id(Ulid::from_parts(AT, 7)).to_string()
    }

    fn read(event_type: RunEventType, data: Value) -> Result<LogDraft, Invalid> {
        let Value::Object(data) = data else { panic!("an object") };
        read_draft(event_type, Some(&id(event_type)), data)
    }

    fn examples() -> Vec<(RunEventType, Value)> {
        use RunEventType as T;
        vec![
            (T::RunCreated, json!({"workflowName": "order", "input": null, "executionContext": {"a": 1}})),
            (T::RunStarted, json!({"workflowVersion": "v1"})),
            (T::RunStarted, json!({})),
            (T::RunCompleted, json!({"output": [1]})),
            (T::RunFailed, json!({"error": "no such workflow", "errorCode": "unknown"})),
            (T::RunCancelled, json!({"reason": null})),
            (T::StepCreated, json!({"stepName": "step//charge#1", "input": {"a": 1}})),
            (T::StepStarted, json!({"attempt": 1})),
            (T::StepCompleted, json!({"result": null})),
            (T::StepFailed, json!({"error": ""})),
            (T::StepRetrying, json!({"error": "busy", "retryAfter": AT})),
            (T::HookCreated, json!({"token": "approve-17", "metadata": {"who": "me"}})),
            (T::HookConflict, json!({"token": "approve-17"})),
            (T::HookReceived, json!({"payload": {"ok": true}})),
            (T::HookDisposed, json!({})),
            (T::WaitCreated, json!({"resumeAt": AT, "label": "mine"})),
            (T::WaitCreated, json!({"eventName": "paid", "matchCriteria": {}, "timeoutAt": AT, "since": AT})),
            (T::WaitCreated, json!({"task": "req-1", "timeoutAt": null})),
            (T::WaitCreated, json!({"job": "job-1", "timeoutAt": AT})),
            (T::WaitCompleted, json!({})),
            (T::WaitCompleted, json!({"outcome": "timeout"})),
            (T::WaitCompleted, json!({"outcome": "ended", "state": "completed", "output": 1})),
            (
                T::WaitCompleted,
                json!({"outcome": "event", "eventId": "e", "eventName": "paid", "data": 1, "matchCriteria": {}}),
            ),
        ]
    }

    #[test]
    fn a_good_event_is_kept_as_it_is() {
        for (event_type, data) in examples() {
            let draft = read(event_type, data.clone()).unwrap();
            assert_eq!(draft.correlation_id.as_str(), id(event_type));
            assert_eq!(Value::Object(draft.event_data), data, "{event_type}");
        }
        assert!(RunEventType::ALL.iter().all(|kind| examples().iter().any(|(own, _)| own == kind)));
    }

    #[test]
    fn every_refusal_names_its_field() {
        use RunEventType as T;
        let many = Value::Object((0..65).map(|n| (n.to_string(), json!(n))).collect());
        for (event_type, data, expected) in [
            (T::RunCreated, json!({"input": 1}), "eventData.workflowName: is missing"),
            (T::RunCreated, json!({"workflowName": "a#b"}), "eventData.workflowName: `a#b` contains '#'"),
            (T::RunCreated, json!({"workflowName": "a"}), "eventData.input: is missing; it may be null"),
            (T::RunStarted, json!({"workflowVersion": 1}), "eventData.workflowVersion: is a number; a text"),
            (T::RunCompleted, json!({}), "eventData.output: is missing; it may be null"),
            (T::RunFailed, json!({"error": {}}), "eventData.error: is an object; a text is expected"),
            (T::RunFailed, json!({"error": "a", "errorCode": 5}), "eventData.errorCode: is a number"),
            (T::StepCreated, json!({"name": "a"}), "eventData.stepName: is missing"),
            (T::StepCreated, json!({"stepName": ""}), "eventData.stepName: is empty"),
            (T::StepCreated, json!({"stepName": "x".repeat(513)}), "eventData.stepName: has 513 bytes"),
            (T::StepStarted, json!({}), "eventData.attempt: is missing"),
            (T::StepStarted, json!({"attempt": 0}), "eventData.attempt: is 0; 1 or more is expected"),
            (T::StepStarted, json!({"attempt": "1"}), "eventData.attempt: is a text; 1 or more"),
            (T::StepCompleted, json!({"output": 1}), "eventData.result: is missing"),
            (T::StepRetrying, json!({"retryAfter": AT}), "eventData.error: is missing"),
            (
                T::StepRetrying,
                json!({"error": "a", "retryAfter": 5_000}),
                "eventData.retryAfter: 5000 has 4 digits",
            ),
            (T::HookCreated, json!({"token": null}), "eventData.token: is missing"),
            (T::HookCreated, json!({"token": ""}), "eventData.token: is empty"),
            (T::HookReceived, json!({}), "eventData.payload: is missing; it may be null"),
            (T::WaitCreated, json!({}), "eventData: has none of resumeAt, eventName, task and job"),
            (T::WaitCreated, json!({"resumeAt": -5}), "eventData.resumeAt: -5 is negative; epoch"),
            (T::WaitCreated, json!({"resumeAt": -0.5}), "eventData.resumeAt: -0.5 is negative; epoch"),
            (T::WaitCreated, json!({"resumeAt": 1.5}), "eventData.resumeAt: 1.5 is not a plain whole number"),
            (
                T::WaitCreated,
                json!({"resumeAt": AT / 1000}),
                "eventData.resumeAt: 1767453739 has 10 digits; epoch milliseconds of 13 digits are expected (that \
                 looks like seconds)",
            ),
            (T::WaitCreated, json!({"resumeAt": "2026-01-03T15:22:19Z"}), "eventData.resumeAt: is a text; a"),
            (
                T::WaitCreated,
                json!({"resumeAt": AT, "timeoutAt": AT}),
                "eventData.timeoutAt: does not go with",
            ),
            (T::WaitCreated, json!({"resumeAt": AT, "job": "j"}), "eventData.job: is there beside resumeAt"),
            (
                T::WaitCreated,
                json!({"task": "t", "matchCriteria": {}}),
                "eventData.matchCriteria: does not go",
            ),
            (T::WaitCreated, json!({"eventName": "a"}), "eventData.matchCriteria: is missing"),
            (
                T::WaitCreated,
                json!({"eventName": "a", "matchCriteria": [1]}),
                "eventData.matchCriteria: is an array; an object is expected",
            ),
            (
                T::WaitCreated,
                json!({"eventName": "a", "matchCriteria": many}),
                "eventData.matchCriteria: has 65 leaves; at most 64",
            ),
            (
                T::WaitCreated,
                json!({"eventName": "a", "matchCriteria": {}, "timeoutAt": -1}),
                "eventData.timeoutAt: -1 is negative",
            ),
            (T::WaitCompleted, json!({"outcome": "done"}), "eventData.outcome: is none of elapsed, event,"),
            (T::WaitCompleted, json!({"outcome": "event"}), "eventData.eventId: is missing"),
            (T::WaitCompleted, json!({"outcome": "ended"}), "eventData.state: is missing"),
            (T::WaitCompleted, json!({"outcome": "ended", "state": "x"}), "eventData.state: is neither"),
        ] {
            let error = read(event_type, data.clone()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{event_type} {data}: {error}");
        }
    }

    #[test]
    fn an_id_is_of_the_kind_that_the_event_is_about() {
        let read = |event_type, id: Option<&str>| {
            let data = json!({"stepName": "a", "workflowName": "a", "input": null});
            let Value::Object(data) = data else { panic!("an object") };
            read_draft(event_type, id, data).map_err(|error| error.to_string())
        };
        let step = id(RunEventType::StepCreated);
        assert!(read(RunEventType::StepCreated, Some(&step)).is_ok());
        assert!(read(RunEventType::RunCreated, Some("order-17")).is_ok(), "the id of a run may be any name");
        for (event_type, id, expected) in [
            (
                RunEventType::StepCreated,
                None,
                "correlationId: is missing; step_created needs the id of its step",
            ),
            (
                RunEventType::HookDisposed,
                Some(step.as_str()),
                "is not `hook_` and a ULID, as hook_disposed needs",
            ),
            (RunEventType::StepCreated, Some("step_1"), "correlationId: `step_1` is not `step_` and a ULID"),
            (RunEventType::StepCreated, Some(&step.to_lowercase()), "is not `step_` and a ULID"),
            (RunEventType::RunStarted, Some("a#b"), "correlationId: `a#b` contains '#'"),
            (RunEventType::WaitCreated, Some(""), "correlationId: is empty"),
            (RunEventType::WaitCreated, Some(&"x".repeat(999)), "correlationId: has 999 bytes"),
        ] {
            let error = read(event_type, id).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
