//! Which workflows there are. Runners say so when they start; whoever asks for another is told at once.

use std::collections::BTreeSet;

use ledgerline_event::{Invalid, Millis, Name};
use ledgerline_ledger::control::keys;
use serde::{Deserialize, Serialize};

use crate::{Dispatch, DispatchError};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Runnable {
    #[serde(rename = "SK", skip_serializing, default)]
    name: String,
    versions: Vec<String>,
    seen_at: Millis,
}

impl Dispatch {
    /// Notes which workflows, in which versions, a runner has.
    pub async fn publish_workflows(
        &self,
        workflows: impl IntoIterator<Item = (String, Vec<String>)>,
    ) -> Result<(), DispatchError> {
        for (name, versions) in workflows {
            let row = Runnable { name: String::new(), versions, seen_at: self.now() };
            let put = self.control.put(&keys::runnable(&name), &row)?.send().await;
            put.map_err(|error| ledgerline_ledger::StoreError::new("PutItem", error))?;
        }
        Ok(())
    }

    /// The workflows that some runner has.
    pub async fn runnable_workflows(&self) -> Result<BTreeSet<String>, DispatchError> {
        let rows: Vec<Runnable> = self.control.all(keys::RUNNABLE).await?;
        Ok(rows.into_iter().map(|row| row.name).collect())
    }

    /// Whether some runner has the workflow. As long as none has said anything, everything may be.
    pub(super) async fn check_runnable(&self, workflow: &Name) -> Result<(), DispatchError> {
        if self.runnable.lock().is_ok_and(|known| known.contains(workflow.as_str())) {
            return Ok(());
        }
        let known = self.runnable_workflows().await?;
        let there = known.is_empty() || known.contains(workflow.as_str());
        let list: Vec<&str> = known.iter().map(String::as_str).collect();
        let error = || {
            let reason = format!("no runner has `{workflow}`; there are: {}", list.join(", "));
            Invalid::new("workflow", reason).into()
        };
        let answer = if there { Ok(()) } else { Err(error()) };
        if let Ok(mut cache) = self.runnable.lock() {
            *cache = known;
        }
        answer
    }
}
