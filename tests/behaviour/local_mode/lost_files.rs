//! A data folder that has lost or damaged a file is refused at the start, with what to do.

use std::{fs, path::Path};

use ledgerline_local::{Local, LocalOptions};

use ledgerline_test_support::until;

/// A folder with an event in it, and no process.
async fn used(folder: &Path) {
    let local = Local::start(LocalOptions::new(folder)).await.unwrap();
    local.stop().await;
    // The last request that is dropped closes the database, which then moves everything into its file.
    until("the tables are closed", || async {
        let bytes = fs::metadata(folder.join("tables.sqlite")).ok()?.len();
        (bytes > 40_960).then_some(())
    })
    .await;
}

async fn refusal(folder: &Path) -> String {
    match Local::start(LocalOptions::new(folder)).await {
        Ok(local) => {
            local.stop().await;
            panic!("it started");
        }
        Err(error) => format!("{error:#}"),
    }
}

fn remove(folder: &Path, name: &str) {
    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(folder.join(format!("{name}{end}")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_empty_file_beside_a_used_one_is_refused_with_what_to_do() {
    for lost in ["tables.sqlite", "services.sqlite"] {
        let folder = tempfile::tempdir().unwrap();
        used(folder.path()).await;
        remove(folder.path(), lost);
        for _ in 0..2 {
            let refused = refusal(folder.path()).await;
            assert!(refused.contains(lost) && refused.contains("missing or empty"), "{refused}");
            assert!(refused.contains("from a backup"), "{refused}");
            // Neither does an empty file count, nor does a refused start make one.
            fs::write(folder.path().join(lost), b"").unwrap();
        }
        for file in ["tables.sqlite", "services.sqlite"] {
            remove(folder.path(), file);
        }
        used(folder.path()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_refused_with_what_to_do() {
    for (begin, end) in [(0, 100), (4_096, 40_960)] {
        let folder = tempfile::tempdir().unwrap();
        used(folder.path()).await;
        let file = folder.path().join("tables.sqlite");
        let mut bytes = fs::read(&file).unwrap();
        bytes[begin..end].fill(0x5a);
        remove(folder.path(), "tables.sqlite");
        fs::write(&file, bytes).unwrap();
        let refused = refusal(folder.path()).await;
        assert!(refused.contains("tables.sqlite is damaged"), "{refused}");
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn health_says_that_a_file_was_removed_under_a_running_process() {
    let folder = tempfile::tempdir().unwrap();
    let local = Local::start(LocalOptions::new(folder.path())).await.unwrap();
    remove(folder.path(), "tables.sqlite");
    let url = format!("{}/api/health", local.state.api_url);
    let health = reqwest::Client::new().get(url).bearer_auth(&local.state.api_key).send().await.unwrap();
    assert_eq!(health.status(), 503);
    let health: serde_json::Value = health.json().await.unwrap();
    assert!(health["findings"].to_string().contains("tables.sqlite was removed"), "{health}");
    local.stop().await;
}
