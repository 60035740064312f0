//! The function's release binary: finding or building it, starting it, and ending it.

use std::{
    env, fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use ledgerline_local::REGION;

use crate::services::Services;

const NAME: &str = "save-event-to-dynamo";

/// Names another binary of the function: the one that is deployed, say, which cargo-lambda builds smaller.
const OVERRIDE: &str = "LEDGERLINE_BENCH_FUNCTION";

/// The release binary beside this one; built now if it is not there.
pub(crate) fn binary() -> anyhow::Result<PathBuf> {
    if let Some(named) = env::var_os(OVERRIDE) {
        return Ok(named.into());
    }
    let own = env::current_exe()?;
    let target = own.ancestors().nth(2).context("this binary is in no target folder")?;
    let binary = target.join("release").join(NAME);
    if !binary.exists() {
        eprintln!("building {NAME} for release; this takes minutes …");
        let built = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--release", "--package", NAME, "--manifest-path"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
            .arg("--target-dir")
            .arg(target)
            .status()?;
        ensure!(built.success() && binary.exists(), "{NAME} could not be built");
    }
    Ok(binary)
}

/// The function's process; ended when dropped.
pub(crate) struct Process {
    child: Child,
}

/// What a process has used so far.
pub(crate) struct Used {
    /// The most memory it held at once, in kilobytes.
    pub(crate) peak_kb: f64,
    /// Its CPU time, all threads together.
    pub(crate) cpu: Duration,
}

impl Process {
    /// Starts the function in the environment that Lambda gives it, and no other.
    pub(crate) fn start(binary: &PathBuf, api: SocketAddr, services: &Services) -> anyhow::Result<Self> {
        let names = &services.names;
        let child = Command::new(binary)
            .env_clear()
            .env("AWS_LAMBDA_RUNTIME_API", api.to_string())
            .env("AWS_LAMBDA_FUNCTION_NAME", NAME)
            .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128")
            .env("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
            .env("AWS_LAMBDA_LOG_GROUP_NAME", format!("/aws/lambda/{NAME}"))
            .env("AWS_LAMBDA_LOG_STREAM_NAME", "bench")
            .env("AWS_REGION", REGION)
            .env("AWS_ACCESS_KEY_ID", "local")
            .env("AWS_SECRET_ACCESS_KEY", "local")
            .env("AWS_SESSION_TOKEN", "local")
            .env("AWS_ENDPOINT_URL", services.embedded.endpoint())
            .env("STAGE", &names.stage)
            .env("EVENTS_TABLE", &names.events_table)
            .env("CONTROL_TABLE", &names.control_table)
            .env("DEAD_LETTER_QUEUE_URL", &services.dead_letter_queue_url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", binary.display()))?;
        Ok(Self { child })
    }

    /// What it has used until now.
    pub(crate) fn used(&self) -> anyhow::Result<Used> {
        let process = PathBuf::from(format!("/proc/{}", self.child.id()));
        let status = fs::read_to_string(process.join("status"))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        let peak_kb = peak.trim().trim_end_matches("kB").trim().parse()?;
        let mut cpu = Duration::ZERO;
        for thread in fs::read_dir(process.join("task"))? {
            let times = fs::read_to_string(thread?.path().join("schedstat"))?;
            let nanos = times.split_whitespace().next().context("an empty schedstat")?;
            cpu += Duration::from_nanos(nanos.parse()?);
        }
        Ok(Used { peak_kb, cpu })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing else to do about it here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
