//! The output file: one group a line. A line is written by one call, so whoever reads the file meanwhile sees whole lines, and a run that
//! was ended leaves at most its last line torn; `--resume` cuts that off and goes on.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::RolloutError;
use super::tally::GroupHead;

/// The file, and which prompts' groups it holds.
pub struct Output {
    path: PathBuf,
    file: File,
    written: HashSet<String>,
    found: Vec<GroupHead>,
}

impl Output {
    /// Opens the file: a new one, unless told to go on with one (`resume`) or to replace it.
    pub fn open(path: &Path, resume: bool, overwrite: bool) -> Result<Self, RolloutError> {
        let wrong = |problem: String| RolloutError::Output(format!("{}: {problem}", path.display()));
        let cannot = |e: std::io::Error| wrong(format!("cannot be written: {e}; choose another --out"));
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if resume || overwrite {
            options.create(true).truncate(overwrite);
        } else {
            options.create_new(true);
        }
        let mut file = options.open(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => {
                wrong("is there already; choose another --out, go on with --resume, or replace it with --overwrite".into())
            }
            _ => cannot(e),
        })?;
        let (mut written, mut found) = (HashSet::new(), Vec::new());
        if resume {
            let mut text = String::new();
            file.read_to_string(&mut text)
                .map_err(|e| wrong(format!("cannot be read: {e}; --resume goes on with groups of an earlier run")))?;
            let whole = text.rfind('\n').map_or(0, |at| at + 1);
            for (number, line) in (1..).zip(text[..whole].lines()) {
                let head: GroupHead = serde_json::from_str(line)
                    .map_err(|e| wrong(format!("line {number} is no group: {e}; --resume goes on with groups of an earlier run alone")))?;
                written.insert(head.prompt_id.clone());
                found.push(head);
            }
            file.set_len(whole as u64).map_err(cannot)?;
            std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(cannot)?;
        }
        Ok(Output { path: path.to_owned(), file, written, found })
    }

    /// Groups that were there already.
    pub fn found(&self) -> &[GroupHead] {
        &self.found
    }

    /// Writes a group, unless the file holds it; gives whether it was written.
    pub fn write(&mut self, prompt_id: &str, line: &str) -> Result<bool, RolloutError> {
        if !self.written.insert(prompt_id.to_owned()) {
            return Ok(false);
        }
        self.file.write_all(format!("{line}\n").as_bytes()).map_err(|e| self.failed(&e))?;
        Ok(true)
    }

    /// Puts everything on the disk.
    pub fn finish(&mut self) -> Result<(), RolloutError> {
        // What is no file (/dev/stdout) cannot be synced, and need not be.
        match self.file.sync_all() {
            Err(e) if e.kind() != std::io::ErrorKind::InvalidInput => Err(self.failed(&e)),
            _ => Ok(()),
        }
    }

    fn failed(&self, e: &std::io::Error) -> RolloutError {
        RolloutError::Output(format!(
            "{}: a group could not be written: {e}; mend that and go on with --job-id and --resume",
            self.path.display()
        ))
    }
}
