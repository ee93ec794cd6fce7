//! The training data: JSON lines in a seeded order.
//!
//! A pass over the data is a permutation that (seed, pass) alone decide; the cursor is a count of lines taken since the start, so a
//! checkpoint keeps one number. A step's prompts never reach across the end of a pass: ids stay unique within a job.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::batch::shuffle;

/// Why the data cannot be used: file, line and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {problem}", path.display(), line.map(|n| format!(":{n}")).unwrap_or_default())]
pub struct DataError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub problem: String,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its id; its position in the file in decimal where it has none.
    pub id: String,
    /// What a request's prompt holds: the input, the reward, the metadata.
    pub prompt: Map<String, Value>,
    /// Token ids of the prompt, where they are given.
    pub token_ids: Option<Vec<u32>>,
    /// Token ids of the one right answer, where they are given.
    pub answer_ids: Option<Vec<u32>>,
    /// The same as text, where it is given.
    pub answer: Option<String>,
    /// The group of problems that it is averaged with.
    pub slice: Option<String>,
    /// The file and the line that it was read from.
    pub place: String,
}

/// All lines, and the order in which they are taken.
#[derive(Clone, Debug)]
pub struct Data {
    lines: Vec<Line>,
    seed: u64,
    shuffled: bool,
    /// The permutation of the pass last asked for.
    order: (u64, Vec<u32>),
}

/// Fields that go into a request as they are.
const OF_A_PROMPT: [&str; 5] = ["messages", "text", "token_ids", "reward", "metadata"];

impl Data {
    /// Reads a file of JSON lines. Empty lines are passed over.
    pub fn read(path: &Path, seed: u64, shuffled: bool) -> Result<Self, DataError> {
        let fail = |line: Option<usize>, problem: String| DataError { path: path.to_owned(), line, problem };
        let text = std::fs::read_to_string(path).map_err(|e| fail(None, format!("cannot be read: {e}; check the path")))?;
        let mut lines = Vec::new();
        let mut ids = std::collections::HashMap::new();
        for (i, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let at = Some(i + 1);
            let value: Map<String, Value> =
                serde_json::from_str(text).map_err(|e| fail(at, format!("is no JSON object ({e}); correct or remove it")))?;
            let mut line = read_line(value, lines.len()).map_err(|problem| fail(at, problem))?;
            line.place = format!("{}, line {}", path.display(), i + 1);
            if let Some(first) = ids.insert(line.id.clone(), i + 1) {
                return Err(fail(at, format!("has the id {:?} of line {first}; ids must differ, or leave them out", line.id)));
            }
            lines.push(line);
        }
        if lines.is_empty() {
            return Err(fail(None, "holds no lines; give at least one".into()));
        }
        Ok(Data { lines, seed, shuffled, order: (u64::MAX, Vec::new()) })
    }

    /// All lines, as the file has them.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// The next lines from `cursor` on: at most `wanted`, and none of the next pass.
    pub fn take(&mut self, cursor: u64, wanted: usize) -> Vec<&Line> {
        let n = self.lines.len() as u64;
        let (pass, first) = (cursor / n, (cursor % n) as usize);
        if self.order.0 != pass {
            let mut order: Vec<u32> = (0..n as u32).collect();
            if self.shuffled {
                shuffle(self.seed, pass, &mut order);
            }
            self.order = (pass, order);
        }
        let end = (first + wanted).min(self.lines.len());
        self.order.1[first..end].iter().map(|&i| &self.lines[i as usize]).collect()
    }
}

fn read_line(mut value: Map<String, Value>, position: usize) -> Result<Line, String> {
    let id = match value.remove("id") {
        None | Some(Value::Null) => position.to_string(),
        Some(Value::String(id)) => id,
        Some(Value::Number(id)) => id.to_string(),
        Some(_) => return Err("`id` must be a string".into()),
    };
    let ids = |name: &str| -> Result<Option<Vec<u32>>, String> {
        match value.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(ids) => serde_json::from_value(ids.clone()).map(Some).map_err(|_| format!("`{name}` must be a list of token ids")),
        }
    };
    let (token_ids, answer_ids) = (ids("token_ids")?, ids("answer_ids")?);
    let text = |name: &str| match value.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`{name}` must be a string")),
    };
    let (answer, slice) = (text("answer")?, text("slice")?);
    let inputs = OF_A_PROMPT[..3].iter().filter(|name| value.contains_key(**name)).count();
    if inputs != 1 {
        return Err(format!("has {inputs} of `messages`, `text` and `token_ids`; give exactly one"));
    }
    let prompt = value.into_iter().filter(|(name, _)| OF_A_PROMPT.contains(&name.as_str())).collect();
    Ok(Line { id, prompt, token_ids, answer_ids, answer, slice, place: String::new() })
}
