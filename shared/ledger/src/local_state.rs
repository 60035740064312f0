//! `local.json`: how other processes find a running local mode.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// Where a local mode answers, and the key to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct LocalState {
    pub aws_endpoint: String,
    pub api_url: String,
    pub api_key: String,
    pub tenant: String,
    pub stage: String,
    pub region: String,
}

/// Why a local mode was not found.
#[derive(Debug, thiserror::Error)]
pub enum NoLocalState {
    /// There is no file, or this process may not read it.
    #[error("no local mode has written {}: start one with `ledgerline local`, or name its folder with --data", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is not the state of a local mode.
    #[error("{} does not hold the state of a local mode", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

impl LocalState {
    /// The file in a data folder.
    pub fn file(data: &Path) -> PathBuf {
        data.join("local.json")
    }

    /// What the local mode with this folder wrote when it was ready.
    pub fn read(data: &Path) -> Result<Self, NoLocalState> {
        let path = Self::file(data);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(NoLocalState::Missing { path, source }),
        };
        serde_json::from_str(&text).map_err(|source| NoLocalState::Unreadable { path, source })
    }
}
