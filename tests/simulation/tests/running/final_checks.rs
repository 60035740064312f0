//! What must hold when everything has come to rest.

use std::collections::BTreeMap;

use ledgerline_event::{Event, HookState, RunState, WaitFor, WaitOutcome, containment::contains};
use ledgerline_runs::{RunMessage, SentEventView};
use ledgerline_simulation::Store;
use ledgerline_stage::Stage;
use ledgerline_test_support::{name, rows_of};
use ledgerline_workflow::{Runner, Visited};
use serde_json::{Value, json};

use super::{
    TENANT,
    derived_rows::DerivedRows,
    observed_runs::{ObservedRun, ObservedRuns},
    scenario::{OLD, Scenario},
    workflow_script::{ASKED, Book, EVENTS},
};

/// What was acknowledged to those who sent it.
#[derive(Default)]
pub(super) struct Acknowledged {
    /// Events by their ids: the steps in which their senders began, and were told that they are accepted.
    pub(super) sent: BTreeMap<String, (u64, u64)>,
    /// Payloads by their numbers, and what their senders were told.
    pub(super) payloads: BTreeMap<u64, PostedPayload>,
}

/// A payload that one sender posts, or two with one key.
#[derive(Default)]
pub(super) struct PostedPayload {
    pub(super) senders: u32,
    /// How many of them were told that its run has the payload.
    pub(super) received: u32,
    /// How many were told that the hook is gone: a later hook may have the token, and then takes the payload of the other.
    pub(super) gone: u32,
}

pub(super) struct FinalChecks<'a> {
    pub(super) store: &'a Store,
    pub(super) stage: &'a Stage,
    pub(super) runner: &'a Runner,
    pub(super) scenario: &'a Scenario,
    pub(super) acknowledged: &'a Acknowledged,
    pub(super) book: &'a Book,
}

impl FinalChecks<'_> {
    pub(super) async fn check(&self, observed: &mut ObservedRuns<'_>) {
        let rows = DerivedRows::read(self.store).await;
        rows.check(&observed.runs);
        for (pk, sk, row) in rows.iter() {
            assert!(!ledgerline_store::keys::is_dirty_partition(pk), "a mark is left: {sk}");
            if pk.starts_with("CLAIM#") {
                assert_eq!(row["state"], "done", "{pk} {sk}");
                assert!(row["dueAt"].is_null(), "{pk} {sk} is due");
            }
        }
        let mut sent = Vec::new();
        for event in EVENTS {
            sent.extend(self.stage.runs.sent_events(&name(TENANT), event, 100, None).await.unwrap().items);
        }
        self.check_sent(&observed.runs, &sent).await;
        let mut payloads: BTreeMap<u64, u64> = BTreeMap::new();
        for known in observed.runs.values() {
            self.check_run(known).await;
            self.check_waits(known, &sent);
            self.check_hooks(known);
            for payload in known.payloads() {
                *payloads.entry(payload).or_default() += 1;
            }
        }
        for (payload, PostedPayload { senders, received, gone }) in &self.acknowledged.payloads {
            let times = payloads.get(payload).copied().unwrap_or_default();
            // What a sender was not told may be either.
            if *received > 0 || gone == senders {
                assert_eq!(times, u64::from(*received > 0), "payload {payload}");
            }
        }
        assert!(payloads.values().all(|times| *times == 1), "a payload twice: {payloads:?}");
        self.check_ledger(&observed.runs, &sent).await;
        self.check_lists(&observed.runs).await;
        self.check_visits_change_nothing(observed).await;
    }

    async fn check_run(&self, known: &ObservedRun) {
        let (run_id, record, history) = (&known.run_id, &known.record, &known.history);
        let entries = self.stage.runs.logs.log_entries(TENANT, run_id, 0).await.unwrap();
        let events = |entries: &[ledgerline_runs::LogEntry]| -> Vec<_> {
            entries.iter().flat_map(|entry| entry.events.clone()).collect()
        };
        assert_eq!(events(&entries), events(&known.entries), "the log of {run_id} was changed");
        assert_eq!(record["emitted"], json!(entries.len()), "{run_id} is not told to its end");
        for field in ["leaseOwner", "leaseUntil", "dueAt", "dueShard", "lastError"] {
            // What a runner left on an external run does no harm.
            let is_left = known.is_external() && !field.starts_with("due");
            assert!(record[field].is_null() || is_left, "{field} of {run_id} is {}", record[field]);
        }
        let run = history.run().unwrap();
        assert_eq!(record["startedAt"], json!(run.started_at), "{run_id}");
        assert_eq!(record["endedAt"], json!(run.ended_at), "{run_id}");
        assert_eq!(record["workflowVersion"], json!(run.workflow_version), "{run_id}");
        assert_ne!(run.error_code.as_deref(), Some("nondeterminism"), "{run_id}: {:?}", run.error);
        if !known.has_ended() {
            assert_eq!(run.state, RunState::Running, "{run_id} is not begun");
            return;
        }
        let (steps, hooks, waits) = (history.steps(), history.hooks(), history.waits());
        assert!(steps.iter().all(|step| step.state.is_terminal()), "{run_id} has ended with open steps");
        assert!(hooks.iter().all(|hook| hook.state.is_terminal()), "{run_id} has ended with open hooks");
        assert!(waits.iter().all(|wait| wait.state.is_terminal()), "{run_id} has ended with open waits");
        if let Some(output) = &run.output {
            let result = |name: &str| steps.iter().find(|step| step.name == name).unwrap().result.clone();
            each_object(output, &mut |object| {
                if let Some(step) = object["step"].as_str() {
                    assert_eq!(Some(object.clone()), result(step), "what {run_id} knows of {step}");
                }
            });
        }
    }

    /// Each wait has what it waited for, and none waits for what was sent.
    fn check_waits(&self, known: &ObservedRun, sent: &[SentEventView]) {
        let run_id = &known.run_id;
        let had: Vec<&str> =
            known.history.waits().iter().filter_map(|wait| wait.event_id.as_deref()).collect();
        for wait in known.history.waits() {
            let WaitFor::Event { event_name, match_criteria, since, .. } = &wait.target else { continue };
            let matches = |sent: &SentEventView| {
                sent.event.event_name == *event_name && contains(&sent.event.sent_match, match_criteria)
            };
            // Its place may lie after `since` though its time does not; that of an answer does.
            let is_answer = match_criteria.get(ASKED).is_some();
            let fits = |sent: &SentEventView| {
                matches(sent) && (is_answer || since.is_none_or(|since| since <= sent.event.timestamp))
            };
            if let Some(event_id) = &wait.event_id {
                let event = sent.iter().find(|sent| sent.event.event_id == *event_id);
                let Some(event) = event else { panic!("{run_id} has had {event_id}, which was not sent") };
                assert!(matches(event), "{event_id} is not what {run_id} waits for: {:?}", wait.target);
                let told = known.completion(&wait.wait_id).unwrap();
                assert_eq!(told["data"], event.event.data, "{event_id} in {run_id}");
                if wait.handed_over_from.is_none() {
                    self.check_order(known, &wait.wait_id, event_id, sent.iter().filter(|sent| fits(sent)));
                }
                continue;
            }
            let unseen: Vec<&SentEventView> = sent
                .iter()
                .filter(|sent| fits(sent) && !had.contains(&sent.event.event_id.as_str()))
                .collect();
            if wait.outcome.is_none() && !known.has_ended() && !known.is_external() {
                let unread = sent.iter().map(|sent| (sent, json!(sent.event.event_id)));
                let unread = unread.filter(|(_, event_id)| !self.book.has_read(run_id, event_id));
                for (unread, event_id) in unread.filter(|(sent, _)| fits(sent)) {
                    let had = had.contains(&unread.event.event_id.as_str());
                    assert!(
                        !had,
                        "{run_id} waits for {event_name} {match_criteria}, and has {event_id} unread"
                    );
                }
            }
            match wait.outcome {
                None => assert!(
                    unseen.is_empty() || known.has_ended(),
                    "{run_id} waits for {event_name} {match_criteria}, and {} was sent",
                    unseen[0].event.event_id
                ),
                // What was acknowledged before is not too late.
                Some(WaitOutcome::Timeout) if !known.is_external() => {
                    let over = known.over_at(&wait.wait_id).unwrap();
                    for unseen in unseen {
                        let sent_at = self.acknowledged.sent.get(unseen.event.event_id.as_str());
                        let sent_at = sent_at.map(|(_, accepted)| *accepted);
                        assert!(
                            sent_at.is_none_or(|sent_at| sent_at >= over),
                            "a wait of {run_id} for {event_name} {match_criteria} timed out at {over}, and {} was sent at {sent_at:?}",
                            unseen.event.event_id
                        );
                    }
                }
                Some(_) => {}
            }
        }
    }

    /// A hook has what an earlier one of the same token has left unread.
    fn check_hooks(&self, known: &ObservedRun) {
        let run_id = &known.run_id;
        let events = || known.entries.iter().flat_map(|entry| &entry.events);
        let received = |event: &&ledgerline_event::LogEvent| event.event_data.contains_key("payload");
        for hook in known.history.active_hooks().filter(|_| !known.is_external()) {
            let before = known.history.hooks().iter().take_while(|before| before.hook_id != hook.hook_id);
            let before =
                before.filter(|before| before.token == hook.token && before.state == HookState::Disposed);
            for before in before {
                let left = events().filter(received).filter(|event| event.correlation_id == before.hook_id);
                for left in left {
                    let payload = &left.event_data["payload"];
                    let handed_over = events().filter(received).any(|event| {
                        event.event_data["payload"] == *payload
                            && event.event_data.get("handedOverFrom").and_then(Value::as_str)
                                == Some(before.hook_id.as_str())
                    });
                    assert!(
                        handed_over || self.book.has_read(run_id, payload),
                        "payload {payload} of {run_id} is left with a hook that is no more"
                    );
                }
            }
        }
    }

    /// An event that was accepted before the sender of another began comes first, if both fit.
    fn check_order<'e>(
        &self,
        known: &ObservedRun,
        wait_id: &str,
        event_id: &str,
        fitting: impl Iterator<Item = &'e SentEventView>,
    ) {
        // Senders of versions before 0.1.0 keep no order.
        let Some((began, _)) = self.acknowledged.sent.get(event_id).filter(|_| !event_id.starts_with(OLD))
        else {
            return;
        };
        let over = known.place_of_end(wait_id);
        for other in fitting.map(|sent| sent.event.event_id.as_str()) {
            let accepted = self.acknowledged.sent.get(other).filter(|_| !other.starts_with(OLD));
            if other == event_id || accepted.is_none_or(|(_, accepted)| accepted >= began) {
                continue;
            }
            let had = known.history.waits().iter().filter(|wait| wait.event_id.as_deref() == Some(other));
            let had_before = had.map(|wait| known.place_of_end(&wait.wait_id)).any(|place| place < over);
            assert!(
                had_before,
                "{} got {event_id} before {other}, which was accepted before the other was sent",
                known.run_id
            );
        }
    }

    async fn check_sent(&self, runs: &BTreeMap<String, ObservedRun>, sent: &[SentEventView]) {
        for event_id in self.acknowledged.sent.keys() {
            assert!(
                sent.iter().any(|sent| sent.event.event_id.as_str() == event_id),
                "{event_id} is not there"
            );
        }
        let mut numbers: Vec<u64> =
            sent.iter().filter_map(|sent| sent.event.data["number"].as_u64()).collect();
        numbers.sort_unstable();
        assert!(numbers.is_sorted_by(|a, b| a < b), "sent twice under one key: {numbers:?}");
        let mut tags: BTreeMap<(String, String), u64> = BTreeMap::new();
        for sent in sent {
            let consumed = runs.values().flat_map(|known| known.history.waits());
            let consumed = consumed
                .filter(|wait| wait.event_id.as_ref() == Some(&sent.event.event_id))
                .filter(|wait| wait.handed_over_from.is_none())
                .count();
            assert_eq!(sent.consumed_count, consumed as u64, "{}", sent.event.event_id);
            if let (Some(run_id), Some(tag)) =
                (&sent.event.source_instance_id, sent.event.data["tag"].as_str())
            {
                *tags.entry((run_id.to_string(), tag.to_owned())).or_default() += 1;
            }
        }
        assert!(tags.values().all(|times| *times == 1), "sent twice: {tags:?}");
        // What subscriptions started: each order one run, each scan one event.
        let runs = runs.keys().filter(|run_id| run_id.starts_with("wrun_")).count();
        let scans = sent.iter().filter(|sent| !sent.event.data["n"].is_null()).count();
        assert_eq!((runs, scans), self.scenario.ordered(), "started by subscriptions, and subscribed to");
    }

    /// The ledger has each event of each log once, and of runs nothing else; and what was sent, once.
    async fn check_ledger(&self, runs: &BTreeMap<String, ObservedRun>, sent: &[SentEventView]) {
        let mut expected: BTreeMap<String, Value> = BTreeMap::new();
        for (run_id, known) in runs {
            for event in known.entries.iter().flat_map(|entry| &entry.events) {
                let mut properties = event.event_data.clone();
                properties.insert("correlationId".into(), json!(event.correlation_id));
                let entity_type = event.event_type.entity().entity_type();
                let told = json!([
                    event.event_type.as_str(),
                    entity_type,
                    event.correlation_id,
                    run_id,
                    event.timestamp,
                    properties
                ]);
                assert!(expected.insert(event.event_id.to_string(), told).is_none(), "{}", event.event_id);
            }
        }
        let mut told: BTreeMap<String, Value> = BTreeMap::new();
        let mut events = Vec::new();
        for row in rows_of(&self.store.clients, &self.store.names.events_table, TENANT).await {
            let event: Event = serde_dynamo::aws_sdk_dynamodb_1::from_item(row).unwrap();
            match event.entity_type.as_str() {
                "RUN" | "STEP" | "HOOK" | "WAIT" => {
                    let row = json!([
                        event.event_type,
                        event.entity_type,
                        event.entity_id,
                        event.workflow_run_id,
                        event.timestamp,
                        event.properties
                    ]);
                    assert!(
                        told.insert(event.event_id.to_string(), row).is_none(),
                        "twice: {}",
                        event.event_id
                    );
                }
                "EVENT" => events.push(event.event_id.to_string()),
                // A start that a service did not take is tried again; none is given up.
                _ => assert_ne!(&*event.event_type, "workflow.dispatch_parked", "{:?}", event.properties),
            }
        }
        for (event_id, event) in &expected {
            let told = told.get(event_id).unwrap_or_else(|| panic!("the ledger does not have {event}"));
            // A table does not tell 1.0 from 1.
            assert!(
                contains(told, event) && contains(event, told),
                "in the log {event}, in the ledger {told}"
            );
        }
        assert_eq!(told.len(), expected.len(), "the ledger tells more of runs than their logs");
        let mut sent: Vec<String> = sent.iter().map(|sent| sent.event.event_id.to_string()).collect();
        sent.retain(|event_id| !event_id.starts_with(OLD));
        sent.sort();
        events.sort();
        assert_eq!(events, sent, "sent by the ledger, and by the table");
    }

    async fn check_lists(&self, runs: &BTreeMap<String, ObservedRun>) {
        for state in RunState::ALL {
            let listed = self.stage.runs.runs(&name(TENANT), Some(*state), 100, None).await.unwrap();
            let mut listed: Vec<String> = listed.items.iter().map(|run| run.run_id.to_string()).collect();
            listed.sort();
            let known = runs.iter().filter(|(_, known)| known.history.state() == Some(*state));
            assert_eq!(listed, known.map(|(run_id, _)| run_id.clone()).collect::<Vec<_>>(), "{state}");
        }
    }

    /// A visit to a run now finds nothing to do.
    async fn check_visits_change_nothing(&self, observed: &mut ObservedRuns<'_>) {
        for known in observed.runs.values().filter(|known| !known.has_ended()) {
            let run_id = &known.run_id;
            let waits = known.history.open_waits().count() + known.history.active_hooks().count();
            assert!(waits > 0, "{run_id} waits for nothing and does not go on");
            if known.is_external() {
                continue;
            }
            assert_eq!(known.history.open_timers().next(), None, "{run_id}: it is high time");
            assert_eq!(known.history.open_steps().count(), 0, "{run_id} has a step that no runner executes");
            let message = RunMessage { tenant_id: name(TENANT), run_id: run_id.clone() };
            let visited = self.runner.visit(&message, None).await.unwrap();
            assert_eq!(visited, Visited::Suspended, "{run_id}");
            let entries = self.stage.runs.logs.log_entries(TENANT, run_id, 0).await.unwrap();
            assert_eq!(entries.len(), known.entries.len(), "{run_id} could go on, and no runner visited it");
        }
    }
}

impl ObservedRun {
    fn payloads(&self) -> impl Iterator<Item = u64> {
        let events = self.entries.iter().flat_map(|entry| &entry.events);
        let received = events.filter(|event| !event.event_data.contains_key("handedOverFrom"));
        received.filter_map(|event| event.event_data.get("payload")?.as_u64())
    }

    fn completion(&self, wait_id: &str) -> Option<&serde_json::Map<String, Value>> {
        let events = self.entries.iter().flat_map(|entry| &entry.events);
        let is_it = |event: &&ledgerline_event::LogEvent| {
            event.event_type == ledgerline_event::RunEventType::WaitCompleted
                && *event.correlation_id == *wait_id
        };
        events.filter(is_it).map(|event| &event.event_data).next()
    }

    /// Which event of the log ended a wait.
    fn place_of_end(&self, wait_id: &str) -> usize {
        let is_it = |event: &ledgerline_event::LogEvent| {
            event.event_type == ledgerline_event::RunEventType::WaitCompleted
                && *event.correlation_id == *wait_id
        };
        self.entries.iter().flat_map(|entry| &entry.events).position(is_it).unwrap_or(usize::MAX)
    }

    /// When in the history a wait was over.
    fn over_at(&self, wait_id: &str) -> Option<u64> {
        let is_it = |event: &ledgerline_event::LogEvent| {
            event.event_type == ledgerline_event::RunEventType::WaitCompleted
                && *event.correlation_id == *wait_id
        };
        let entry = self.entries.iter().position(|entry| entry.events.iter().any(is_it))?;
        Some(self.came_at[entry])
    }
}

fn each_object(value: &Value, look: &mut impl FnMut(&Value)) {
    match value {
        Value::Object(fields) => {
            look(value);
            fields.values().for_each(|value| each_object(value, look));
        }
        Value::Array(items) => items.iter().for_each(|value| each_object(value, look)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
