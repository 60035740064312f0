//! The outputs of tasks, for the tasks that depend on them. Outputs may be large and many: only some are held at a time.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::try_join_all;
use ledgerline_event::{Invalid, Name, overflow};
use ledgerline_outbox::ComponentError;
use ledgerline_store::{StoreError, TaskOutcome};
use serde_json::{Map, Value};

use super::start::Ready;
use crate::JobInputs;

/// The most bytes of JSON that the parents of one task may put out: all of it is held in memory.
const MAX_OUTPUT_BYTES: usize = 20_000_000;
/// Outputs that are fetched at the same time.
const FETCHED_AT_ONCE: usize = 8;

/// Where the outputs of some tasks are, and those that were fetched.
pub struct Outputs {
    places: BTreeMap<String, String>,
    fetched: BTreeMap<String, (Value, usize)>,
    bytes: usize,
}

impl JobInputs {
    /// Where the outputs of the parents of some tasks are.
    pub async fn outputs_for(
        &self,
        tenant: &Name,
        job_id: &Name,
        ready: &[Ready],
    ) -> Result<Outputs, ComponentError> {
        let parents: BTreeSet<&str> =
            ready.iter().flat_map(|ready| ready.node.depends_on.iter().map(String::as_str)).collect();
        let ends = self.records.ends(tenant, job_id, parents).await?;
        let completed = ends.into_iter().filter(|end| end.outcome == TaskOutcome::Completed);
        let places = completed.map(|end| (end.task_id.to_string(), end.event_sk)).collect();
        Ok(Outputs { places, fetched: BTreeMap::new(), bytes: 0 })
    }

    /// The outputs of some parents, by their ids.
    pub async fn outputs_of(
        &self,
        tenant: &Name,
        parents: &[String],
        outputs: &mut Outputs,
    ) -> Result<Map<String, Value>, ComponentError> {
        let mut given = Map::new();
        let mut bytes = 0;
        for some in parents.chunks(FETCHED_AT_ONCE) {
            let missing: Vec<&String> =
                some.iter().filter(|parent| !outputs.fetched.contains_key(*parent)).collect();
            let fetched = try_join_all(missing.iter().map(|parent| {
                let place = outputs.places.get(*parent);
                async move {
                    let place = place.ok_or_else(|| lost(parent, "it has not completed"))?;
                    self.output(tenant, parent, place).await
                }
            }));
            for (parent, (output, size)) in missing.iter().zip(fetched.await?) {
                outputs.bytes += size;
                outputs.fetched.insert((*parent).clone(), (output, size));
            }
            for parent in some {
                if let Some((output, size)) = outputs.fetched.get(parent) {
                    bytes += size;
                    given.insert(parent.clone(), output.clone());
                }
            }
            if bytes > MAX_OUTPUT_BYTES {
                let reason = format!(
                    "the outputs of its parents have over {MAX_OUTPUT_BYTES} bytes; let them put out references"
                );
                return Err(Invalid::new("dependencyOutputs", reason).into());
            }
            if outputs.bytes > MAX_OUTPUT_BYTES {
                outputs.fetched.clear();
                outputs.bytes = 0;
            }
        }
        Ok(given)
    }

    async fn output(
        &self,
        tenant: &Name,
        parent: &str,
        event_sk: &str,
    ) -> Result<(Value, usize), ComponentError> {
        let event = self.timeline.stored_at(tenant, event_sk).await?;
        let mut event = event.ok_or_else(|| lost(parent, "its event has expired"))?;
        self.timeline.restore(&mut event).await?;
        if let Some(missing) = overflow::missing(&event.properties) {
            return Err(lost(parent, &missing).into());
        }
        let output = event.properties.remove("output").unwrap_or(Value::Null);
        let size = serde_json::to_vec(&output).map_or(0, |json| json.len());
        Ok((output, size))
    }
}

fn lost(parent: &str, why: &str) -> StoreError {
    StoreError::unreadable("reading an output", format!("the output of `{parent}` is lost: {why}"))
}
