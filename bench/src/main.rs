//! Measured figures: see [`ledgerline_bench`].

fn main() -> anyhow::Result<()> {
    ledgerline_bench::measure()
}
