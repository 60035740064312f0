//! A fan-out: one step for each document, all of them at once, and then what they found together.
//!
//! ```sh
//! ledgerline --local run start fan_out --input '{"documents": ["one two", "two three three"]}'
//! ```

use std::collections::BTreeMap;

use ledgerline_workflow::{Ctx, Error, all};
use serde::{Deserialize, Serialize};

/// What to read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Documents {
    pub documents: Vec<String>,
}

/// How often each word was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Words {
    pub words: BTreeMap<String, u64>,
}

/// Count the words of each document in parallel, and add them up.
///
/// Each step is retried by itself. If one fails for good, the others are dropped and the run fails with its error.
pub async fn fan_out(ctx: Ctx, input: Documents) -> Result<Words, Error> {
    let counted: Vec<Words> =
        all(input.documents.iter().map(|document| ctx.step("count", || count(document)))).await?;
    let mut sum = Words::default();
    for (word, times) in counted.into_iter().flat_map(|one| one.words) {
        *sum.words.entry(word).or_default() += times;
    }
    Ok(sum)
}

/// Stands for work that takes long.
async fn count(document: &str) -> Result<Words, Error> {
    let mut found = Words::default();
    for word in document.split_whitespace() {
        *found.words.entry(word.to_lowercase()).or_default() += 1;
    }
    Ok(found)
}
