//! Runs of workflows in local mode, for `bench/rivals/run --ledgerline`: see [`ledgerline_bench::runs`].

/// As in the program itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    ledgerline_bench::runs()
}
