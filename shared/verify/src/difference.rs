//! What a comparison finds, and what there is to do about it.

use ledgerline_store::Repair;
use serde::Serialize;

/// What was found.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Tasks that the ledger knows.
    pub tasks: u64,
    /// Jobs that the ledger knows.
    pub jobs: u64,
    /// Runs that are listed.
    pub runs: u64,
    /// Events that were read.
    pub events: u64,
    /// By entity.
    pub differences: Vec<Difference>,
}

/// One thing that is not as the ledger tells it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// `TASK`, `JOB` or `RUN`.
    pub entity_type: &'static str,
    /// Which one.
    pub entity_id: String,
    /// What kind of difference it is.
    pub difference: What,
    /// Whether it is a fault.
    pub standing: Standing,
    /// What there is, and what there should be.
    pub detail: String,
}

/// Whether a difference is a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It is.
    Fault,
    /// Events that are still on their way, or that `jobs` has not passed yet, explain it.
    NotSettled,
    /// It was, and has been made again.
    Rebuilt,
}

impl Standing {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::NotSettled => "not settled yet",
            Self::Rebuilt => "rebuilt",
        }
    }
}

/// Kinds of differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A task has no row.
    RowMissing,
    /// Its row tells something else.
    RowDifferent,
    /// Its row is right, and in the wrong list.
    RowInWrongList,
    /// A row is about a task that no event knows.
    #[serde(rename = "row-of-nobody")]
    OrphanRow,
    /// A row of another tenant is in a list of this one.
    #[serde(rename = "row-of-another")]
    RowOfOtherTenant,
    /// A task has ended, and has no record of it.
    RecordMissing,
    /// A task has ended, and its record has not.
    RecordOpen,
    /// A record has ended with an event that is not in the ledger.
    EndNotSaved,
    /// A record has ended one way, and the ledger's first end says another.
    TwoEnds,
    /// A task was started again, and no event tells of it.
    StartNotSaved,
    /// What a claim sends was not sent in time.
    ClaimOverdue,
    /// A job was created, and has no record.
    JobMissing,
    /// A job has a record, and no event created it.
    #[serde(rename = "job-of-nobody")]
    OrphanJob,
    /// A job's tasks are not those of its events.
    JobTasks,
    /// How a task of a job ended is not noted as it ended.
    JobOutcome,
    /// A job's counts are not those of its tasks.
    JobCount,
    /// Nothing keeps a task of a job from starting, and it was not started.
    JobTaskNotStarted,
    /// Record and ledger do not agree on whether a job is completed.
    JobCompletion,
    /// A job was resumed, and no event tells of it.
    ResumeNotSaved,
    /// A job is in the wrong list.
    JobInWrongList,
    /// The ledger tells of a run that has no log.
    RunMissing,
    /// A run's record does not say what its log says.
    RunRecordDifferent,
    /// The ledger does not have all events of a run's log.
    RunEventsMissing,
    /// The ledger has events of a run that are not in its log.
    #[serde(rename = "run-events-of-nobody")]
    OrphanRunEvents,
    /// A run has been due for too long, and no process has looked after it.
    RunOverdue,
}

impl What {
    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RowMissing => "row-missing",
            Self::RowDifferent => "row-different",
            Self::RowInWrongList => "row-in-wrong-list",
            Self::OrphanRow => "row-of-nobody",
            Self::RowOfOtherTenant => "row-of-another",
            Self::RecordMissing => "record-missing",
            Self::RecordOpen => "record-open",
            Self::EndNotSaved => "end-not-saved",
            Self::TwoEnds => "two-ends",
            Self::StartNotSaved => "start-not-saved",
            Self::ClaimOverdue => "claim-overdue",
            Self::JobMissing => "job-missing",
            Self::OrphanJob => "job-of-nobody",
            Self::JobTasks => "job-tasks",
            Self::JobOutcome => "job-outcome",
            Self::JobCount => "job-count",
            Self::JobTaskNotStarted => "job-task-not-started",
            Self::JobCompletion => "job-completion",
            Self::ResumeNotSaved => "resume-not-saved",
            Self::JobInWrongList => "job-in-wrong-list",
            Self::RunMissing => "run-missing",
            Self::RunRecordDifferent => "run-record-different",
            Self::RunEventsMissing => "run-events-missing",
            Self::OrphanRunEvents => "run-events-of-nobody",
            Self::RunOverdue => "run-overdue",
        }
    }

    /// Whether it is derived, so that it can be made again from the ledger.
    pub const fn is_derived(self) -> bool {
        match self {
            Self::RowMissing
            | Self::RowDifferent
            | Self::RowInWrongList
            | Self::OrphanRow
            | Self::JobInWrongList
            | Self::RunRecordDifferent
            | Self::RunEventsMissing => true,
            Self::RowOfOtherTenant
            | Self::RecordMissing
            | Self::RecordOpen
            | Self::EndNotSaved
            | Self::TwoEnds
            | Self::StartNotSaved
            | Self::ClaimOverdue
            | Self::JobMissing
            | Self::OrphanJob
            | Self::JobTasks
            | Self::JobOutcome
            | Self::JobCount
            | Self::JobTaskNotStarted
            | Self::JobCompletion
            | Self::ResumeNotSaved
            | Self::RunMissing
            | Self::OrphanRunEvents
            | Self::RunOverdue => false,
        }
    }

    /// What to do about it.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::RowMissing
            | Self::RowDifferent
            | Self::RowInWrongList
            | Self::OrphanRow
            | Self::JobInWrongList => "nothing is decided by it; `verify --rebuild` makes it right",
            Self::RunRecordDifferent | Self::RunEventsMissing => {
                "the log has it all; `verify --rebuild` makes it right"
            }
            Self::RunMissing => {
                "its log was deleted, or its events were emitted by other means: restore the control table"
            }
            Self::OrphanRunEvents => {
                "they were emitted by other means; the run goes by its log and ignores them"
            }
            Self::RunOverdue => {
                "the dispatcher's sweep sends it to the runners every two minutes; if it stays, look at their logs"
            }
            Self::RowOfOtherTenant => "verify the tenant that it belongs to",
            Self::RecordMissing | Self::RecordOpen => {
                "a worker that gets its message would run it once more: look for one in the task queue, and delete it"
            }
            Self::EndNotSaved | Self::StartNotSaved | Self::ResumeNotSaved | Self::OrphanJob => {
                "the event was sent and did not arrive: `failed list` has the reason, `failed redrive` sends it again"
            }
            Self::TwoEnds => {
                "whichever end came first was taken, and its job went on with that; people are shown the earlier one"
            }
            Self::ClaimOverdue => {
                "the dispatcher sends it at its next sweep, every two minutes; if it stays, look at the dispatcher's log"
            }
            Self::JobMissing => {
                "`drainers` says whether `jobs` moves; if it does, submit the job again under another id"
            }
            Self::JobTasks
            | Self::JobOutcome
            | Self::JobCount
            | Self::JobTaskNotStarted
            | Self::JobCompletion => {
                "this decided how the job goes on, and is not changed here: `job show` says what has run; if it does not \
                 come to its end, submit what is left as a new job"
            }
        }
    }
}

impl Verified {
    /// How many differences stand so.
    pub fn count(&self, standing: Standing) -> u64 {
        self.differences.iter().filter(|difference| difference.standing == standing).count() as u64
    }

    /// Whether nothing is wrong, or nothing any more.
    pub fn agrees(&self) -> bool {
        self.count(Standing::Fault) == 0
    }
}

impl Difference {
    pub(crate) fn of_task(id: &str, difference: What, standing: Standing, detail: String) -> Self {
        Self { entity_type: "TASK", entity_id: id.to_owned(), difference, standing, detail }
    }

    pub(crate) fn of_job(id: &str, difference: What, standing: Standing, detail: String) -> Self {
        Self { entity_type: "JOB", entity_id: id.to_owned(), difference, standing, detail }
    }

    pub(crate) fn of_run(id: &str, difference: What, standing: Standing, detail: String) -> Self {
        Self { entity_type: "RUN", entity_id: id.to_owned(), difference, standing, detail }
    }

    pub(crate) fn is_rebuildable(&self) -> bool {
        self.standing == Standing::Fault && self.difference.is_derived()
    }

    /// Notes what became of making it again. If another process changed it meanwhile, it is not settled.
    pub(crate) fn rebuilt(&mut self, repair: Repair) {
        match repair {
            Repair::Done => self.standing = Standing::Rebuilt,
            Repair::ChangedMeanwhile => {
                self.standing = Standing::NotSettled;
                self.detail.push_str("; it was changed meanwhile, so verify again");
            }
        }
    }
}

/// A fault, unless something explains it.
pub(crate) const fn fault_unless(explained: bool) -> Standing {
    if explained { Standing::NotSettled } else { Standing::Fault }
}
