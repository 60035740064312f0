//! Ids and random numbers that are the same at every replay: made of the run's id and a counter.

use ledgerline_event::Millis;
use sha2::{Digest, Sha256};
use ulid::Ulid;

/// Who draws: what one draws must not move what another will draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// The workflow's code.
    Code,
    /// A step, by its place among the commands. The same at each of its attempts.
    Step(usize),
    /// Code that runs beside the workflow, where nothing is replayed.
    Elsewhere,
}

/// What everything that looks random in a run comes from.
pub(crate) struct Seed {
    run: Sha256,
    time: Millis,
}

impl Seed {
    pub(crate) fn new(run_id: &str, time: Millis) -> Self {
        // No id contains the byte that ends it here, so no two runs share a beginning.
        Self { run: Sha256::new_with_prefix(run_id).chain_update([0]), time }
    }

    /// What the id of a command is made of.
    pub(crate) fn command(&self, place: usize) -> Ulid {
        ulid(self.time, &self.draw(0, place as u64, 0))
    }

    pub(crate) fn number(&self, stream: Stream, counter: u64) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.random(stream, counter);
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    pub(crate) fn id(&self, stream: Stream, counter: u64, time: Millis) -> Ulid {
        ulid(time, &self.random(stream, counter))
    }

    fn random(&self, stream: Stream, counter: u64) -> [u8; 32] {
        match stream {
            Stream::Code => self.draw(1, 0, counter),
            Stream::Step(place) => self.draw(2, place as u64, counter),
            Stream::Elsewhere => self.draw(3, 0, counter),
        }
    }

    fn draw(&self, purpose: u8, a: u64, b: u64) -> [u8; 32] {
        let hash = self.run.clone().chain_update([purpose]);
        hash.chain_update(a.to_be_bytes()).chain_update(b.to_be_bytes()).finalize().into()
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

    use super::*;

    #[test]
    fn what_is_drawn_depends_on_run_stream_and_counter_only() {
        let seed = |run| Seed::new(run, Millis::MIN);
        let mut drawn = HashSet::new();
        for run in ["a", "b"] {
            for n in 0..50 {
                assert_eq!(seed(run).command(n), seed(run).command(n));
                assert!(drawn.insert(seed(run).command(n)), "{run} {n}");
                for stream in [Stream::Code, Stream::Step(0), Stream::Step(1), Stream::Elsewhere] {
                    assert!(
                        drawn.insert(seed(run).id(stream, n as u64, Millis::MIN)),
                        "{run} {stream:?} {n}"
                    );
                }
            }
        }
    }

    #[test]
    fn ids_of_commands_never_change_from_one_release_to_the_next() {
        let time = Millis::try_from(1_767_453_739_640).unwrap();
        let seed = Seed::new("wrun_01KE2E5G2R0000000000000000", time);
        assert_eq!(seed.command(0).timestamp_ms(), time.get());
        assert_eq!(seed.command(0).to_string(), "01KE277JKR2YECBM1TSCDC1V61");
        assert_eq!(seed.number(Stream::Code, 1), 13_990_295_020_494_777_429);
        assert_eq!(seed.id(Stream::Step(3), 1, time).to_string(), "01KE277JKRTEXDAJVSBV4JZN8X");
    }
}
