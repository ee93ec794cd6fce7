//! The page about a run, and the one that compares runs.

use std::path::{Path, PathBuf};

/// Why a page was not written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file.
    #[error("{}: {error}; give the folder of a training run (run.dir), and a page in a folder that can be written", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What.
        error: std::io::Error,
    },
    /// A line of numbers.
    #[error("{}, line {line}: is not a JSON object with a step ({problem}); cut the file before this line, or resume the run, which does", path.display())]
    Line {
        /// Where.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What.
        problem: String,
    },
}

/// One run of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Arm {
    /// What differs between the arms, in a word.
    pub name: String,
    /// Its seed: arms are paired by it.
    pub seed: u64,
    /// Its learning rate: arms are compared within each.
    pub lr: f64,
    /// Its folder.
    pub run_dir: PathBuf,
}

/// Writes the page about the run in `run_dir`.
pub fn write(run_dir: &Path, page: &Path) -> Result<(), ReportError> {
    let path = run_dir.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).map_err(|error| ReportError::Io { path, error })?;
    let html = format!("<!doctype html><title>Run</title><p>{} lines.</p>", text.lines().count());
    std::fs::write(page, html).map_err(|error| ReportError::Io { path: page.to_owned(), error })
}

/// Writes the page that compares runs, and gives its tables as plain text.
pub fn write_comparison(arms: &[Arm], page: &Path) -> Result<String, ReportError> {
    let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
    let table = names.join("\n");
    std::fs::write(page, format!("<!doctype html><title>Comparison</title><pre>{table}</pre>"))
        .map_err(|error| ReportError::Io { path: page.to_owned(), error })?;
    Ok(table)
}
