//! What a comparison finds, and what there is to do about it.

use ledgerline_store::Repair;
use serde::Serialize;

/// The result of a comparison.
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
    /// The differences, sorted by entity.
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
    /// Its kind.
    pub difference: DifferenceKind,
    /// Whether it is a fault.
    pub standing: Standing,
    /// What is stored, and what the ledger says instead.
    pub detail: String,
}

/// What a comparison does with derived rows that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It reports them.
    Report,
    /// It reports and rebuilds them.
    Rebuild,
}

/// Whether a difference is a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Nothing explains the difference.
    Fault,
    /// Events that are still in flight, or that `jobs` has not handled yet, may explain it.
    NotSettled,
    /// It was a fault in a derived row, which this comparison has rebuilt.
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
pub enum DifferenceKind {
    /// A task has no row.
    RowMissing,
    /// Its row tells something else.
    RowDifferent,
    /// Its row is right, and in the wrong list.
    RowInWrongList,
    /// A row is about a task of which the ledger has no event.
    #[serde(rename = "row-of-nobody")]
    OrphanRow,
    /// A row of another tenant is in a list of this one.
    #[serde(rename = "row-of-another")]
    RowOfOtherTenant,
    /// A task has ended, and has no record of it.
    RecordMissing,
    /// A task has ended, and its record is open.
    RecordOpen,
    /// A record has ended with an event that is not in the ledger.
    EndNotSaved,
    /// A record has ended one way, and the ledger's first end says another.
    TwoEnds,
    /// A task was started again, and the ledger has no event of that start.
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
    /// A job was resumed, and the ledger has no event of that.
    ResumeNotSaved,
    /// A job is in the wrong list.
    JobInWrongList,
    /// The ledger has events of a run that has no log.
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

impl DifferenceKind {
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

    /// Whether it is about a derived row, which can be rebuilt from the ledger.
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

    /// What an operator can do about it.
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
                "the runner's sweep enqueues it every minute; if it stays, look at the log of `runner`"
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
    /// How many differences have this standing.
    pub fn count(&self, standing: Standing) -> u64 {
        self.differences.iter().filter(|difference| difference.standing == standing).count() as u64
    }

    /// Whether no fault is left.
    pub fn agrees(&self) -> bool {
        self.count(Standing::Fault) == 0
    }
}

impl Difference {
    pub(crate) fn of_task(id: &str, kind: DifferenceKind, standing: Standing, detail: String) -> Self {
        Self { entity_type: "TASK", entity_id: id.to_owned(), difference: kind, standing, detail }
    }

    pub(crate) fn of_job(id: &str, kind: DifferenceKind, standing: Standing, detail: String) -> Self {
        Self { entity_type: "JOB", entity_id: id.to_owned(), difference: kind, standing, detail }
    }

    pub(crate) fn of_run(id: &str, kind: DifferenceKind, standing: Standing, detail: String) -> Self {
        Self { entity_type: "RUN", entity_id: id.to_owned(), difference: kind, standing, detail }
    }

    /// Whether a comparison in this mode rebuilds what differs.
    pub(crate) fn is_rebuilt_in(&self, mode: Mode) -> bool {
        mode == Mode::Rebuild && self.standing == Standing::Fault && self.difference.is_derived()
    }

    /// Notes the result of rebuilding. If another process changed the row meanwhile, the difference is not settled.
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

impl Standing {
    /// A fault if everything that could explain the difference is settled.
    pub(crate) const fn fault_if(settled: bool) -> Self {
        if settled { Self::Fault } else { Self::NotSettled }
    }

    /// A fault unless something in flight may explain the difference.
    pub(crate) const fn fault_unless(in_flight: bool) -> Self {
        Self::fault_if(!in_flight)
    }
}
