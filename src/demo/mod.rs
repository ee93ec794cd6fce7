//! The demonstration: a task that a model of 103,744 parameters learns in minutes on a processor, and that model itself.
//!
//! `task` makes problems as a pure function of (seed, index); `data` writes them as the trainer and the server read them; `model` holds the
//! files of the model's folder inside the binary, and `evaluate` says how well it does. `init` says how the model began, `warm` how it was made and
//! `random` where every number comes from: all of it is the project's own arithmetic, so that the same seed gives the same bytes on any machine.

use std::path::{Path, PathBuf};

pub mod data;
pub mod evaluate;
pub mod init;
pub mod model;
pub mod random;
pub mod task;
pub mod warm;

/// A file of the demonstration cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot be written ({source}); check the folder, its permissions and the free space", path.display())]
pub struct WriteError {
    /// The file or folder.
    pub path: PathBuf,
    /// What the system said.
    pub source: std::io::Error,
}

impl WriteError {
    fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| WriteError { path, source }
    }
}
