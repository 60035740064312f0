//! What a function tells its operators: JSON lines for the log, and counts in CloudWatch's
//! embedded metric format, which the log turns into metrics without a request.

use std::io::Write;

use ledgerline_event::Millis;
use serde_json::{Map, Value, json};
use tracing_subscriber::EnvFilter;

/// The namespace of all metrics.
pub const NAMESPACE: &str = "Ledgerline";

/// JSON logs to standard output; `RUST_LOG` says how much. A program that has set up a log of its own keeps it.
pub fn init_logs() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_target(false)
        .with_ansi(false)
        .with_env_filter(filter)
        .try_init();
}

/// Where counts go.
#[derive(Clone, Debug)]
pub struct Metrics {
    stage: String,
    function: &'static str,
    enabled: bool,
}

impl Metrics {
    /// Counts of one function, for CloudWatch.
    pub fn new(stage: &str, function: &'static str) -> Self {
        Self { stage: stage.to_owned(), function, enabled: true }
    }

    /// For processes whose output CloudWatch does not read: local mode, and programs outside of Lambda.
    pub fn silent() -> Self {
        Self { stage: String::new(), function: "", enabled: false }
    }

    /// Writes one line with every count that is not zero; nothing if all are.
    pub fn count(&self, now: Millis, counts: &[(&'static str, usize)]) {
        if !self.enabled {
            return;
        }
        if let Some(line) = self.line(now, counts) {
            // A log that cannot be written to is no reason to fail the work it tells of.
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
    }

    /// Writes one line with how long something takes or is behind; zero counts too.
    pub fn gauge(&self, now: Millis, name: &'static str, ms: u64) {
        if self.enabled {
            let value = usize::try_from(ms).unwrap_or(usize::MAX);
            let line = self.metric_line(now, &[(name, value)], "Milliseconds");
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
    }

    fn line(&self, now: Millis, counts: &[(&'static str, usize)]) -> Option<Value> {
        let counted: Vec<_> = counts.iter().filter(|(_, count)| *count > 0).copied().collect();
        (!counted.is_empty()).then(|| self.metric_line(now, &counted, "Count"))
    }

    fn metric_line(&self, now: Millis, values: &[(&'static str, usize)], unit: &str) -> Value {
        let metrics: Vec<Value> =
            values.iter().map(|(name, _)| json!({"Name": name, "Unit": unit})).collect();
        let mut line = Map::new();
        line.insert(
            "_aws".into(),
            json!({
                "Timestamp": now,
                "CloudWatchMetrics": [{
                    "Namespace": NAMESPACE,
                    "Dimensions": [["Stage", "Function"]],
                    "Metrics": metrics,
                }],
            }),
        );
        line.insert("Stage".into(), json!(self.stage));
        line.insert("Function".into(), json!(self.function));
        line.extend(values.iter().map(|(name, value)| ((*name).to_owned(), json!(value))));
        Value::Object(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_embedded_metric_format_and_leaves_zeros_out() {
        let metrics = Metrics::new("dev", "save-event-to-dynamo");
        let line = metrics.line(Millis::MIN, &[("Saved", 3), ("Refused", 0)]).unwrap();
        assert_eq!(line["Saved"], 3);
        assert_eq!(line["_aws"]["Timestamp"], 1_000_000_000_000_u64);
        assert_eq!(
            line["_aws"]["CloudWatchMetrics"][0]["Metrics"],
            json!([{"Name": "Saved", "Unit": "Count"}])
        );
        assert!(line.get("Refused").is_none());
        assert!(metrics.line(Millis::MIN, &[("Saved", 0)]).is_none());
    }
}
