//! A run with its entities, as the API shows it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Hook, Run, RunHistory, Step, Wait};
use crate::RunEntity;

/// A run with everything in it, as the API shows it: the fields of the run, and `steps`, `hooks` and `waits`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunView<'a> {
    /// The run itself.
    #[serde(flatten)]
    pub run: Cow<'a, Run>,
    /// Its steps, in the order of their creation.
    pub steps: Cow<'a, [Step]>,
    /// Its hooks, likewise.
    pub hooks: Cow<'a, [Hook]>,
    /// Its waits, likewise.
    pub waits: Cow<'a, [Wait]>,
}

/// One entity under the name of its kind: `{"step": {…}}`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EntityView<'a> {
    /// The run itself.
    Run(&'a Run),
    /// A step.
    Step(&'a Step),
    /// A hook.
    Hook(&'a Hook),
    /// A wait.
    Wait(&'a Wait),
}

impl RunHistory {
    /// The whole run; `None` if the log is empty.
    pub fn view(&self) -> Option<RunView<'_>> {
        self.run().map(|run| RunView {
            run: Cow::Borrowed(run),
            steps: Cow::Borrowed(self.steps().as_slice()),
            hooks: Cow::Borrowed(self.hooks().as_slice()),
            waits: Cow::Borrowed(self.waits().as_slice()),
        })
    }

    /// One entity of it; `None` if there is none with this id.
    pub fn entity(&self, entity: RunEntity, id: &str) -> Option<EntityView<'_>> {
        match entity {
            RunEntity::Run => self.run().filter(|run| run.run_id.as_str() == id).map(EntityView::Run),
            RunEntity::Step => self.steps().get(id).map(EntityView::Step),
            RunEntity::Hook => self.hooks().get(id).map(EntityView::Hook),
            RunEntity::Wait => self.waits().get(id).map(EntityView::Wait),
        }
    }
}
