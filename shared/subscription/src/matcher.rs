//! The subscriptions of one drainer and tenant, compiled, and what they say to an event.

use std::cell::OnceCell;

use ledgerline_event::Event;
use serde_json::{Map, Value};

use crate::{
    explain::{Explanation, explain},
    filter::{Judged, Scope},
    glob_set::GlobSet,
    row::{Row, Source},
    subscription::{Compiled, Subscription},
};

/// How many subscriptions one event may start; the rest are parked.
pub const FAN_OUT: usize = 8;
/// How many subscriptions may have led to an event before what it starts is taken for a loop.
pub const MAX_VIA: usize = 8;

/// A compiled set of subscriptions.
pub struct Matcher {
    /// By id, which is by creation.
    subscriptions: Vec<Subscription>,
    /// In the same order; what does not compile keeps its reason.
    compiled: Vec<Result<Compiled, String>>,
    /// The enabled ones, by their place in `subscriptions`.
    enabled: Vec<usize>,
    /// The globs of the enabled ones.
    globs: GlobSet,
}

/// What one subscription says to an event.
#[derive(Debug, PartialEq)]
pub struct Decision<'a> {
    /// Which subscription.
    pub subscription: &'a Subscription,
    /// What is to be done.
    pub verdict: Verdict,
}

/// What is to be done about an event for one subscription.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Start the workflow type.
    Start {
        /// What it is started with.
        input: Map<String, Value>,
    },
    /// Nothing: the filter says no.
    Filtered,
    /// Nothing: the filter needs a field that the event lacks.
    Lacking {
        /// Which field.
        field: String,
    },
    /// Nothing: the subscription itself led to this event.
    InVia,
    /// Park: too many subscriptions led here.
    Loop {
        /// What it would be started with.
        input: Map<String, Value>,
    },
    /// Park: too many others start already.
    Capped {
        /// What it would be started with.
        input: Map<String, Value>,
    },
    /// It cannot be decided, or there is no input.
    Failed {
        /// Why.
        reason: String,
    },
}

impl Matcher {
    /// Compiles `subscriptions`. One that does not compile fails each event that it would match.
    pub fn new(mut subscriptions: Vec<Subscription>) -> Self {
        subscriptions.sort_by(|a, b| a.subscription_id.cmp(&b.subscription_id));
        let compile = |one: &Subscription| Compiled::new(one).map_err(|invalid| invalid.to_string());
        let compiled = subscriptions.iter().map(compile).collect();
        let enabled: Vec<usize> = (0..subscriptions.len()).filter(|n| subscriptions[*n].enabled).collect();
        let globs = GlobSet::new(enabled.iter().map(|n| subscriptions[*n].event_type_glob.as_str()));
        Self { subscriptions, compiled, enabled, globs }
    }

    /// All of them, in order of creation.
    pub fn subscriptions(&self) -> &[Subscription] {
        &self.subscriptions
    }

    /// The one with this id.
    pub fn get(&self, id: &str) -> Option<&Subscription> {
        self.position(id).map(|n| &self.subscriptions[n])
    }

    fn position(&self, id: &str) -> Option<usize> {
        self.subscriptions.binary_search_by(|one| one.subscription_id.as_str().cmp(id)).ok()
    }

    /// Whether any enabled subscription's glob matches: if not, there is nothing to decide.
    pub fn touches(&self, event_type: &str) -> bool {
        !self.globs.matching(event_type).is_empty()
    }

    /// What each enabled subscription whose glob matches says, in order.
    pub fn decide<'a>(&'a self, event: &Event) -> Vec<Decision<'a>> {
        let row = Row::new(event);
        let subject = Subject::new(&row);
        let mut starting = 0;
        let matching = self.globs.matching(&event.event_type);
        let decide = |n: &usize| {
            let n = self.enabled[*n];
            let subscription = &self.subscriptions[n];
            let in_via = event.context.via.iter().any(|id| *id == *subscription.subscription_id);
            let verdict = if in_via { Verdict::InVia } else { self.verdict(n, &subject) };
            Decision { subscription, verdict: limited(verdict, event.context.via.len(), &mut starting) }
        };
        matching.iter().map(decide).collect()
    }

    /// What the subscription `id` makes of `event` when it is retried by hand: filter and mapper
    /// only, whatever else starts and whatever led here.
    pub fn decide_one(&self, id: &str, event: &Event) -> Option<Verdict> {
        let row = Row::new(event);
        Some(self.verdict(self.position(id)?, &Subject::new(&row)))
    }

    /// What every subscription says to `event`, in words.
    pub fn explain(&self, event: &Event) -> Vec<Explanation> {
        let mut decided = self.decide(event).into_iter().peekable();
        let each = |subscription: &Subscription| {
            let ours = decided.next_if(|decision| std::ptr::eq(decision.subscription, subscription));
            explain(subscription, event, ours.map(|decision| decision.verdict))
        };
        self.subscriptions.iter().map(each).collect()
    }

    /// `Start`, `Filtered`, `Lacking` or `Failed`.
    fn verdict(&self, n: usize, subject: &Subject<'_>) -> Verdict {
        let compiled = match &self.compiled[n] {
            Ok(compiled) => compiled,
            Err(reason) => return Verdict::Failed { reason: reason.clone() },
        };
        match subject.judge(compiled) {
            Ok(Judged::Passes) => {}
            Ok(Judged::Fails) => return Verdict::Filtered,
            Ok(Judged::Lacks(field)) => return Verdict::Lacking { field },
            Err(reason) => return Verdict::Failed { reason: format!("filterExpr: {reason}") },
        }
        match subject.input(compiled) {
            Ok(input) => Verdict::Start { input },
            Err(reason) => Verdict::Failed { reason: format!("inputMapper: {reason}") },
        }
    }
}

/// Holds a start back if it looks like a loop or a storm. `starting` counts those before it.
fn limited(verdict: Verdict, via: usize, starting: &mut usize) -> Verdict {
    match verdict {
        Verdict::Start { input } if via >= MAX_VIA => Verdict::Loop { input },
        Verdict::Start { input } if *starting >= FAN_OUT => Verdict::Capped { input },
        // What failed will be retried and may start then.
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

/// An event under decision; what filters need of it is made once, by the first that needs it.
struct Subject<'r> {
    row: &'r Row<'r>,
    scope: OnceCell<Result<Scope<'r>, String>>,
}

impl<'r> Subject<'r> {
    fn new(row: &'r Row<'r>) -> Self {
        Self { row, scope: OnceCell::new() }
    }

    fn judge(&self, compiled: &Compiled) -> Result<Judged, String> {
        let Some(filter) = &compiled.filter else { return Ok(Judged::Passes) };
        let scope = self.scope.get_or_init(|| self.row.whole().map(Scope::new));
        filter.judge(scope.as_ref().map_err(String::clone)?)
    }

    fn input(&self, compiled: &Compiled) -> Result<Map<String, Value>, String> {
        match &compiled.mapper {
            Some(mapper) => mapper.map(self.row),
            None => Ok(self.row.event().properties.clone()),
        }
    }
}

#[cfg(test)]
mod tests;
