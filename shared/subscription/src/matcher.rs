//! The compiled subscriptions of one drainer and tenant, and their decisions about an event.

use std::cell::OnceCell;

use ledgerline_event::Event;
use serde_json::{Map, Value};

use crate::{
    explain::{Explanation, explain},
    filter::{Activation, FilterOutcome},
    glob_set::GlobSet,
    source::{EventSource, Source},
    subscription::{Compiled, Subscription},
};

/// How many starts one event may cause; the others are parked.
pub const FAN_OUT: usize = 8;
/// If this many subscriptions led to an event, its starts are parked as a loop.
pub const MAX_VIA: usize = 8;

/// A compiled set of subscriptions.
pub struct Matcher {
    /// In the order of their ids, which is the order of creation.
    subscriptions: Vec<Subscription>,
    /// In the same order; the reason of those that do not compile.
    compiled: Vec<Result<Compiled, String>>,
    /// The indexes of the enabled ones in `subscriptions`.
    enabled: Vec<usize>,
    /// The globs of the enabled ones.
    globs: GlobSet,
}

/// The decision of one subscription about an event.
#[derive(Debug, PartialEq)]
pub struct Decision<'a> {
    /// The subscription.
    pub subscription: &'a Subscription,
    /// The decision.
    pub verdict: Verdict,
}

/// What the drainer does about an event for one subscription.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Start the workflow type.
    Start {
        /// The input of the start.
        input: Map<String, Value>,
    },
    /// Nothing: the filter is false.
    Filtered,
    /// Nothing: the filter depends on a field that the event does not have.
    Lacking {
        /// The field.
        field: String,
    },
    /// Nothing: the subscription itself led to this event.
    InVia,
    /// Park: too many subscriptions led to the event.
    Loop {
        /// The input of the parked start.
        input: Map<String, Value>,
    },
    /// Park: too many other subscriptions start something.
    Capped {
        /// The input of the parked start.
        input: Map<String, Value>,
    },
    /// The filter or the mapper cannot be evaluated.
    Failed {
        /// The reason.
        reason: String,
    },
}

impl Matcher {
    /// Compiles `subscriptions`. One that does not compile fails each event that its glob matches.
    pub fn new(mut subscriptions: Vec<Subscription>) -> Self {
        subscriptions.sort_by(|a, b| a.subscription_id.cmp(&b.subscription_id));
        let compile = |one: &Subscription| Compiled::new(one).map_err(|invalid| invalid.to_string());
        let compiled = subscriptions.iter().map(compile).collect();
        let enabled: Vec<usize> = (0..subscriptions.len()).filter(|n| subscriptions[*n].enabled).collect();
        let globs = GlobSet::new(enabled.iter().map(|n| subscriptions[*n].event_type_glob.as_str()));
        Self { subscriptions, compiled, enabled, globs }
    }

    /// All subscriptions, in order of creation.
    pub fn subscriptions(&self) -> &[Subscription] {
        &self.subscriptions
    }

    /// The subscription with this id.
    pub fn get(&self, id: &str) -> Option<&Subscription> {
        self.position(id).map(|n| &self.subscriptions[n])
    }

    fn position(&self, id: &str) -> Option<usize> {
        self.subscriptions.binary_search_by(|one| one.subscription_id.as_str().cmp(id)).ok()
    }

    /// Whether the glob of an enabled subscription matches; if not, there is nothing to decide.
    pub fn touches(&self, event_type: &str) -> bool {
        !self.globs.matching(event_type).is_empty()
    }

    /// The decisions of the enabled subscriptions whose globs match, in order of creation.
    pub fn decide<'a>(&'a self, event: &Event) -> Vec<Decision<'a>> {
        let source = EventSource::new(event);
        let event_input = EventInput::new(&source);
        let mut starting = 0;
        let matching = self.globs.matching(&event.event_type);
        let decide = |n: &usize| {
            let n = self.enabled[*n];
            let subscription = &self.subscriptions[n];
            let in_via = event.context.via.iter().any(|id| *id == *subscription.subscription_id);
            let verdict = if in_via { Verdict::InVia } else { self.verdict(n, &event_input) };
            Decision { subscription, verdict: limited(verdict, event.context.via.len(), &mut starting) }
        };
        matching.iter().map(decide).collect()
    }

    /// The verdict of the subscription `id` when an operator retries the event: by filter and mapper only, without the limits
    /// for loops and fan-out.
    pub fn decide_one(&self, id: &str, event: &Event) -> Option<Verdict> {
        let source = EventSource::new(event);
        Some(self.verdict(self.position(id)?, &EventInput::new(&source)))
    }

    /// The decision of every subscription about `event`, in words.
    pub fn explain(&self, event: &Event) -> Vec<Explanation> {
        let mut decided = self.decide(event).into_iter().peekable();
        let each = |subscription: &Subscription| {
            let ours = decided.next_if(|decision| std::ptr::eq(decision.subscription, subscription));
            explain(subscription, event, ours.map(|decision| decision.verdict))
        };
        self.subscriptions.iter().map(each).collect()
    }

    /// `Start`, `Filtered`, `Lacking` or `Failed`.
    fn verdict(&self, n: usize, event: &EventInput<'_>) -> Verdict {
        let compiled = match &self.compiled[n] {
            Ok(compiled) => compiled,
            Err(reason) => return Verdict::Failed { reason: reason.clone() },
        };
        match event.filter(compiled) {
            Ok(FilterOutcome::Passes) => {}
            Ok(FilterOutcome::Fails) => return Verdict::Filtered,
            Ok(FilterOutcome::MissingField(field)) => return Verdict::Lacking { field },
            Err(reason) => return Verdict::Failed { reason: format!("filterExpr: {reason}") },
        }
        match event.map(compiled) {
            Ok(input) => Verdict::Start { input },
            Err(reason) => Verdict::Failed { reason: format!("inputMapper: {reason}") },
        }
    }
}

/// Parks a start that looks like a loop or a storm. `starting` counts the starts before it.
fn limited(verdict: Verdict, via: usize, starting: &mut usize) -> Verdict {
    match verdict {
        Verdict::Start { input } if via >= MAX_VIA => Verdict::Loop { input },
        Verdict::Start { input } if *starting >= FAN_OUT => Verdict::Capped { input },
        // A failed start counts: a retry may start it.
        Verdict::Start { .. } | Verdict::Failed { .. } => {
            *starting += 1;
            verdict
        }
        Verdict::Filtered
        | Verdict::Lacking { .. }
        | Verdict::InVia
        | Verdict::Loop { .. }
        | Verdict::Capped { .. } => verdict,
    }
}

/// An event as filters and mappers read it. The first filter that needs the activation makes it for all.
struct EventInput<'r> {
    source: &'r EventSource<'r>,
    activation: OnceCell<Result<Activation<'r>, String>>,
}

impl<'r> EventInput<'r> {
    fn new(source: &'r EventSource<'r>) -> Self {
        Self { source, activation: OnceCell::new() }
    }

    fn filter(&self, compiled: &Compiled) -> Result<FilterOutcome, String> {
        let Some(filter) = &compiled.filter else { return Ok(FilterOutcome::Passes) };
        let activation = self.activation.get_or_init(|| self.source.whole().map(Activation::new));
        filter.evaluate(activation.as_ref().map_err(String::clone)?)
    }

    /// The input of the start.
    fn map(&self, compiled: &Compiled) -> Result<Map<String, Value>, String> {
        match &compiled.mapper {
            Some(mapper) => mapper.map(self.source),
            None => Ok(self.source.event().properties.clone()),
        }
    }
}

#[cfg(test)]
mod tests;
