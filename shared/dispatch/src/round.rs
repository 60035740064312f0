//! A drainer's round: it visits every tenant once, over as many sweeps as that takes.
//!
//! The record says when the round began, behind which tenant it began, how far it is, and which tenants are not finished.
//! A sweep takes the round by name and writes on condition of that name, so that a sweep that was overtaken moves nothing.
//! A sweep that dies is followed by the next one from the place that it wrote last. The round counts as done at its end.

use std::collections::BTreeSet;

use ledgerline_event::{Millis, Name};
use ledgerline_ledger::{Fault, StoreError, control::keys};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::{
    Dispatch, Drainer,
    conditional::text,
    course::{Course, around},
    marks::Visit,
};

/// How long a sweep that writes nothing keeps the round.
const HELD_MS: u64 = 60_000;
/// Unfinished tenants that a record holds. The marks of the others wait for the next round.
const MOST_LEFT: usize = 500;

/// A round as it is stored. The version before has `visitedAt` alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Record {
    /// When the last round began that is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    visited_at: Option<Millis>,
    /// When the round under way began.
    #[serde(skip_serializing_if = "Option::is_none")]
    began_at: Option<Millis>,
    /// Behind whom it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    began_after: Option<Name>,
    /// The last tenant up to whom everyone is visited.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<Name>,
    /// Tenants that it has passed and not finished.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    left: BTreeSet<Name>,
    /// The last sweep that took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_until: Option<Millis>,
}

/// What a sweep does about a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    Begin,
    GoOn,
}

impl Record {
    fn next(&self, now: Millis, period_ms: u64) -> Next {
        let is_held = self.held_until.is_some_and(|until| until > now);
        match (self.began_at, self.visited_at) {
            _ if is_held => Next::Nothing,
            (Some(_), _) => Next::GoOn,
            (None, Some(at)) if at.plus(period_ms) > now => Next::Nothing,
            (None, _) => Next::Begin,
        }
    }

    /// Whom the round has not passed yet, in its order.
    fn rest(&self, tenants: Vec<Name>) -> Vec<Name> {
        let mut order = around(tenants, self.began_after.as_deref(), |tenant| tenant);
        let passed = self.after.as_ref().and_then(|after| order.iter().position(|tenant| tenant == after));
        order.split_off(passed.map_or(0, |last| last + 1))
    }

    /// Whether the next round is due while this one waits for nothing but tenants that cannot be finished: the next one
    /// visits them too, and no other tenant waits for them.
    fn is_overdue(&self, tenants: &[Name], now: Millis, period_ms: u64) -> bool {
        self.began_at.is_some_and(|began| began.plus(period_ms) <= now)
            && self.rest(tenants.to_vec()).is_empty()
    }

    /// The record when the sweep has come to `after`, and everyone is passed or not.
    fn moved(mut self, after: Option<Name>, all_passed: bool, now: Millis, period_ms: u64) -> Self {
        self.after = after.or(self.after);
        while self.left.len() > MOST_LEFT {
            self.left.pop_last();
        }
        let is_late = self.began_at.is_some_and(|began| began.plus(period_ms) <= now);
        // A tenant that cannot be finished does not put off the next round, which visits it too.
        if all_passed && (self.left.is_empty() || is_late) {
            self = Self { visited_at: self.began_at, holder: self.holder, ..Self::default() };
        }
        self
    }
}

/// A round that this sweep has taken.
pub(crate) struct Round {
    pub(crate) drainer: Drainer,
    record: Record,
    /// Whether only those are visited that are not finished.
    again: bool,
    lost: bool,
}

impl Round {
    /// A visit has ended: whether its tenant is finished as far as the round is concerned.
    pub(crate) fn note(&mut self, tenant: &Name, finished: bool) {
        match finished {
            true => drop(self.record.left.remove(tenant)),
            false => drop(self.record.left.insert(tenant.clone())),
        }
    }

    fn period_ms(&self) -> u64 {
        u64::try_from(self.drainer.round().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Dispatch {
    /// Takes the drainer's round if one is due or under way: the round, and whom it visits.
    pub(crate) async fn take_round(
        &self,
        drainer: &Drainer,
        tenants: &OnceCell<Vec<Name>>,
    ) -> Result<Option<(Round, Course<Visit>)>, StoreError> {
        let key = keys::schedule(&drainer.id);
        let stored: Record = self.control.get(&key).await?.unwrap_or_default();
        let (before, now) = (stored.holder.clone(), self.now());
        let mut round = Round { drainer: drainer.clone(), record: stored, again: false, lost: false };
        let next = round.record.next(now, round.period_ms());
        if next == Next::Nothing {
            return Ok(None);
        }
        let tenants = tenants.get_or_try_init(|| self.tenants()).await?;
        let next = match next {
            Next::GoOn if round.record.is_overdue(tenants, now, round.period_ms()) => {
                round.record = Record { visited_at: round.record.began_at, ..Record::default() };
                Next::Begin
            }
            next => next,
        };
        match next {
            Next::Begin => {
                round.record.began_at = Some(now);
                round.record.began_after =
                    (!tenants.is_empty()).then(|| tenants[fastrand::usize(..tenants.len())].clone());
            }
            Next::GoOn | Next::Nothing => {}
        }
        round.record.holder = Some(self.new_event_id());
        round.record.held_until = Some(now.plus(HELD_MS));
        if !self.write_round(&round, before.as_ref()).await? {
            return Ok(None);
        }
        let mut steps = round.record.rest(tenants.clone());
        if steps.is_empty() {
            round.again = true;
            steps = round.record.left.iter().cloned().collect();
        }
        let steps = steps.into_iter().map(|tenant| (tenant, drainer.id.clone())).collect();
        Ok(Some((round, Course::new(steps))))
    }

    /// When the last round of a drainer began that is done.
    pub(crate) async fn last_round(&self, drainer: &Drainer) -> Result<Option<Millis>, StoreError> {
        let record: Option<Record> = self.control.get(&keys::schedule(&drainer.id)).await?;
        Ok(record.and_then(|record| record.visited_at))
    }

    /// Writes how far the round is; at the `end` of the sweep also that the next one may take it.
    pub(crate) async fn note_round(
        &self,
        round: &mut Round,
        course: &Course<Visit>,
        end: bool,
    ) -> Result<(), StoreError> {
        if round.lost {
            return Ok(());
        }
        let now = self.now();
        let after = course.place().filter(|_| !round.again).map(|(tenant, _)| tenant.clone());
        let all_passed = end && course.is_over();
        round.record = round.record.clone().moved(after, all_passed, now, round.period_ms());
        round.record.held_until = (!end).then(|| now.plus(HELD_MS));
        round.lost = !self.write_round(round, round.record.holder.as_ref()).await?;
        Ok(())
    }

    /// Writes the record if `holder` has it; `false` if another sweep has taken it.
    async fn write_round(&self, round: &Round, holder: Option<&Name>) -> Result<bool, StoreError> {
        let put = self.control.put(&keys::schedule(&round.drainer.id), &round.record)?;
        let put = match holder {
            Some(holder) => put
                .condition_expression("holder = :holder")
                .expression_attribute_values(":holder", text(holder)),
            None => put.condition_expression("attribute_not_exists(holder)"),
        };
        match put.send().await.map_err(|error| StoreError::new("PutItem", error)) {
            Ok(_) => Ok(true),
            Err(error) if error.fault == Fault::Refused => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    fn at(minutes: u64) -> Millis {
        Millis::try_from(1_767_453_600_000 + minutes * 60_000).unwrap()
    }

    fn names(all: &[&str]) -> Vec<Name> {
        all.iter().map(|name| Name::new("tenantId", *name).unwrap()).collect()
    }

    fn under_way(after: Option<&str>, left: &[&str]) -> Record {
        Record {
            began_at: Some(at(0)),
            began_after: Some(names(&["b"])[0].clone()),
            after: after.map(|after| names(&[after])[0].clone()),
            left: names(left).into_iter().collect(),
            ..Record::default()
        }
    }

    #[test]
    fn a_round_is_due_after_its_period_and_goes_on_until_it_is_done() {
        assert_eq!(Record::default().next(at(0), HOUR), Next::Begin);
        let done = Record { visited_at: Some(at(0)), ..Record::default() };
        assert_eq!((done.next(at(59), HOUR), done.next(at(60), HOUR)), (Next::Nothing, Next::Begin));
        let mut begun = Record { visited_at: Some(at(0)), ..under_way(None, &[]) };
        assert_eq!(begun.next(at(2), HOUR), Next::GoOn);
        begun.held_until = Some(at(3));
        assert_eq!((begun.next(at(2), HOUR), begun.next(at(3), HOUR)), (Next::Nothing, Next::GoOn));
    }

    #[test]
    fn the_next_sweep_visits_those_that_the_last_one_did_not_come_to() {
        let tenants = || names(&["a", "b", "c", "d"]);
        assert_eq!(under_way(None, &[]).rest(tenants()), names(&["c", "d", "a", "b"]));
        assert_eq!(under_way(Some("d"), &[]).rest(tenants()), names(&["a", "b"]));
        assert_eq!(under_way(Some("b"), &[]).rest(tenants()), names(&[]));
    }

    #[test]
    fn tenants_that_cannot_be_finished_do_not_put_off_the_next_round() {
        let tenants = names(&["a", "b", "c"]);
        let waits = under_way(Some("b"), &["c"]);
        assert!(!waits.is_overdue(&tenants, at(59), HOUR));
        assert!(waits.is_overdue(&tenants, at(60), HOUR));
        assert!(
            !under_way(Some("c"), &["c"]).is_overdue(&tenants, at(60), HOUR),
            "it has not passed everyone"
        );
    }

    #[test]
    fn a_round_is_done_when_everyone_is_visited_and_finished_or_the_next_one_is_due() {
        let after = || Some(names(&["b"])[0].clone());
        let unfinished = under_way(None, &["d"]).moved(after(), true, at(5), HOUR);
        assert_eq!((unfinished.began_at, unfinished.after.clone()), (Some(at(0)), after()));
        assert_eq!(unfinished.moved(None, true, at(60), HOUR).visited_at, Some(at(0)));
        let done = under_way(None, &[]).moved(after(), true, at(5), HOUR);
        assert_eq!(done, Record { visited_at: Some(at(0)), ..Record::default() });
        let stopped = under_way(None, &[]).moved(after(), false, at(90), HOUR);
        assert_eq!(stopped.visited_at, None);
    }
}
