//! Deciding about one event: globs, filter and mappers, with more and more subscriptions of
//! which always the same three are for the event. Beside it one regex after another, and the
//! same filter and mappers for those that match.
//!
//! Events of some fifty types, as in practice, and events whose type never was before, for which
//! nothing can be remembered.

use std::{hint::black_box, time::Duration, time::Instant};

use anyhow::ensure;
use ledgerline_event::{Event, Name};
use ledgerline_ledger::system_clock;
use ledgerline_subscription::{Matcher, Subscription, Verdict};
use serde_json::{Value, json};

use crate::{
    backlog,
    cpu::measured,
    one_by_one::OneByOne,
    report::{Goal, Report},
    spread::Spread,
    subscribers::{SIZES, bystander, event_type, new_event_type},
};

const ROUNDS: usize = if cfg!(debug_assertions) { 3 } else { 40 };
const EVENTS: usize = if cfg!(debug_assertions) { 100 } else { 1_000 };

/// All sizes in turn, both ways, with both kinds of event types.
pub(crate) fn run() -> anyhow::Result<Report> {
    let sets: Vec<Set> = SIZES.into_iter().map(Set::new).collect::<anyhow::Result<_>>()?;
    let mut report = Report::of_figures();
    measure("fifty types", event_type, &sets, &mut report)?;
    measure("new types", new_event_type, &sets, &mut report)?;
    for set in &sets {
        let size = set.matcher.subscriptions().len();
        let compiling = set.compiling.as_secs_f64() * 1e3;
        report.figure(&format!("compiling {size} subscriptions"), compiling, "ms", Goal::None);
    }
    Ok(report)
}

/// Rounds of all sizes with events of the types that `name` makes.
fn measure(kind: &str, name: fn(usize) -> String, sets: &[Set], report: &mut Report) -> anyhow::Result<()> {
    let mut costs: Vec<[Vec<f64>; 2]> = sets.iter().map(|_| Default::default()).collect();
    for round in 0..ROUNDS {
        let events = (round * EVENTS..(round + 1) * EVENTS).map(|n| event(name(n), n));
        let events: Vec<Event> = events.collect::<anyhow::Result<_>>()?;
        for (set, [deciding, one_by_one]) in sets.iter().zip(&mut costs) {
            set.check(&events[0])?;
            deciding.push(micros(&events[1..], |event| {
                black_box(set.matcher.decide(event));
            }));
            one_by_one.push(micros(&events[1..], |event| {
                black_box(set.one_by_one(event));
            }));
        }
    }
    let medians: Vec<[f64; 2]> = costs
        .into_iter()
        .map(|both| both.map(|costs| costs.into_iter().collect::<Spread>().median()))
        .collect();
    for (set, [deciding, one_by_one]) in sets.iter().zip(&medians) {
        let size = set.matcher.subscriptions().len();
        report.figure(&format!("{kind}, {size} subscriptions: CPU per event"), *deciding, "µs", Goal::None);
        report.figure(&format!("{kind}, {size}, one regex after another"), *one_by_one, "µs", Goal::None);
    }
    if let [[fewest, _], .., [most, _]] = medians[..] {
        report.figure(&format!("{kind}, 1000 over 10"), most / fewest, "times", Goal::AtMost(2.0));
    }
    Ok(())
}

fn event(event_type: String, number: usize) -> anyhow::Result<Event> {
    let event = backlog::event(&Name::new("tenantId", "bench")?, number, system_clock()())?;
    Ok(Event { event_type: Name::new("eventType", event_type)?, ..event })
}

/// CPU time per event.
fn micros(events: &[Event], work: impl Fn(&Event)) -> f64 {
    let ((), cost) = measured(|| events.iter().for_each(|event| work(black_box(event))));
    cost.cpu.as_secs_f64() * 1e6 / events.len() as f64
}

/// Subscriptions, compiled both ways.
struct Set {
    matcher: Matcher,
    regexes: OneByOne,
    compiling: Duration,
}

impl Set {
    fn new(size: usize) -> anyhow::Result<Self> {
        let mapper = json!({ "item": "$.entity_id", "price": "$.payload.new", "mode": "literal:full" });
        let mut all = vec![
            subscription(0, "*", json!({}))?,
            subscription(1, "shop.*", json!({ "inputMapper": mapper }))?,
            subscription(
                2,
                "shop.*.*",
                json!({ "inputMapper": mapper, "filterExpr": "event.properties.new > 1.0" }),
            )?,
        ];
        for number in all.len()..size {
            all.push(subscription(number, &bystander(number), json!({}))?);
        }
        let regexes = OneByOne::new(all.iter().map(|one| one.event_type_glob.as_str()))?;
        let began = Instant::now();
        let matcher = Matcher::new(all);
        Ok(Self { matcher, regexes, compiling: began.elapsed() })
    }

    fn one_by_one(&self, event: &Event) -> Vec<Verdict> {
        let subscriptions = self.matcher.subscriptions();
        let decide = |number: usize| self.matcher.decide_one(&subscriptions[number].subscription_id, event);
        self.regexes.matching(&event.event_type).filter_map(decide).collect()
    }

    fn check(&self, event: &Event) -> anyhow::Result<()> {
        let decided: Vec<Verdict> =
            self.matcher.decide(event).into_iter().map(|decision| decision.verdict).collect();
        let starts = decided.iter().all(|verdict| matches!(verdict, Verdict::Start { .. }));
        ensure!(decided.len() == 3 && starts, "three start, not {decided:?}");
        ensure!(decided == self.one_by_one(event), "both ways must say the same");
        Ok(())
    }
}

fn subscription(number: usize, glob: &str, more: Value) -> anyhow::Result<Subscription> {
    let mut record = json!({
        "subscriptionId": format!("sub_{number:04}"),
        "tenantId": "bench",
        "drainerId": "workflow_runner",
        "eventTypeGlob": glob,
        "workflowType": "review",
        "createdAt": system_clock()(),
    });
    if let (Value::Object(record), Value::Object(more)) = (&mut record, more) {
        record.extend(more);
    }
    Ok(serde_json::from_value(record)?)
}
