//! The seeds of random tests.

/// The seeds of this run: from `LEDGERLINE_SEED` alone, or `count` of them.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("LEDGERLINE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => {
            let first = fastrand::u64(..u64::MAX / 2);
            println!("seeds {first} to {}; LEDGERLINE_SEED=<n> repeats one", first + count - 1);
            (first..first + count).collect()
        }
    }
}
