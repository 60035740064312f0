//! `ledgerline verify`

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal},
    process::ExitCode,
    time::{Duration, Instant},
};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use ledgerline_verify::{Difference, DifferenceKind, Mode, Standing, Verified, VerifyProgress};
use serde_json::json;

use crate::{
    args::VerifyArgs,
    output::{Output, counted},
    target::Target,
};

/// A verification that takes longer than this shows its progress.
const SHOW_PROGRESS_AFTER: Duration = Duration::from_secs(2);

pub(super) async fn run(target: &Target, args: VerifyArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    let mode = if args.rebuild { Mode::Rebuild } else { Mode::Report };
    let mut progress = Progress::new();
    let verified = stage.verify.verify(tenant, mode, &mut |at| progress.at(at)).await;
    progress.end();
    let verified = verified?;
    match output.is_json() {
        true => {
            for difference in &verified.differences {
                let mut line = serde_json::to_value(difference)?;
                if difference.standing == Standing::Fault {
                    line["advice"] = json!(difference.difference.advice());
                }
                output.json_line(&line)?;
            }
            output.json_line(&json!({
                "tasks": verified.tasks,
                "jobs": verified.jobs,
                "runs": verified.runs,
                "events": verified.events,
                "differences": verified.differences.len(),
                "faults": verified.count(Standing::Fault),
                "rebuilt": verified.count(Standing::Rebuilt),
                "notSettled": verified.count(Standing::NotSettled),
            }))?;
        }
        false => print_differences(&verified, output)?,
    }
    Ok(if verified.agrees() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_differences(verified: &Verified, output: Output) -> anyhow::Result<()> {
    if !verified.differences.is_empty() {
        let headings = ["entity", "difference", "standing", "detail"];
        output.table(&headings, verified.differences.iter().map(row).collect(), "")?;
        output.line("")?;
    }
    let faults = verified.differences.iter().filter(|difference| difference.standing == Standing::Fault);
    let kinds: BTreeSet<DifferenceKind> = faults.map(|difference| difference.difference).collect();
    if !kinds.is_empty() {
        let advice: Vec<(&str, String)> =
            kinds.into_iter().map(|kind| (kind.as_str(), kind.advice().to_owned())).collect();
        output.fields(&advice)?;
        output.line("")?;
    }
    output.line(&conclusion(verified))
}

fn row(difference: &Difference) -> Vec<String> {
    vec![
        format!("{}/{}", difference.entity_type, difference.entity_id),
        difference.difference.as_str().to_owned(),
        difference.standing.as_str().to_owned(),
        difference.detail.clone(),
    ]
}

fn conclusion(verified: &Verified) -> String {
    let rebuilt = verified.count(Standing::Rebuilt);
    let not_settled = verified.count(Standing::NotSettled);
    let faults = verified.count(Standing::Fault) + rebuilt;
    let mut said = match faults {
        0 => "everything agrees".to_owned(),
        _ => format!("{}, {} rebuilt", counted(faults, "difference"), HumanCount(rebuilt)),
    };
    if not_settled > 0 {
        said.push_str(&format!(", {} not settled yet", HumanCount(not_settled)));
    }
    let of = [
        (verified.tasks, "task"),
        (verified.jobs, "job"),
        (verified.runs, "run"),
        (verified.events, "event"),
    ];
    format!("{}: {said}", of.map(|(count, what)| counted(count, what)).join(", "))
}

/// Shows the progress of a long verification on a terminal.
struct Progress {
    began: Instant,
    bar: Option<ProgressBar>,
    shown: bool,
}

impl Progress {
    fn new() -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}");
            ProgressBar::hidden().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
        });
        Self { began: Instant::now(), bar, shown: false }
    }

    fn at(&mut self, progress: VerifyProgress) {
        let Some(bar) = &self.bar else { return };
        if self.began.elapsed() < SHOW_PROGRESS_AFTER {
            return;
        }
        if !self.shown {
            self.shown = true;
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        }
        bar.set_message(in_words(progress));
        bar.tick();
    }

    /// Clears the bar, so that the next output takes its line.
    fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn in_words(progress: VerifyProgress) -> String {
    match progress {
        VerifyProgress::Events { read, at } => {
            format!("{} read, up to {}", counted(read, "event"), at.to_rfc3339())
        }
        VerifyProgress::Tasks { compared, of } => {
            format!("{} of {} compared", HumanCount(compared), counted(of, "task"))
        }
        VerifyProgress::Jobs { compared, of } => {
            format!("{} of {} compared", HumanCount(compared), counted(of, "job"))
        }
        VerifyProgress::Runs { compared, of } => {
            format!("{} of {} compared", HumanCount(compared), counted(of, "run"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verified(standings: &[Standing]) -> Verified {
        let difference = |standing: &Standing| Difference {
            entity_type: "TASK",
            entity_id: "a".into(),
            difference: DifferenceKind::RowMissing,
            standing: *standing,
            detail: String::new(),
        };
        Verified {
            tasks: 1,
            jobs: 0,
            runs: 2,
            events: 1_234,
            differences: standings.iter().map(difference).collect(),
        }
    }

    #[test]
    fn the_last_line_says_what_agrees_what_differs_and_what_is_mended() {
        let of = |standings: &[Standing]| conclusion(&verified(standings));
        assert_eq!(of(&[]), "1 task, 0 jobs, 2 runs, 1,234 events: everything agrees");
        let open = of(&[Standing::NotSettled]);
        assert_eq!(open, "1 task, 0 jobs, 2 runs, 1,234 events: everything agrees, 1 not settled yet");
        let mixed = of(&[Standing::Fault, Standing::Rebuilt, Standing::NotSettled]);
        assert_eq!(
            mixed,
            "1 task, 0 jobs, 2 runs, 1,234 events: 2 differences, 1 rebuilt, 1 not settled yet"
        );
        assert_eq!(of(&[Standing::Fault]), "1 task, 0 jobs, 2 runs, 1,234 events: 1 difference, 0 rebuilt");
    }

    #[test]
    fn progress_says_how_far_it_is() {
        let at = ledgerline_event::Millis::try_from(1_767_453_739_640).unwrap();
        let read = in_words(VerifyProgress::Events { read: 20_000, at });
        assert_eq!(read, "20,000 events read, up to 2026-01-03T15:22:19.640Z");
        assert_eq!(in_words(VerifyProgress::Jobs { compared: 1, of: 3 }), "1 of 3 jobs compared");
    }
}
