//! The rows of a file: read, checked before any is judged, and judged on several threads with the verdicts in the file's order.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::VerifyError;
use crate::field::{self, Object};
use crate::verify::{Answer, Question, Reference, read_id};

/// Rows that a thread takes, on average, before their verdicts are passed on.
const ROWS_OF_A_THREAD: usize = 256;
/// Most characters of a gold that are kept to be shown.
const GOLD_CHARS: usize = 60;

/// A row as the caller writes it; other fields are passed over.
#[derive(Deserialize)]
struct Written {
    id: Option<Value>,
    gold: Option<Value>,
    response: String,
    kind: Option<String>,
    options: Option<Object<Map<String, Value>>>,
    reward: Option<Value>,
    expected: Option<bool>,
}

/// A row that can be judged.
struct Row {
    id: Option<Value>,
    gold: String,
    question: Question,
    response: String,
    expected: Option<bool>,
}

/// A row that was judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Where it stands in the file, from 1.
    pub line: usize,
    /// Its id; its position in decimal, from 0, where it has none.
    pub id: Value,
    /// Whether the row gave the id.
    pub has_id: bool,
    /// Its gold or reward, for people; long ones are cut.
    pub gold: String,
    /// The verdict.
    pub answer: Answer,
    /// Whether the verdict should be correct, if the row says.
    pub expected: Option<bool>,
}

/// A file of rows.
pub struct Rows<'t> {
    name: String,
    /// Line numbers and lines, blank ones left out.
    lines: Vec<(usize, &'t str)>,
    /// The command's kind and options, for rows that do not give theirs.
    usual: Reference,
    threads: usize,
}

impl<'t> Rows<'t> {
    /// The rows of `text`, which `name` calls.
    pub fn new(name: &str, text: &'t str, usual: Reference, threads: usize) -> Result<Self, VerifyError> {
        // Some editors begin a file with a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines: Vec<(usize, &str)> = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()).collect();
        match lines.is_empty() {
            true => Err(VerifyError::Input(format!("{name}: holds no rows; give at least one line"))),
            false => Ok(Rows { name: name.to_owned(), threads: threads.clamp(1, lines.len()), lines, usual }),
        }
    }

    /// What the file is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there are none, which [`Rows::new`] refuses.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Threads that judge.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Refuses the first row that cannot be used.
    pub fn check(&self) -> Result<(), VerifyError> {
        self.in_order(|position| self.read(position).map(drop), |read| read)
    }

    /// Judges every row; `each` hears of them in order.
    pub fn judge(&self, mut each: impl FnMut(Judged) -> Result<(), VerifyError>) -> Result<(), VerifyError> {
        let judge = |position: usize| {
            let Row { id, gold, question, response, expected } = self.read(position)?;
            let answer = question.judge(&response).map_err(|problem| self.wrong(position, problem))?;
            let has_id = id.is_some();
            let id = id.unwrap_or_else(|| position.to_string().into());
            Ok(Judged { line: self.lines[position].0, id, has_id, gold, answer, expected })
        };
        self.in_order(judge, |judged| judged.and_then(&mut each))
    }

    fn wrong(&self, position: usize, problem: impl std::fmt::Display) -> VerifyError {
        VerifyError::Input(format!("{}:{}: {problem}", self.name, self.lines[position].0))
    }

    fn read(&self, position: usize) -> Result<Row, VerifyError> {
        let line = self.lines[position].1;
        let mut reader = serde_json::Deserializer::from_str(line);
        let read: Result<Object<Written>, _> = serde_path_to_error::deserialize(&mut reader);
        let Object(written) = read.map_err(|error| match error.inner().classify() {
            serde_json::error::Category::Data => self.wrong(position, named(field::of_serde(error.path(), error.inner()))),
            _ => self.wrong(position, not_json(error.inner())),
        })?;
        reader.end().map_err(|error| self.wrong(position, not_json(&error)))?;
        field::refuse_duplicate_keys(line).map_err(|error| self.wrong(position, named(error)))?;
        let Written { id, gold, response, kind, options, reward, expected } = written;
        let id = read_id(id).map_err(|error| self.wrong(position, error))?;
        let mut reference = Reference { gold, kind, options: options.map(|Object(options)| options), reward };
        let is_usual = reference.kind.is_none() || reference.kind == self.usual.kind;
        if reference.reward.is_none() && reference.gold.is_none() && self.usual.reward.is_some() {
            reference.reward = self.usual.reward.clone();
        } else if reference.reward.is_none() && is_usual {
            let mut options = self.usual.options.clone().unwrap_or_default();
            options.extend(reference.options.take().unwrap_or_default());
            reference = Reference { kind: self.usual.kind.clone(), options: Some(options), ..reference };
        }
        let shown = reference.gold.as_ref().or(reference.reward.as_ref()).map_or_else(String::new, shown);
        let question = reference.read().map_err(|error| self.wrong(position, error))?;
        Ok(Row { id, gold: shown, question, response, expected })
    }

    /// Does `work` for every row on all threads, and `each` on this one with what it gives, in order, until that fails.
    fn in_order<T: Send + Sync>(
        &self,
        work: impl Fn(usize) -> T + Sync,
        mut each: impl FnMut(T) -> Result<(), VerifyError>,
    ) -> Result<(), VerifyError> {
        if self.threads == 1 {
            return (0..self.len()).try_for_each(|position| each(work(position)));
        }
        let batch = ROWS_OF_A_THREAD * self.threads;
        for from in (0..self.len()).step_by(batch) {
            let given: Vec<OnceLock<T>> = (from..self.len().min(from + batch)).map(|_| OnceLock::new()).collect();
            let next = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for _ in 0..self.threads {
                    scope.spawn(|| {
                        loop {
                            let offset = next.fetch_add(1, Ordering::Relaxed);
                            let Some(place) = given.get(offset) else { break };
                            // Nobody else has this place.
                            let _ = place.set(work(from + offset));
                        }
                    });
                }
            });
            given.into_iter().filter_map(OnceLock::into_inner).try_for_each(&mut each)?;
        }
        Ok(())
    }
}

/// A field's error as words; one about the whole row has no path.
fn named(error: field::FieldError) -> String {
    if error.path.is_empty() { format!("the row {}", error.problem) } else { error.to_string() }
}

fn not_json(error: &serde_json::Error) -> String {
    // Every line is the reader's first; its column is of use.
    format!("is not JSON: {}; each line is one object", error.to_string().replace(" at line 1 column ", " at column "))
}

fn shown(gold: &Value) -> String {
    let text = gold.as_str().map_or_else(|| gold.to_string(), str::to_owned);
    let cut: String = text.chars().take(GOLD_CHARS).collect();
    if cut.len() < text.len() { cut + "..." } else { cut }
}
