//! The files that a task writes for its worker: its output, its current activity, and its error.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use ledgerline_event::{
    Millis,
    catalogue::{Activity, ErrorCategory},
};
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

/// The largest output of a task. A task stores more elsewhere, and puts a reference into the output.
const MAX_OUTPUT: u64 = 5_000_000;
/// How much of an error file is read.
const MAX_ERROR: u64 = 64 * 1024;
/// How much of the end of the activity file is read: only the last line counts.
const MAX_ACTIVITY: u64 = 64 * 1024;
/// The longest type or step name of an activity.
const MAX_ACTIVITY_NAME: usize = 256;

/// A folder that only this user can read; dropping this deletes it.
#[derive(Debug)]
pub(super) struct TaskFiles {
    folder: TempDir,
    /// Up to which byte the activity file was read.
    read_to: u64,
    last_activity: Option<Activity>,
}

/// What a task reports about its own failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReportedError {
    pub(super) error: String,
    pub(super) category: Option<ErrorCategory>,
}

impl TaskFiles {
    pub(super) fn new() -> io::Result<Self> {
        let private = Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix("ledgerline-task-").permissions(private).tempdir()?;
        Ok(Self { folder, read_to: 0, last_activity: None })
    }

    pub(super) fn output_file(&self) -> PathBuf {
        self.folder.path().join("output.json")
    }

    pub(super) fn activity_file(&self) -> PathBuf {
        self.folder.path().join("activity.jsonl")
    }

    pub(super) fn error_file(&self) -> PathBuf {
        self.folder.path().join("error.json")
    }

    /// The output; `null` if the task wrote none. The error says what is wrong with it.
    pub(super) fn output(&self) -> Result<Value, String> {
        let size = match fs::metadata(self.output_file()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Value::Null),
            Err(error) => return Err(format!("the output cannot be read: {error}")),
            Ok(found) if !found.is_file() => return Err("the output is no file".into()),
            Ok(found) => found.len(),
        };
        if size > MAX_OUTPUT {
            return Err(format!(
                "the output has {size} bytes, at most {MAX_OUTPUT} are allowed: store it elsewhere and put a reference \
                 into the output"
            ));
        }
        let json = read_up_to(&self.output_file(), MAX_OUTPUT)
            .map_err(|error| format!("the output cannot be read: {error}"))?;
        if json.iter().all(u8::is_ascii_whitespace) {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&json).map_err(|error| format!("the output is no JSON: {error}"))
    }

    /// What the task wrote about its failure: `{"error", "category"}`, or plain text.
    pub(super) fn error(&self) -> Option<ReportedError> {
        #[derive(Deserialize)]
        struct Written {
            error: String,
            category: Option<Value>,
        }
        let bytes = is_file(&self.error_file()).then(|| read_up_to(&self.error_file(), MAX_ERROR))?.ok()?;
        let written = serde_json::from_slice::<Written>(&bytes).unwrap_or_else(|_| Written {
            error: String::from_utf8_lossy(&bytes).into_owned(),
            category: None,
        });
        let error = written.error.trim();
        // An unknown category counts as none; the category is then derived from the error text.
        let category = written.category.and_then(|category| serde_json::from_value(category).ok());
        let is_report = !error.is_empty() || category.is_some();
        is_report.then(|| ReportedError { error: error.to_owned(), category })
    }

    /// The last activity that the task reported, with its time.
    pub(super) fn activity(&mut self) -> Option<Activity> {
        // A file that cannot be read just now is read the next time.
        if let Ok(Some(newer)) = self.newer_activity() {
            self.last_activity = Some(newer);
        }
        self.last_activity.clone()
    }

    fn newer_activity(&mut self) -> io::Result<Option<Activity>> {
        if !is_file(&self.activity_file()) {
            return Ok(None);
        }
        let mut file = File::open(self.activity_file())?;
        let about = file.metadata()?;
        if about.len() < self.read_to {
            // The task wrote a new file.
            self.read_to = 0;
        }
        let from = self.read_to.max(about.len().saturating_sub(MAX_ACTIVITY));
        file.seek(SeekFrom::Start(from))?;
        let mut new = Vec::new();
        file.take(MAX_ACTIVITY).read_to_end(&mut new)?;
        // A line without an end is still being written.
        let Some(end) = new.iter().rposition(|byte| *byte == b'\n') else { return Ok(None) };
        self.read_to = from + end as u64 + 1;
        let at = about.modified().unwrap_or_else(|_| SystemTime::now());
        let found = new[..end].rsplit(|byte| *byte == b'\n').find_map(|line| parse_activity(line, at));
        Ok(found)
    }
}

fn parse_activity(line: &[u8], at: SystemTime) -> Option<Activity> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Line {
        #[serde(rename = "type")]
        kind: String,
        step_name: Option<String>,
    }
    let line: Line = serde_json::from_slice(line).ok()?;
    let fits = |text: &str| (1..=MAX_ACTIVITY_NAME).contains(&text.len());
    (fits(&line.kind) && line.step_name.as_deref().is_none_or(fits)).then(|| Activity {
        kind: line.kind,
        step_name: line.step_name,
        timestamp: Millis::from_system(at).seconds(),
    })
}

/// Opening anything else, such as a pipe, might block for ever.
fn is_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file())
}

fn read_up_to(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(bytes).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::Write;

    #[test]
    fn an_output_is_json_or_missing_or_empty() {
        let files = TaskFiles::new().unwrap();
        assert_eq!(files.output(), Ok(Value::Null));
        fs::write(files.output_file(), " \n").unwrap();
        assert_eq!(files.output(), Ok(Value::Null));
        fs::write(files.output_file(), r#"{"items": 3}"#).unwrap();
        assert_eq!(files.output(), Ok(json!({"items": 3})));
        fs::write(files.output_file(), "done").unwrap();
        assert!(files.output().unwrap_err().starts_with("the output is no JSON"));
        fs::write(files.output_file(), vec![b' '; 5_000_001]).unwrap();
        assert!(files.output().unwrap_err().contains("5000001 bytes"));
    }

    #[test]
    fn the_folder_is_private_and_goes_with_the_task() {
        let files = TaskFiles::new().unwrap();
        let folder = files.folder.path().to_owned();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        drop(files);
        assert!(!folder.exists());
    }

    #[test]
    fn an_error_is_an_object_or_plain_text() {
        let files = TaskFiles::new().unwrap();
        assert_eq!(files.error(), None);
        let written = |text: &str| {
            fs::write(files.error_file(), text).unwrap();
            files.error()
        };
        let reported = |error: &str, category| Some(ReportedError { error: error.into(), category });
        let slow = r#"{"error": "slow down", "category": "rate-limit"}"#;
        assert_eq!(written(slow), reported("slow down", Some(ErrorCategory::RateLimit)));
        assert_eq!(written(r#"{"error": "odd", "category": "odd"}"#), reported("odd", None));
        assert_eq!(written("boom\n"), reported("boom", None));
        assert_eq!(written("\n"), None);
    }

    #[test]
    fn the_last_whole_valid_line_of_activity_counts() {
        let mut files = TaskFiles::new().unwrap();
        assert_eq!(files.activity(), None);
        let mut file = File::create(files.activity_file()).unwrap();
        let mut say = |files: &mut TaskFiles, text: &str| {
            file.write_all(text.as_bytes()).unwrap();
            files.activity().map(|activity| (activity.kind, activity.step_name))
        };
        let waiting = Some(("waiting".to_owned(), None));
        assert_eq!(say(&mut files, "{\"type\":\"waiting\"}\nnonsense\n"), waiting);
        assert_eq!(say(&mut files, "{\"type\":\"step_running\",\"stepName\":\"col"), waiting);
        let running = Some(("step_running".to_owned(), Some("colours".to_owned())));
        assert_eq!(say(&mut files, "ours\"}\n"), running);
        assert_eq!(say(&mut files, &format!("{{\"type\":\"{}\"}}\n", "x".repeat(300))), running);
        let long = format!("{}\n{{\"type\":\"sdk_query\"}}\n", "y".repeat(200_000));
        assert_eq!(say(&mut files, &long), Some(("sdk_query".to_owned(), None)));
        fs::write(files.activity_file(), "{\"type\":\"anew\"}\n").unwrap();
        assert_eq!(files.activity().unwrap().kind, "anew");
    }
}
