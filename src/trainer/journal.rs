//! metrics.jsonl and timings.jsonl: one JSON object a line, appended as steps end.
//!
//! metrics.jsonl holds nothing that a clock decides: two runs of one configuration write the same bytes, however often they were killed
//! and resumed. What clocks say goes to timings.jsonl. A checkpoint keeps the length of both; on resume they are cut back to it, so a
//! step that was lost is written once.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

/// One of the two files.
#[derive(Debug)]
pub struct Journal {
    file: File,
    len: u64,
}

impl Journal {
    /// Opens a file and cuts it back to `len` bytes; a file shorter than that was damaged.
    pub fn open(path: &Path, len: u64) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let there = file.metadata()?.len();
        if there < len {
            let problem = format!("{} has {there} bytes and the checkpoint knows of {len}; it was cut by somebody else", path.display());
            return Err(io::Error::other(problem));
        }
        file.set_len(len)?;
        file.seek(SeekFrom::Start(len))?;
        Ok(Journal { file, len })
    }

    /// Appends a line.
    pub fn append(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        self.file.write_all(text.as_bytes())?;
        self.len += text.len() as u64;
        Ok(())
    }

    /// Its length in bytes once it is on disk.
    pub fn sync(&mut self) -> io::Result<u64> {
        self.file.sync_data()?;
        Ok(self.len)
    }
}

/// The numbers of one step, in the order in which they were put.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Numbers(pub Map<String, Value>);

impl Numbers {
    /// A line of this kind at this step.
    pub fn new(step: u64, kind: &str) -> Self {
        let mut map = Map::new();
        map.insert("step".into(), step.into());
        map.insert("kind".into(), kind.into());
        Numbers(map)
    }

    /// Puts a number; one that is not finite is left out, since JSON has none.
    pub fn put(&mut self, name: &str, value: impl Into<f64>) {
        let value: f64 = value.into();
        if let Some(number) = number(value) {
            self.0.insert(name.to_owned(), number);
        }
    }

    /// Puts the mean, where there is one.
    pub fn put_mean(&mut self, name: &str, values: impl IntoIterator<Item = f64>) {
        let (mut sum, mut n) = (0.0, 0u64);
        for value in values {
            sum += value;
            n += 1;
        }
        if n > 0 {
            self.put(name, sum / n as f64);
        }
    }

    /// Every number, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().filter(|(name, _)| *name != "step").filter_map(|(name, value)| Some((name.as_str(), value.as_f64()?)))
    }
}

fn number(value: f64) -> Option<Value> {
    // Counts read better without a point.
    if value.fract() == 0.0 && value.abs() < 9e15 && !(value == 0.0 && value.is_sign_negative()) {
        return Some(Value::from(value as i64));
    }
    serde_json::Number::from_f64(value).map(Value::Number)
}
