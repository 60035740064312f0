//! A task in Rust: the input comes on standard input, the output goes into a file.

use std::{
    env,
    error::Error,
    fs::{self, OpenOptions},
    io::{self, Write},
    process::ExitCode,
};

use serde_json::{Value, json};

/// Why it failed, and whether another attempt may succeed: `timeout`, `network`, `rate-limit` and `server-error` are
/// tried again; `auth`, `validation` and `programming` are not.
struct Failure {
    error: String,
    category: &'static str,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let input: Value = serde_json::from_reader(io::stdin())?;
    activity("step_running", "merge")?;
    match compile(&input) {
        Ok(output) => {
            fs::write(env::var("LEDGERLINE_OUTPUT")?, output.to_string())?;
            Ok(ExitCode::SUCCESS)
        }
        Err(Failure { error, category }) => {
            let report = json!({ "error": error, "category": category });
            fs::write(env::var("LEDGERLINE_ERROR")?, report.to_string())?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Merges the outputs of the parent tasks.
fn compile(input: &Value) -> Result<Value, Failure> {
    let Some(outputs) = input["dependencyOutputs"].as_object().filter(|outputs| !outputs.is_empty()) else {
        return Err(Failure { error: "there is nothing to compile".into(), category: "validation" });
    };
    let parts: Vec<Value> = outputs.values().cloned().collect();
    Ok(json!({ "parts": parts, "from": outputs.keys().collect::<Vec<_>>() }))
}

/// Heartbeats tell what the task was last doing.
fn activity(kind: &str, step: &str) -> Result<(), Box<dyn Error>> {
    let mut file = OpenOptions::new().create(true).append(true).open(env::var("LEDGERLINE_ACTIVITY")?)?;
    writeln!(file, "{}", json!({ "type": kind, "stepName": step }))?;
    Ok(())
}
