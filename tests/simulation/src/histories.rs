//! Many histories, each from a seed of its own, on every core.

use std::sync::Mutex;

use ledgerline_test_support::seeds;
use tokio::runtime::Builder;

use super::Store;

/// Frames of a debug build are large: with less, a history that fails may end in a stack overflow instead of its message.
const STACK_BYTES: usize = 16 << 20;

/// How many histories are wanted: `LEDGERLINE_HISTORIES`, or `default`.
pub fn wanted(default: u64) -> u64 {
    std::env::var("LEDGERLINE_HISTORIES").ok().and_then(|count| count.parse().ok()).unwrap_or(default)
}

/// Runs `history` for `count` seeds, or for `LEDGERLINE_SEED` alone. Each thread has a store of its own.
/// The first history that fails names its seed and is the last to begin.
pub fn histories(count: u64, history: impl AsyncFn(&Store, u64) + Sync) {
    let seeds = seeds(count);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(seeds.len());
    let waiting = Mutex::new(seeds);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let run = || {
                let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
                runtime.block_on(async {
                    let store = Store::start().await;
                    while let Some(seed) = next(&waiting) {
                        let _print_seed = PrintSeed { seed, waiting: &waiting };
                        history(&store, seed).await;
                    }
                });
            };
            thread.spawn_scoped(scope, run).unwrap();
        }
    });
}

fn next(waiting: &Mutex<Vec<u64>>) -> Option<u64> {
    waiting.lock().unwrap().pop()
}

struct PrintSeed<'a> {
    seed: u64,
    waiting: &'a Mutex<Vec<u64>>,
}

impl Drop for PrintSeed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("LEDGERLINE_SEED={} LEDGERLINE_TRACE=1 shows what went wrong", self.seed);
            self.waiting.lock().unwrap().clear();
        }
    }
}
