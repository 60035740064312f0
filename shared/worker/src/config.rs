//! The task file, `worker.toml`: which task runs which command, for how long, and how often.
//!
//! ```toml
//! concurrency = 4             # tasks at the same time
//! heartbeat-seconds = 30      # a worker that is silent for three times as long loses its tasks
//!
//! [tasks.scrape-store]
//! command = ["node", "scrape.js"]   # a list of words, or one line for `sh -c`
//! timeout = "10m"                   # 90s, 15m, 1h; 1h if left out
//! attempts = 3                      # 3 if left out
//! directory = "scraper"             # relative to this file's folder (the default)
//! environment = { LOG = "info" }    # beside the worker's own
//!
//! [tasks."*"]                       # every other name
//! command = "./run-any-task"
//! ```

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::anyhow;
use ledgerline_event::parse_duration_ms;
use serde::Deserialize;

use super::process::VARIABLES;

/// The entry for every name that has none of its own.
const DEFAULT_ENTRY: &str = "*";
const CONCURRENCY: usize = 4;
const HEARTBEAT_SECONDS: u64 = 30;
const TIMEOUT: Duration = Duration::from_secs(60 * 60);
const ATTEMPTS: u32 = 3;

/// A task file, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Tasks at the same time.
    pub concurrency: usize,
    /// How often a running task sends a heartbeat. It decides how long messages stay hidden and leases last.
    pub heartbeat: Duration,
    tasks: BTreeMap<String, Entry>,
}

/// What to run for a task, and its limits unless the submission gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Entry {
    pub program: String,
    pub arguments: Vec<String>,
    pub timeout: Duration,
    pub attempts: u32,
    pub directory: PathBuf,
    pub environment: BTreeMap<String, String>,
}

impl Config {
    /// Reads a task file; an error names the file, the key, and what to write instead.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(file).map_err(|error| {
            let path = file.display();
            anyhow!(
                "{path}: {error}; name the task file, or write one (`ledgerline worker --help` shows how)"
            )
        })?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Self::parse(&text, folder).map_err(|problem| anyhow!("{}: {problem}", file.display()))
    }

    /// Reads the text of a task file that lies in `folder`.
    fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        let written: WrittenConfig =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        if written.tasks.is_empty() {
            return Err(
                "it has no tasks: add [tasks.NAME] with a command, or [tasks.\"*\"] for every name".into()
            );
        }
        let concurrency = written.concurrency.unwrap_or(CONCURRENCY);
        check_range("concurrency", concurrency, 1, 1_000)?;
        let seconds = written.heartbeat_seconds.unwrap_or(HEARTBEAT_SECONDS);
        check_range("heartbeat-seconds", seconds, 1, 3_600)?;
        let check = |(name, entry): (String, WrittenEntry)| {
            if name != DEFAULT_ENTRY && name.contains('*') {
                return Err(format!(
                    "tasks.\"{name}\": write the whole name; only \"*\" alone stands for every other"
                ));
            }
            let entry =
                entry.check(folder).map_err(|problem| format!("tasks.{}.{problem}", quoted(&name)))?;
            Ok((name, entry))
        };
        let tasks = written.tasks.into_iter().map(check).collect::<Result<_, String>>()?;
        Ok(Self { concurrency, heartbeat: Duration::from_secs(seconds), tasks })
    }

    /// What to run for a task of this name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.tasks.get(name).or_else(|| self.tasks.get(DEFAULT_ENTRY))
    }

    /// How long a message stays hidden after each heartbeat: long enough to miss one. The lease lasts half as long
    /// again, so that a worker that receives the message too early finds the lease still held.
    pub fn visibility_extension(&self) -> Duration {
        self.heartbeat * 2
    }
}

/// The file as users write it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenConfig {
    concurrency: Option<usize>,
    heartbeat_seconds: Option<u64>,
    #[serde(default)]
    tasks: BTreeMap<String, WrittenEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenEntry {
    command: WrittenCommand,
    timeout: Option<String>,
    attempts: Option<u32>,
    directory: Option<PathBuf>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a command is a list of words, or one line of text for `sh -c`")]
enum WrittenCommand {
    Line(String),
    Words(Vec<String>),
}

impl WrittenEntry {
    fn check(self, folder: &Path) -> Result<Entry, String> {
        let words = match self.command {
            WrittenCommand::Line(line) if line.trim().is_empty() => Vec::new(),
            WrittenCommand::Line(line) => vec!["sh".into(), "-c".into(), line],
            WrittenCommand::Words(words) => words,
        };
        let mut words = words.into_iter();
        let program = words.next().filter(|program| !program.is_empty());
        let program = program.ok_or("command: is empty; say what to run, as in [\"node\", \"scrape.js\"]")?;
        let timeout = match self.timeout {
            None => TIMEOUT,
            Some(text) => parse_duration_ms(&text)
                .filter(|ms| *ms > 0)
                .map(Duration::from_millis)
                .ok_or_else(|| format!("timeout: `{text}` is no length of time; write 90s, 15m or 1h"))?,
        };
        let attempts = self.attempts.unwrap_or(ATTEMPTS);
        check_range("attempts", attempts, 1, 100)?;
        let directory = self.directory.map_or_else(|| folder.to_owned(), |directory| folder.join(directory));
        if !directory.is_dir() {
            return Err(format!(
                "directory: {} is no folder; it counts from the task file's",
                directory.display()
            ));
        }
        for key in self.environment.keys() {
            if key.is_empty() || key.contains(['=', '\0']) {
                return Err(format!("environment: `{key}` is no name of a variable"));
            }
            if VARIABLES.contains(&key.as_str()) {
                return Err(format!("environment: {key} is set by the worker; choose another name"));
            }
        }
        let environment = self.environment;
        Ok(Entry { program, arguments: words.collect(), timeout, attempts, directory, environment })
    }
}

fn check_range<T: PartialOrd + Copy + std::fmt::Display>(
    key: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), String> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(format!("{key}: {value} is not possible; write a number from 1 to {most}")),
    }
}

/// A name as TOML writes it.
fn quoted(name: &str) -> String {
    let bare = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if bare { name.to_owned() } else { format!("\"{name}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new(env!("CARGO_MANIFEST_DIR")))
    }

    fn problem(text: &str) -> String {
        parse(text).unwrap_err()
    }

    #[test]
    fn every_key_but_the_command_has_a_default() {
        let config = parse(
            r#"
            concurrency = 2
            heartbeat-seconds = 10
            [tasks.scrape-store]
            command = ["node", "scrape.js"]
            timeout = "10m"
            attempts = 5
            directory = "src"
            environment = { LOG = "info" }
            [tasks."*"]
            command = "cat > /dev/null"
            "#,
        )
        .unwrap();
        assert_eq!((config.concurrency, config.heartbeat), (2, Duration::from_secs(10)));
        assert_eq!(config.visibility_extension(), Duration::from_secs(20));
        let scrape = config.entry("scrape-store").unwrap();
        assert_eq!(
            (scrape.program.as_str(), scrape.arguments.as_slice()),
            ("node", &["scrape.js".to_owned()][..])
        );
        assert_eq!((scrape.timeout, scrape.attempts), (Duration::from_secs(600), 5));
        assert_eq!(
            (scrape.directory.as_path(), scrape.environment["LOG"].as_str()),
            (Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), "info")
        );
        let any = config.entry("whatever").unwrap();
        assert_eq!((any.program.as_str(), any.arguments[1].as_str()), ("sh", "cat > /dev/null"));
        assert_eq!((any.timeout, any.attempts), (Duration::from_secs(3_600), 3));
    }

    #[test]
    fn a_name_without_an_entry_has_none_unless_there_is_a_default() {
        let config = parse("[tasks.a]\ncommand = 'true'").unwrap();
        assert!(config.entry("a").is_some() && config.entry("b").is_none());
        assert_eq!((config.concurrency, config.visibility_extension()), (4, Duration::from_secs(60)));
    }

    #[test]
    fn an_error_names_the_key_and_what_to_write() {
        let entry = |rest: &str| problem(&format!("[tasks.a]\ncommand = 'true'\n{rest}"));
        assert!(problem("").contains("add [tasks.NAME]"));
        assert!(
            problem("concurrency = 0\n[tasks.a]\ncommand = 'true'")
                .starts_with("concurrency: 0 is not possible")
        );
        assert!(problem("heartbeat-seconds = 4000\n[tasks.a]\ncommand = 'true'").contains("from 1 to 3600"));
        assert!(problem("[tasks.'a*']\ncommand = 'true'").contains("only \"*\" alone"));
        assert!(problem("[tasks.a]\ncommand = 3").contains("a list of words"));
        assert!(problem("[tasks.'a b']\ncommand = []").starts_with("tasks.\"a b\".command: is empty"));
        assert!(
            entry("timeout = '10x'").starts_with("tasks.a.timeout: `10x` is no length of time; write 90s")
        );
        assert!(entry("timeout = '0s'").contains("tasks.a.timeout"));
        assert!(entry("attempts = 0").starts_with("tasks.a.attempts: 0"));
        assert!(entry("directory = 'nowhere'").contains("/nowhere is no folder"));
        assert!(entry("environment = { LEDGERLINE_OUTPUT = 'x' }").contains("is set by the worker"));
        let unknown = entry("retries = 3");
        assert!(unknown.contains("line 3") && unknown.contains("unknown field `retries`"), "{unknown}");
    }

    #[test]
    fn an_error_names_a_missing_file() {
        let error = Config::read(Path::new("no-such-worker.toml")).unwrap_err().to_string();
        assert!(
            error.starts_with("no-such-worker.toml: ") && error.contains("name the task file"),
            "{error}"
        );
    }
}
