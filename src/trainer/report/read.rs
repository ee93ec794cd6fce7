//! What a run's folder holds, as series over steps.

use std::path::Path;

use serde_json::{Map, Value};

use super::ReportError;
use crate::trainer::names;

/// A number at each step that has it: (step, value), steps ascending.
pub type Points = Vec<(f64, f64)>;

/// The lines of a file of numbers.
#[derive(Clone, Debug, Default)]
pub struct Lines(Vec<Map<String, Value>>);

impl Lines {
    /// Reads a file. A last line without its end is one that is being written: it is left out.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let text = std::fs::read_to_string(path).map_err(|error| ReportError::Io { path: path.to_owned(), error })?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = Vec::new();
        for (i, line) in whole.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let fail = |problem: String| ReportError::Line { path: path.to_owned(), line: i + 1, problem };
            let map: Map<String, Value> = serde_json::from_str(line).map_err(|e| fail(e.to_string()))?;
            if map.get("step").and_then(Value::as_f64).is_none() {
                return Err(fail("it has none".into()));
            }
            lines.push(map);
        }
        Ok(Lines(lines))
    }

    /// The lines of one kind.
    pub fn of<'a>(&'a self, kind: &'a str) -> impl DoubleEndedIterator<Item = &'a Map<String, Value>> {
        self.0.iter().filter(move |line| line.get("kind").and_then(Value::as_str) == Some(kind))
    }

    /// A number over steps, from whichever kind of line has it.
    pub fn series(&self, name: &str) -> Points {
        self.0.iter().filter_map(|line| Some((number(line, "step")?, number(line, name)?))).collect()
    }

    /// A list of numbers over steps.
    pub fn lists(&self, name: &str) -> Vec<(f64, Vec<f64>)> {
        let list = |line: &Map<String, Value>| line.get(name)?.as_array().map(|values| values.iter().filter_map(Value::as_f64).collect());
        self.0.iter().filter_map(|line| Some((number(line, "step")?, list(line)?))).collect()
    }

    /// Every name of a number or a list, in the order of first appearance.
    pub fn names(&self) -> Vec<&str> {
        let mut found: Vec<&str> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for (name, value) in self.0.iter().flatten() {
            if name != "step" && name != "kind" && (value.is_number() || value.is_array()) && seen.insert(name) {
                found.push(name);
            }
        }
        found
    }
}

/// A number of a line.
pub fn number(line: &Map<String, Value>, name: &str) -> Option<f64> {
    line.get(name)?.as_f64()
}

/// What a run's folder holds.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its name, from its configuration or its folder.
    pub name: String,
    /// metrics.jsonl.
    pub metrics: Lines,
    /// timings.jsonl; empty where there is none.
    pub timings: Lines,
    /// config.toml; empty where there is none.
    pub config: String,
}

impl Run {
    /// Reads a run's folder.
    pub fn read(dir: &Path) -> Result<Self, ReportError> {
        let metrics = Lines::read(&dir.join("metrics.jsonl"))?;
        let absent = |e: &ReportError| matches!(e, ReportError::Io { error, .. } if error.kind() == std::io::ErrorKind::NotFound);
        let timings = match Lines::read(&dir.join("timings.jsonl")) {
            Err(e) if absent(&e) => Lines::default(),
            read => read?,
        };
        let config = std::fs::read_to_string(dir.join("config.toml")).unwrap_or_default();
        let table: toml::Table = config.parse().unwrap_or_default();
        let named = table.get("run").and_then(|run| run.get("name")).and_then(toml::Value::as_str).filter(|name| !name.is_empty());
        let folder = || dir.file_name().map_or("run".to_owned(), |name| name.to_string_lossy().into_owned());
        Ok(Run { name: named.map_or_else(folder, str::to_owned), metrics, timings, config })
    }
}

/// The held-out pass rates of a run: for every k, ascending, its names with their slices ("" for all problems), in order.
pub fn pass_rates(lines: &Lines) -> Vec<(u64, Vec<(String, String)>)> {
    let mut found: std::collections::BTreeMap<u64, Vec<(String, String)>> = Default::default();
    for name in lines.names() {
        let Some(rest) = name.strip_prefix("eval/pass@") else { continue };
        let (k, slice) = rest.split_once('/').unwrap_or((rest, ""));
        if let Ok(k) = k.parse() {
            found.entry(k).or_default().push((name.to_owned(), slice.to_owned()));
        }
    }
    found.into_iter().collect()
}

/// What a number is, for a caption.
pub fn about(name: &str) -> String {
    names::help(name)
}
