//! Ids and random numbers that are the same at every replay: hashes of the run's id and a counter.

use ledgerline_event::Millis;
use sha2::{Digest, Sha256};
use ulid::Ulid;

use crate::scope::Scope;

/// Makes the ids and random numbers of one run.
pub(crate) struct DeterministicIds {
    run: Sha256,
    time: Millis,
}

impl DeterministicIds {
    pub(crate) fn new(run_id: &str, time: Millis) -> Self {
        // No id contains the byte that ends it here, so no two runs share a beginning.
        Self { run: Sha256::new_with_prefix(run_id).chain_update([0]), time }
    }

    /// The ULID in the id of the command in `slot`.
    pub(crate) fn command(&self, slot: usize) -> Ulid {
        ulid(self.time, &self.hash(0, slot as u64, 0))
    }

    /// The random number that `scope` gets at its draw number `draw`.
    pub(crate) fn random_number(&self, scope: Scope, draw: u64) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.draw(scope, draw);
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// The ULID that `scope` gets at its draw number `draw`.
    pub(crate) fn id(&self, scope: Scope, draw: u64, time: Millis) -> Ulid {
        ulid(time, &self.draw(scope, draw))
    }

    fn draw(&self, scope: Scope, draw: u64) -> [u8; 32] {
        match scope {
            Scope::Workflow => self.hash(1, 0, draw),
            Scope::Step(slot) => self.hash(2, slot as u64, draw),
            Scope::Outside => self.hash(3, 0, draw),
        }
    }

    fn hash(&self, purpose: u8, slot: u64, draw: u64) -> [u8; 32] {
        let hash = self.run.clone().chain_update([purpose]);
        hash.chain_update(slot.to_be_bytes()).chain_update(draw.to_be_bytes()).finalize().into()
    }
}

fn ulid(time: Millis, random: &[u8; 32]) -> Ulid {
    let mut bytes = [0; 16];
    bytes[6..].copy_from_slice(&random[..10]);
    Ulid::from_parts(time.get(), u128::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_depends_on_run_scope_and_draw_only() {
        let ids = |run| DeterministicIds::new(run, Millis::MIN);
        let mut drawn = HashSet::new();
        for run in ["a", "b"] {
            for n in 0..50 {
                assert_eq!(ids(run).command(n), ids(run).command(n));
                assert!(drawn.insert(ids(run).command(n)), "{run} {n}");
                for scope in [Scope::Workflow, Scope::Step(0), Scope::Step(1), Scope::Outside] {
                    assert!(drawn.insert(ids(run).id(scope, n as u64, Millis::MIN)), "{run} {scope:?} {n}");
                }
            }
        }
    }

    #[test]
    fn ids_of_commands_never_change_from_one_release_to_the_next() {
        let time = Millis::try_from(1_767_453_739_640).unwrap();
        let ids = DeterministicIds::new("wrun_01KE2E5G2R0000000000000000", time);
        assert_eq!(ids.command(0).timestamp_ms(), time.get());
        assert_eq!(ids.command(0).to_string(), "01KE277JKR2YECBM1TSCDC1V61");
        assert_eq!(ids.random_number(Scope::Workflow, 1), 13_990_295_020_494_777_429);
        assert_eq!(ids.id(Scope::Step(3), 1, time).to_string(), "01KE277JKRTEXDAJVSBV4JZN8X");
    }

    proptest! {
        #[test]
        fn an_id_carries_its_time_and_no_two_runs_share_one(
            runs in proptest::array::uniform2("[a-z_0-9]{1,40}"), slot in 0_usize..10_000, time in Millis::MIN.get()..=Millis::MAX.get(),
        ) {
            prop_assume!(runs[0] != runs[1]);
            let time = Millis::try_from(time).unwrap();
            let [one, other] = runs.map(|run| DeterministicIds::new(&run, time).command(slot));
            prop_assert_eq!(one.timestamp_ms(), time.get());
            prop_assert_ne!(one, other);
        }
    }
}
