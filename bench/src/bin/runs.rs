//! Runs of workflows in local mode, for `bench/rivals/run --ledgerline`: see [`ledgerline_bench::runs`].

fn main() -> anyhow::Result<()> {
    ledgerline_bench::runs()
}
