//! Prompts and sequences from JSON lines, with errors that name the line and the field.

use serde::Deserialize;
use serde_json::Value;

use crate::model::ModelText;

/// One line of a prompts file: exactly one of the three.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptLine {
    messages: Option<Vec<Value>>,
    text: Option<String>,
    token_ids: Option<Vec<u32>>,
}

/// One line of a sequences file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SequenceLine {
    token_ids: Vec<u32>,
}

fn lines<T: for<'a> Deserialize<'a>>(text: &str, what: &str) -> Result<Vec<(usize, T)>, String> {
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let value = serde_json::from_str(line).map_err(|e| format!("line {}: {e}; each line is {what}", i + 1))?;
        out.push((i + 1, value));
    }
    if out.is_empty() {
        return Err(format!("it holds no line; each line is {what}"));
    }
    Ok(out)
}

/// Token ids of every prompt of a file's text.
pub fn parse_prompts(file: &str, text: &ModelText) -> Result<Vec<Vec<u32>>, String> {
    let what = "an object with one of `messages`, `text` or `token_ids`";
    let lines: Vec<(usize, PromptLine)> = lines(file, what)?;
    let mut prompts = Vec::with_capacity(lines.len());
    for (number, line) in lines {
        let (field, ids) = match line {
            PromptLine { messages: Some(m), text: None, token_ids: None } => ("messages", text.encode_messages(&m)),
            PromptLine { messages: None, text: Some(t), token_ids: None } => ("text", text.encode_text(&t)),
            PromptLine { messages: None, text: None, token_ids: Some(ids) } => ("token_ids", Ok(ids)),
            _ => return Err(format!("line {number}: holds none or several of `messages`, `text` and `token_ids`; give exactly one")),
        };
        let ids = ids.map_err(|e| format!("line {number}: `{field}`: {e}"))?;
        if ids.is_empty() {
            return Err(format!("line {number}: `{field}` gives an empty prompt; give at least one token"));
        }
        prompts.push(ids);
    }
    Ok(prompts)
}

/// Token ids of every sequence of a file's text.
pub fn parse_sequences(file: &str) -> Result<Vec<Vec<u32>>, String> {
    let lines: Vec<(usize, SequenceLine)> = lines(file, "an object with `token_ids`")?;
    for (number, line) in &lines {
        if line.token_ids.len() < 2 {
            return Err(format!(
                "line {number}: `token_ids` holds {} tokens; the first has no log-probability, so give at least two",
                line.token_ids.len()
            ));
        }
    }
    Ok(lines.into_iter().map(|(_, line)| line.token_ids).collect())
}
