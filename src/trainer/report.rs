//! The page about a run, and the one that compares runs: self-contained HTML with plots, from the files in the runs' folders.
//!
//! [`read`] takes the files, [`run_page`] and [`comparison`] say what is shown, [`compare`] has the comparison's numbers, [`plot`] and
//! [`markup`] draw. A page needs no network and no program: styles, drawings and the few lines of script are in it.

pub mod compare;
pub mod comparison;
pub mod markup;
pub mod plot;
pub mod read;
pub mod run_page;

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
    #[error("{}, line {line}: is not a JSON object with a step ({problem}); resume the run, which cuts the file back to its last checkpoint", path.display())]
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
    save(page, &run_page::run_page(&read::Run::read(run_dir)?))
}

/// Writes the page that compares runs, and gives its tables as plain text.
pub fn write_comparison(arms: &[Arm], page: &Path) -> Result<String, ReportError> {
    let curves = arms.iter().map(comparison::curve).collect::<Result<Vec<_>, _>>()?;
    let (html, text) = comparison::comparison_page(&curves);
    save(page, &html)?;
    Ok(text)
}

fn save(page: &Path, html: &str) -> Result<(), ReportError> {
    let fail = |error| ReportError::Io { path: page.to_owned(), error };
    if let Some(folder) = page.parent() {
        std::fs::create_dir_all(folder).map_err(fail)?;
    }
    std::fs::write(page, html).map_err(fail)
}
