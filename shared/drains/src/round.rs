//! A drainer's round: it visits every tenant once, over as many sweeps as that takes.
//!
//! The record says when the round began, after which tenant it began, how far it has come, and which tenants are unfinished.
//! A sweep writes its id into the record as the holder, and each later write is on condition of that id: so a sweep that was
//! overtaken changes nothing. If a sweep dies, the next one resumes the round from the position that was stored last.

use ledgerline_event::{Millis, Name};
use ledgerline_store::{RoundRecord, RoundWrite, StoreError};
use tokio::sync::OnceCell;

use crate::{Drainer, Sweep, dirty_marks::Visit, visits::SweepStage};
use ledgerline_outbox::{SweepProgress, rotate_after};

/// A sweep that has stored nothing for this long loses the round to the next sweep.
const HELD_MS: u64 = 60_000;
/// A record holds at most so many unfinished tenants. The marks of the others wait for the next round.
const MAX_LEFT: usize = 500;

/// What a sweep does about a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    Begin,
    Resume,
}

fn next(round: &RoundRecord, now: Millis, period_ms: u64) -> Next {
    let is_held = round.held_until.is_some_and(|until| until > now);
    match (round.began_at, round.visited_at) {
        _ if is_held => Next::Nothing,
        (Some(_), _) => Next::Resume,
        (None, Some(at)) if at.plus(period_ms) > now => Next::Nothing,
        (None, _) => Next::Begin,
    }
}

/// The tenants that the round has not passed yet, in its order.
fn rest(round: &RoundRecord, tenants: Vec<Name>) -> Vec<Name> {
    let mut order = rotate_after(tenants, round.began_after.as_deref(), |tenant| tenant);
    let passed = round.after.as_ref().and_then(|after| order.iter().position(|tenant| tenant == after));
    order.split_off(passed.map_or(0, |last| last + 1))
}

/// Whether the next round is due while this one waits for nothing but tenants that cannot be finished: the next one
/// visits them too, and no other tenant waits for them.
fn is_overdue(round: &RoundRecord, tenants: &[Name], now: Millis, period_ms: u64) -> bool {
    round.began_at.is_some_and(|began| began.plus(period_ms) <= now)
        && rest(round, tenants.to_vec()).is_empty()
}

/// The record after the sweep has passed `after`; `all_passed`: after it has passed every tenant.
fn advanced(
    mut round: RoundRecord,
    after: Option<Name>,
    all_passed: bool,
    now: Millis,
    period_ms: u64,
) -> RoundRecord {
    round.after = after.or(round.after);
    while round.left.len() > MAX_LEFT {
        round.left.pop_last();
    }
    let is_late = round.began_at.is_some_and(|began| began.plus(period_ms) <= now);
    // A tenant that cannot be finished does not put off the next round, which visits it too.
    if all_passed && (round.left.is_empty() || is_late) {
        round = RoundRecord { visited_at: round.began_at, holder: round.holder, ..RoundRecord::default() };
    }
    round
}

/// A round that this sweep holds.
pub(crate) struct Round {
    pub(crate) drainer: Drainer,
    record: RoundRecord,
    /// Whether the round has passed every tenant, so that the sweep visits only the unfinished ones.
    only_unfinished: bool,
    /// Whether another sweep has taken the round since.
    lost: bool,
}

impl Round {
    /// The round has nothing left to do for a tenant.
    pub(crate) fn set_finished(&mut self, tenant: &Name) {
        self.record.left.remove(tenant);
    }

    /// The round has to visit a tenant again.
    pub(crate) fn set_unfinished(&mut self, tenant: &Name) {
        self.record.left.insert(tenant.clone());
    }

    fn period_ms(&self) -> u64 {
        u64::try_from(self.drainer.round().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Sweep {
    /// Takes the drainer's round if one is due or under way. Returns the round and its visits.
    pub(crate) async fn take_round(
        &self,
        drainer: &Drainer,
        tenants: &OnceCell<Vec<Name>>,
    ) -> Result<Option<(Round, SweepProgress<Visit>)>, StoreError> {
        let stored = self.rounds.get(&drainer.id).await?.unwrap_or_default();
        let (before, now) = (stored.holder.clone(), self.emitter.now());
        let mut round =
            Round { drainer: drainer.clone(), record: stored, only_unfinished: false, lost: false };
        let next = next(&round.record, now, round.period_ms());
        if next == Next::Nothing {
            return Ok(None);
        }
        let tenants = tenants.get_or_try_init(|| self.tenants()).await?;
        let next = match next {
            Next::Resume if is_overdue(&round.record, tenants, now, round.period_ms()) => {
                round.record = RoundRecord { visited_at: round.record.began_at, ..RoundRecord::default() };
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
            Next::Resume | Next::Nothing => {}
        }
        round.record.holder = Some(self.emitter.new_event_id());
        round.record.held_until = Some(now.plus(HELD_MS));
        match self.rounds.put(&drainer.id, &round.record, before.as_ref()).await? {
            RoundWrite::Done => {}
            RoundWrite::Taken => return Ok(None),
        }
        let mut steps = rest(&round.record, tenants.clone());
        if steps.is_empty() {
            round.only_unfinished = true;
            steps = round.record.left.iter().cloned().collect();
        }
        let steps = steps.into_iter().map(|tenant| (tenant, drainer.id.clone())).collect();
        Ok(Some((round, SweepProgress::new(steps))))
    }

    /// When the last completed round of a drainer began.
    pub async fn last_round(&self, drainer: &Drainer) -> Result<Option<Millis>, StoreError> {
        let record = self.rounds.get(&drainer.id).await?;
        Ok(record.and_then(|record| record.visited_at))
    }

    /// Stores how far the round has come. When the sweep has ended, this also releases the round for the next sweep.
    pub(crate) async fn store_round(
        &self,
        round: &mut Round,
        progress: &SweepProgress<Visit>,
        stage: SweepStage,
    ) -> Result<(), StoreError> {
        if round.lost {
            return Ok(());
        }
        let now = self.emitter.now();
        let has_ended = stage == SweepStage::Ended;
        let after =
            progress.resume_after().filter(|_| !round.only_unfinished).map(|(tenant, _)| tenant.clone());
        let all_passed = has_ended && progress.is_complete();
        round.record = advanced(round.record.clone(), after, all_passed, now, round.period_ms());
        round.record.held_until = (!has_ended).then(|| now.plus(HELD_MS));
        let holder = round.record.holder.as_ref();
        round.lost = self.rounds.put(&round.drainer.id, &round.record, holder).await? == RoundWrite::Taken;
        Ok(())
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

    fn under_way(after: Option<&str>, left: &[&str]) -> RoundRecord {
        RoundRecord {
            began_at: Some(at(0)),
            began_after: Some(names(&["b"])[0].clone()),
            after: after.map(|after| names(&[after])[0].clone()),
            left: names(left).into_iter().collect(),
            ..RoundRecord::default()
        }
    }

    #[test]
    fn a_round_is_due_after_its_period_and_goes_on_until_it_is_done() {
        assert_eq!(next(&RoundRecord::default(), at(0), HOUR), Next::Begin);
        let done = RoundRecord { visited_at: Some(at(0)), ..RoundRecord::default() };
        assert_eq!((next(&done, at(59), HOUR), next(&done, at(60), HOUR)), (Next::Nothing, Next::Begin));
        let mut begun = RoundRecord { visited_at: Some(at(0)), ..under_way(None, &[]) };
        assert_eq!(next(&begun, at(2), HOUR), Next::Resume);
        begun.held_until = Some(at(3));
        assert_eq!((next(&begun, at(2), HOUR), next(&begun, at(3), HOUR)), (Next::Nothing, Next::Resume));
    }

    #[test]
    fn the_next_sweep_visits_those_that_the_last_one_did_not_come_to() {
        let tenants = || names(&["a", "b", "c", "d"]);
        assert_eq!(rest(&under_way(None, &[]), tenants()), names(&["c", "d", "a", "b"]));
        assert_eq!(rest(&under_way(Some("d"), &[]), tenants()), names(&["a", "b"]));
        assert_eq!(rest(&under_way(Some("b"), &[]), tenants()), names(&[]));
    }

    #[test]
    fn tenants_that_cannot_be_finished_do_not_put_off_the_next_round() {
        let tenants = names(&["a", "b", "c"]);
        let waits = under_way(Some("b"), &["c"]);
        assert!(!is_overdue(&waits, &tenants, at(59), HOUR));
        assert!(is_overdue(&waits, &tenants, at(60), HOUR));
        assert!(
            !is_overdue(&under_way(Some("c"), &["c"]), &tenants, at(60), HOUR),
            "it has not passed every tenant"
        );
    }

    #[test]
    fn a_round_is_done_when_every_tenant_is_visited_and_finished_or_the_next_one_is_due() {
        let after = || Some(names(&["b"])[0].clone());
        let unfinished = advanced(under_way(None, &["d"]), after(), true, at(5), HOUR);
        assert_eq!((unfinished.began_at, unfinished.after.clone()), (Some(at(0)), after()));
        assert_eq!(advanced(unfinished, None, true, at(60), HOUR).visited_at, Some(at(0)));
        let done = advanced(under_way(None, &[]), after(), true, at(5), HOUR);
        assert_eq!(done, RoundRecord { visited_at: Some(at(0)), ..RoundRecord::default() });
        let stopped = advanced(under_way(None, &[]), after(), false, at(90), HOUR);
        assert_eq!(stopped.visited_at, None);
    }
}
