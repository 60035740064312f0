//! What the tasks of a job are given. Inputs lie beside the nodes, in rows of their own or in the payload bucket: failure
//! and completion read every node of a job, and must not read every input with them.

use ledgerline_event::{Event, catalogue::JobTask};
use ledgerline_outbox::ComponentError;
use ledgerline_store::{
    JobInput, JobNode, StoreError,
    keys::{self, ControlKey},
};
use serde_json::{Map, Value};

use super::new_records::{kept_until, new_node};
use crate::JobInputs;

/// Inputs up to this size stay in the node: a row of its own would cost more than reading it along.
const NODE_BYTES: usize = 256;
/// Inputs up to this size have a row; larger ones are in the payload bucket.
const ROW_BYTES: usize = 30_000;

/// Where an input lies, by its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputPlace {
    Node,
    Row,
    Bucket,
}

const fn place_of(bytes: usize) -> InputPlace {
    if bytes <= NODE_BYTES {
        InputPlace::Node
    } else if bytes <= ROW_BYTES {
        InputPlace::Row
    } else {
        InputPlace::Bucket
    }
}

/// A node to be, and the row of its input if it has one. The row is put first: a node is never without its input.
pub struct NewNode {
    pub node: JobNode,
    pub input: Option<(ControlKey, JobInput)>,
}

/// The row that a node's `inputKey` names; `None` if it names an object in the payload bucket. Keys of the two differ in
/// how they begin, so that a version which knows only the bucket misses the input and says so.
fn input_row_key(tenant: &str, job_id: &str, input_key: &str) -> Option<ControlKey> {
    let pk = keys::job_partition(tenant, job_id);
    input_key.starts_with(keys::INPUTS).then(|| ControlKey { pk, sk: input_key.to_owned() })
}

impl JobInputs {
    /// A node to be, its input put where it fits.
    pub async fn new_node(
        &self,
        job_id: &str,
        task: &JobTask,
        event: &Event,
    ) -> Result<NewNode, ComponentError> {
        let json = serde_json::to_string(&task.input)
            .map_err(|error| StoreError::unreadable("PutItem", error.to_string()))?;
        let mut node = new_node(task, event)?;
        let mut row = None;
        match place_of(json.len()) {
            InputPlace::Node => node.input = Some(json),
            InputPlace::Row => {
                let key = keys::job_input(&event.tenant_id, job_id, &event.event_id, &node.task_id);
                node.input_key = Some(key.sk.clone());
                row = Some((key, JobInput { input: json, ttl: kept_until(event.ttl) }));
            }
            InputPlace::Bucket => {
                // A name of its own: ids of events and tasks are the tenants', and two may have the same.
                let key = format!("tasks/{}-node.json", self.emitter.new_event_id());
                self.payloads.put(&key, json.into_bytes()).await?;
                node.input_key = Some(key);
            }
        }
        Ok(NewNode { node, input: row })
    }

    /// Puts the rows of inputs.
    pub async fn put(
        &self,
        inputs: impl Iterator<Item = (ControlKey, JobInput)>,
    ) -> Result<(), ComponentError> {
        Ok(self.records.put_inputs(&inputs.collect::<Vec<_>>()).await?)
    }

    /// The static input of a node, also of one that an earlier version wrote, with its input inside.
    pub async fn node_input(
        &self,
        tenant: &str,
        job_id: &str,
        node: &JobNode,
    ) -> Result<Map<String, Value>, ComponentError> {
        let unreadable = |what: String| StoreError::unreadable("reading a task's input", what);
        let missing = |key: &str| unreadable(format!("{key} is missing"));
        let json = match (&node.input, &node.input_key) {
            (Some(json), _) => json.clone().into_bytes(),
            (None, Some(key)) => match input_row_key(tenant, job_id, key) {
                Some(row) => {
                    let row = self.records.input(&row).await?;
                    row.ok_or_else(|| missing(key))?.input.into_bytes()
                }
                None => self.payloads.get(key).await?.ok_or_else(|| missing(key))?,
            },
            (None, None) => return Ok(Map::new()),
        };
        Ok(serde_json::from_slice(&json).map_err(|error| unreadable(error.to_string()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_lies_where_its_size_puts_it_and_its_key_says_where() {
        let places = [2, NODE_BYTES, NODE_BYTES + 1, ROW_BYTES, ROW_BYTES + 1].map(place_of);
        assert_eq!(
            places,
            [InputPlace::Node, InputPlace::Node, InputPlace::Row, InputPlace::Row, InputPlace::Bucket]
        );
        let key = keys::job_input("t", "job-1", "evnt_1", "task-A");
        assert_eq!(input_row_key("t", "job-1", &key.sk), Some(key));
        assert_eq!(input_row_key("t", "job-1", "tasks/evnt_1-node.json"), None);
    }
}
