//! The commands of the README's "A first look", as a person types them, one after the other.

use std::{
    os::unix::fs::symlink,
    process::{Command, Output},
};

use serde_json::json;

use ledgerline_test_support::{World, until};

use crate::binary::{Running, ledgerline, lines};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The lines of the section's first block.
fn commands(readme: &str) -> Vec<&str> {
    let (_, section) = readme.split_once("## A first look").expect("the README has this section");
    let (_, block) = section.split_once("```sh\n").expect("the section begins with commands");
    let (block, _) = block.split_once("```").expect("the block ends");
    block.lines().filter(|line| !line.is_empty()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_commands_of_the_readme_lead_to_no_halt_and_no_parked_start() {
    let readme = std::fs::read_to_string(format!("{ROOT}/README.md")).unwrap();
    let world = World::start().await;
    let folder = world.folder.path();
    let bin = tempfile::tempdir().unwrap();
    symlink(env!("CARGO_BIN_EXE_ledgerline"), bin.path().join("ledgerline")).unwrap();
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap());
    let shell = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(ROOT).env("PATH", &path).env("LEDGERLINE_DATA", folder);
        command.env_remove("LEDGERLINE_STAGE").env_remove("LEDGERLINE_TENANT");
        command
    };
    let worker = shell("exec ledgerline --local worker --config examples/worker.toml").spawn().unwrap();
    let _worker = Running(worker);

    let commands = commands(&readme);
    let has = |part: &str| commands.iter().any(|line| line.contains(part));
    assert!(has(" emit ") && has(" subscriptions add ") && has(" workflows add "), "{commands:?}");
    let typed = |line: &str| {
        let Output { status, stdout, stderr } = shell(line).output().unwrap();
        let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
        assert!(status.success(), "`{line}`: {status}: {said}");
    };
    // What follows events ends only with the terminal.
    commands.iter().filter(|line| !line.ends_with("--follow")).for_each(|line| typed(line));
    // Now that something subscribes to it.
    let emit = commands.iter().find(|line| line.contains(" emit ")).unwrap();
    typed(emit);
    until("the subscription has started a task", || async {
        let tasks = lines(&ledgerline(folder, &["tasks", "--json"]));
        tasks.iter().any(|task| task["name"] == "reprice").then_some(())
    })
    .await;
    assert_eq!(
        lines(&ledgerline(folder, &["parked", "list", "--all", "--json"])),
        Vec::<serde_json::Value>::new()
    );
    let drainers = lines(&ledgerline(folder, &["drainers", "--json"]));
    assert!(!drainers.is_empty());
    for drainer in drainers {
        assert_eq!(
            (&drainer["halted"], &drainer["haltedOnEventId"]),
            (&json!(false), &json!(null)),
            "{drainer}"
        );
        assert_eq!(drainer["blocks"], json!(0), "{drainer}");
    }
    world.local.stop().await;
}
