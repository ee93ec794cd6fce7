//! Problems as lines of JSON, one object a line: prompts with a reward for the server and the trainer, and demonstrations for fine-tuning.

use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::WriteError;
use super::task::Problem;

/// How a line gives its prompt (and a demonstration its answer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `text` (and `answer`).
    Text,
    /// `token_ids` (and `answer_ids`).
    TokenIds,
}

/// A prompt with its reward: `{"id", "text" or "token_ids", "reward": {"kind": "exact", "answer"}, "answer", "slice"}`.
pub fn prompt_line(problem: &Problem, form: Form) -> Value {
    let mut line = with_prompt(problem, form);
    line.insert("reward".into(), json!({"kind": "exact", "answer": problem.answer_text}));
    line.insert("answer".into(), json!(problem.answer_text));
    line.insert("slice".into(), json!(problem.slice));
    line.into()
}

/// A demonstration: `{"id", "text" or "token_ids", "answer" or "answer_ids", "slice"}`. The ids end with the end token; where the answer is text, the
/// trainer adds it.
pub fn demonstration_line(problem: &Problem, form: Form) -> Value {
    let mut line = with_prompt(problem, form);
    match form {
        Form::Text => line.insert("answer".into(), json!(problem.answer_text)),
        Form::TokenIds => line.insert("answer_ids".into(), json!(problem.answer_ids)),
    };
    line.insert("slice".into(), json!(problem.slice));
    line.into()
}

fn with_prompt(problem: &Problem, form: Form) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("id".into(), json!(problem.id));
    match form {
        Form::Text => line.insert("text".into(), json!(problem.prompt_text)),
        Form::TokenIds => line.insert("token_ids".into(), json!(problem.prompt_ids)),
    };
    line
}

/// Writes lines to a file, over what was there.
pub fn write(path: &Path, lines: impl IntoIterator<Item = Value>) -> Result<(), WriteError> {
    let all = || -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        for line in lines {
            writeln!(file, "{line}")?;
        }
        file.flush()
    };
    all().map_err(WriteError::at(path))
}
