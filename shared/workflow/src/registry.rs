//! The workflows that a runner has, by name and version.

use std::{collections::BTreeMap, fmt, future::Future, sync::Arc};

use futures::future::FutureExt;
use ledgerline_engine::{Code, Engine, Program};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Ctx, Error, Services, json};

type Start = dyn Fn(Ctx, Value) -> Result<Code, Error> + Send + Sync;

/// One version of a workflow.
#[derive(Clone)]
pub struct Workflow {
    name: String,
    version: String,
    start: Arc<Start>,
}

impl Workflow {
    /// The code of a workflow under a name and a version.
    pub fn new<F, Fut, I, O>(name: impl Into<String>, version: impl Into<String>, code: F) -> Self
    where
        F: Fn(Ctx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, Error>> + Send + 'static,
        I: DeserializeOwned + Send + 'static,
        O: Serialize,
    {
        let code = Arc::new(code);
        let start = move |ctx: Ctx, input: Value| {
            let input: I = json::read("input", input).map_err(|error| error.code("bad_input"))?;
            let code = Arc::clone(&code);
            // The first poll makes the call, so a panic of the call is caught there.
            let running = async move {
                let output = code(ctx, input).await?;
                json::write("output", &output).map_err(|error| error.code("bad_output"))
            };
            Ok(running.boxed())
        };
        Self { name: name.into(), version: version.into(), start: Arc::new(start) }
    }

    /// Its name, as runs use it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its version. A run stays with the version that began it.
    pub fn version(&self) -> &str {
        &self.version
    }
}

impl Program for Workflow {
    type Services = Services;

    fn version(&self) -> &str {
        &self.version
    }

    fn start(
        &self,
        engine: Arc<Engine>,
        services: Option<Arc<Services>>,
        input: Value,
    ) -> Result<Code, Error> {
        (self.start)(Ctx::new(engine, services), input)
    }
}

impl fmt::Debug for Workflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Workflow({} {})", self.name, self.version)
    }
}

/// The workflows that a runner has.
///
/// ```
/// use ledgerline_workflow::{Ctx, Error, Workflows};
///
/// async fn greet(_: Ctx, name: String) -> Result<String, Error> {
///     Ok(format!("Hello, {name}!"))
/// }
///
/// let workflows = Workflows::new().register("greet", "1", greet);
/// assert_eq!(workflows.names().collect::<Vec<_>>(), ["greet"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Workflows {
    /// The last version of each is the newest.
    versions: BTreeMap<String, Vec<Workflow>>,
}

impl Workflows {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a version of a workflow. New runs take the version that was registered last; older ones
    /// are for the runs that they began. The same name and version again replaces what was there.
    pub fn register<F, Fut, I, O>(self, name: impl Into<String>, version: impl Into<String>, code: F) -> Self
    where
        F: Fn(Ctx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, Error>> + Send + 'static,
        I: DeserializeOwned + Send + 'static,
        O: Serialize,
    {
        self.with(Workflow::new(name, version, code))
    }

    /// Adds a version of a workflow.
    pub fn with(mut self, workflow: Workflow) -> Self {
        let versions = self.versions.entry(workflow.name.clone()).or_default();
        versions.retain(|known| known.version != workflow.version);
        versions.push(workflow);
        self
    }

    /// A version of a workflow; the newest if `version` is `None`.
    pub fn get(&self, name: &str, version: Option<&str>) -> Option<&Workflow> {
        let versions = self.versions.get(name)?;
        match version {
            Some(version) => versions.iter().find(|known| known.version == version),
            None => versions.last(),
        }
    }

    /// The names of the workflows, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.versions.keys().map(String::as_str)
    }

    /// The names with their versions, in the order in which they were registered.
    pub fn versions(&self) -> Vec<(String, Vec<String>)> {
        let versions = |known: &[Workflow]| known.iter().map(|one| one.version.clone()).collect();
        self.versions.iter().map(|(name, known)| (name.clone(), versions(known))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_runs_take_the_version_that_was_registered_last() {
        async fn code(_: Ctx, _: ()) -> Result<(), Error> {
            Ok(())
        }
        let workflows = Workflows::new()
            .register("b", "2", code)
            .register("a", "1", code)
            .register("b", "1", code)
            .register("b", "2", code);
        assert_eq!(workflows.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(workflows.get("b", None).unwrap().version(), "2");
        assert_eq!(workflows.get("b", Some("1")).unwrap().version(), "1");
        assert!(workflows.get("b", Some("3")).is_none());
        assert!(workflows.get("c", None).is_none());
        let versions = [("a".to_owned(), vec!["1".to_owned()]), ("b".into(), vec!["1".into(), "2".into()])];
        assert_eq!(workflows.versions(), versions);
    }
}
