//! Reads pairs of JSON values, `[container, contained]`, one on each line, and prints for each whether the first
//! contains the second. `tests/postgres/containment` compares the answers with PostgreSQL's.

use std::io::{self, BufRead, Write};

use ledgerline_event::containment::contains;
use serde_json::Value;

fn main() -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let (container, contained): (Value, Value) = serde_json::from_str(&line?)?;
        writeln!(out, "{}", contains(&container, &contained))?;
    }
    out.flush()
}
