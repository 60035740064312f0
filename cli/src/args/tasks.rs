//! The arguments of everything about tasks and jobs, and of the worker.

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use ledgerline_event::{JobState, catalogue::TaskState, parse_duration_ms};

/// `ledgerline submit`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local submit pipeline.yaml --watch
  ledgerline --stage prod --tenant acme submit task.json --json
  echo '{\"name\":\"scrape-store\",\"input\":{\"storeId\":\"s-1\"}}' | ledgerline --local submit -

A file with `tasks` is a job:                    One with `name` is a task:
  jobId: nightly-7       # or a new one            name: scrape-store
  tasks:                                           input: { storeId: s-1 }
    - taskId: fetch                                requestId: s-1-monday   # or a new one
      name: scrape-store                           timeoutMs: 600000
      input: { storeId: s-1 }                      maxAttempts: 3
      timeoutMs: 600000
      maxAttempts: 3
    - taskId: load
      name: load-db
      dependsOn: [fetch]

YAML or JSON. Submitting the same id with the same content again changes nothing; with other content it is
refused. Ctrl-C leaves the watch; what was submitted goes on.

Exit codes with --watch: 0 completed, 1 failed, 130 left before the end.")]
pub struct SubmitArgs {
    /// The job or the task, as YAML or JSON; - is standard input
    pub file: PathBuf,
    /// Stay, and draw how it goes until it ends
    #[arg(long, short)]
    pub watch: bool,
    /// The app that its events come from
    #[arg(long, default_value = "cli")]
    pub app: String,
}

/// `ledgerline job`
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  ledgerline --local job show nightly-7 --watch
  ledgerline --local job add nightly-7 more.yaml
  ledgerline --local job resume nightly-7 --watch")]
#[allow(missing_docs)]
pub enum JobCommand {
    /// Draw a job with all of its tasks
    Show(ShowJobArgs),
    /// Add tasks to a job that is not completed
    Add(AddToJobArgs),
    /// Run what failed once more; what is completed stays so
    Resume(ResumeJobArgs),
}

/// `ledgerline job show`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local job show nightly-7
  ledgerline --local job show nightly-7 --watch
  ledgerline --local job show nightly-7 --json | jq '.tasks[] | {taskId, state}'

  ✓ completed   ✗ failed   ● processing   ○ pending: waits for a worker   · waits for other tasks

Ctrl-C leaves the watch; the job goes on.
Exit codes with --watch: 0 completed, 1 failed, 130 left before the end.")]
pub struct ShowJobArgs {
    /// Its id
    #[arg(value_name = "JOB")]
    pub job_id: String,
    /// Stay, and draw how it goes until it ends
    #[arg(long, short)]
    pub watch: bool,
}

/// `ledgerline job add`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local job add nightly-7 more.yaml
  echo '[{\"taskId\":\"report\",\"name\":\"send-report\",\"dependsOn\":[\"load\"]}]' | ledgerline --local job add nightly-7 -

The file holds a list of {taskId, name, dependsOn?, input?, timeoutMs?, maxAttempts?}, alone or under `tasks`, at
most 90 of them. They may depend on each other and on any task of the job; one whose parents are completed
starts at once.")]
pub struct AddToJobArgs {
    /// The job's id
    #[arg(value_name = "JOB")]
    pub job_id: String,
    /// The tasks, as YAML or JSON; - is standard input
    pub file: PathBuf,
}

/// `ledgerline job resume`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local job resume nightly-7
  ledgerline --local job resume nightly-7 --watch

Ctrl-C leaves the watch; the job goes on.
Exit codes with --watch: 0 completed, 1 failed again, 130 left before the end.")]
pub struct ResumeJobArgs {
    /// The job's id
    #[arg(value_name = "JOB")]
    pub job_id: String,
    /// Stay, and draw how it goes until it ends
    #[arg(long, short)]
    pub watch: bool,
}

/// `ledgerline jobs`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local jobs
  ledgerline --stage prod --tenant acme jobs --state failed --json | jq -r .jobId")]
pub struct JobsArgs {
    /// Those in one state; without it all, those that need attention first
    #[arg(long, value_enum)]
    pub state: Option<JobStateArg>,
    /// Maximum number of rows
    #[arg(long, short = 'n', default_value = "50")]
    pub limit: NonZeroUsize,
}

/// `ledgerline task`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local task task_01KA3Z7Q6Y8T2V4W5X6Y7Z8A9B
  ledgerline --local task nightly-7:fetch --history
  ledgerline --local task nightly-7:fetch --json | jq .output

A task of a job is called JOB:TASK.
Exit codes with --watch: 0 completed, 1 failed, 130 left before the end.")]
pub struct TaskArgs {
    /// Its request id
    pub request_id: String,
    /// Everything that the ledger has about it, oldest first
    #[arg(long, conflicts_with = "watch")]
    pub history: bool,
    /// Stay until it ends
    #[arg(long, short)]
    pub watch: bool,
}

/// `ledgerline tasks`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local tasks --state processing
  ledgerline --stage prod --tenant acme tasks --state failed -n 500 --json | jq -r '[.requestId, .error] | @tsv'")]
pub struct TasksArgs {
    /// Those in one state; without it all, those under way first
    #[arg(long, value_enum)]
    pub state: Option<TaskStateArg>,
    /// Maximum number of rows
    #[arg(long, short = 'n', default_value = "50")]
    pub limit: NonZeroUsize,
}

/// `ledgerline worker`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local worker
  ledgerline --stage prod worker --config scrapers.toml --concurrency 16 --json
  ledgerline --local worker --once --verbose

A task file, worker.toml:
  concurrency = 4                   # tasks at the same time
  heartbeat-seconds = 30            # a worker that is silent for three times as long loses its tasks

  [tasks.scrape-store]
  command = [\"node\", \"scrape.js\"]   # a list of words, or one line for `sh -c`
  timeout = \"10m\"                   # 90s, 15m, 1h; 1h if left out
  attempts = 3                      # 3 if left out
  directory = \"scraper\"             # relative to the task file's folder (the default)
  environment = { LOG = \"info\" }    # added to the worker's own

  [tasks.\"*\"]                       # every other name; without it such tasks are left for other workers
  command = \"./run-any-task\"

It runs the tasks of every tenant. A timeout and a number of attempts that were given with the task take
precedence over those of the file.

The command gets the input as JSON on standard input and writes its output as JSON to the file
$LEDGERLINE_OUTPUT (at most 5 MB; a field `usage` in it is copied into `Task Completed`). It may append lines
of JSON {type, stepName?} to $LEDGERLINE_ACTIVITY, which heartbeats pass on. Exit code 0 completes the task.
Any other fails the attempt; the command may then write {error, category} to $LEDGERLINE_ERROR. Without that
file the error is the end of its standard error, and the category is derived from it; if no category can be
derived, it is `server-error`. Tasks with the categories timeout, network, rate-limit and server-error are
tried again, those with auth, validation and programming are not. Also set: LEDGERLINE_REQUEST_ID
LEDGERLINE_JOB_ID LEDGERLINE_TASK_NAME LEDGERLINE_TENANT LEDGERLINE_ATTEMPT LEDGERLINE_GENERATION.

Ctrl-C or SIGTERM: takes no more tasks and lets running ones finish within the grace; then, or at the second
Ctrl-C, they are ended and given back, and the attempt does not count.")]
pub struct WorkerArgs {
    /// The task file: what to run for which task
    #[arg(long, value_name = "FILE", default_value = "worker.toml")]
    pub config: PathBuf,
    /// Number of tasks at the same time; overrides the task file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub concurrency: Option<u16>,
    /// How long running tasks may go on after Ctrl-C or SIGTERM (90s, 5m, 2h)
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = grace)]
    pub grace: Duration,
    /// End when no task waits or runs
    #[arg(long)]
    pub once: bool,
    /// Log also what tasks write to standard output and standard error
    #[arg(long, short)]
    pub verbose: bool,
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(missing_docs)]
pub enum JobStateArg {
    /// Nothing has failed yet
    Running,
    /// Something has failed, and something still runs
    Failing,
    /// Something has failed, and nothing runs: it can be resumed
    Failed,
    /// Everything is completed
    Completed,
}

impl From<JobStateArg> for JobState {
    fn from(arg: JobStateArg) -> Self {
        match arg {
            JobStateArg::Running => Self::Running,
            JobStateArg::Failing => Self::Failing,
            JobStateArg::Failed => Self::Failed,
            JobStateArg::Completed => Self::Completed,
        }
    }
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(missing_docs)]
pub enum TaskStateArg {
    /// Waits for a worker
    Pending,
    /// A worker has it, or had it and will try again
    Processing,
    /// Done
    Completed,
    /// Failed for good, or ran too long
    Failed,
}

impl From<TaskStateArg> for TaskState {
    fn from(arg: TaskStateArg) -> Self {
        match arg {
            TaskStateArg::Pending => Self::Pending,
            TaskStateArg::Processing => Self::Processing,
            TaskStateArg::Completed => Self::Completed,
            TaskStateArg::Failed => Self::Failed,
        }
    }
}

fn grace(text: &str) -> Result<Duration, String> {
    let ms = parse_duration_ms(text).ok_or("a time like 90s, 5m or 2h is expected")?;
    Ok(Duration::from_millis(ms))
}
