//! The prompts file: lines as the server takes them, or rows that the arguments turn into such. Every refusal names file and line.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::RolloutError;
use super::args::{RolloutArgs, object};

const FIELDS: [&str; 6] = ["id", "messages", "text", "token_ids", "reward", "metadata"];

/// The prompts of a file, and where they stand in it.
#[derive(Clone, Debug)]
pub struct PromptsFile {
    /// As the request takes them, each with an id.
    pub prompts: Vec<Value>,
    /// `file:line` of each.
    pub lines: Vec<String>,
}

/// Reads `--prompts`.
pub fn read(args: &RolloutArgs) -> Result<PromptsFile, RolloutError> {
    let path = &args.prompts;
    let text = std::fs::read_to_string(path)
        .map_err(|e| RolloutError::Input(format!("{}: cannot be read: {e}; check --prompts", path.display())))?;
    parse(path, &text, args)
}

/// Reads the text of a prompts file.
pub fn parse(path: &Path, text: &str, args: &RolloutArgs) -> Result<PromptsFile, RolloutError> {
    let reward = args.reward.as_deref().map(|text| object("--reward", text)).transpose()?;
    let mut file = PromptsFile { prompts: Vec::new(), lines: Vec::new() };
    let mut ids: HashMap<String, usize> = HashMap::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()).take(args.limit.unwrap_or(usize::MAX)) {
        let place = format!("{}:{number}", path.display());
        let wrong = |problem: String| RolloutError::Input(format!("{place}: {problem}"));
        let row = match serde_json::from_str(line) {
            Ok(Value::Object(row)) => row,
            Ok(_) => return Err(wrong("must be a JSON object".into())),
            Err(e) => return Err(wrong(format!("is not JSON: {e}; each line is one object"))),
        };
        crate::field::refuse_duplicate_keys(line).map_err(|e| wrong(e.to_string()))?;
        // The id is the position unless the row has one, as the server would choose.
        let id = id_of(&row).map_err(wrong)?.unwrap_or_else(|| file.prompts.len().to_string());
        if let Some(other) = ids.insert(id.clone(), number) {
            return Err(wrong(format!(
                "has the id {id:?}, as line {other}; ids must differ (a line without id is called by its position)"
            )));
        }
        file.prompts.push(prompt(id, row, reward.as_ref(), args).map_err(wrong)?);
        file.lines.push(place);
    }
    if file.prompts.is_empty() {
        return Err(RolloutError::Input(format!("{}: holds no prompt; give at least one line", path.display())));
    }
    Ok(file)
}

fn id_of(row: &Map<String, Value>) -> Result<Option<String>, String> {
    match row.get("id") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) => Ok(Some(id.clone())),
        Some(Value::Number(id)) => Ok(Some(id.to_string())),
        Some(_) => Err("id must be a string or a number".into()),
    }
}

fn prompt(id: String, mut row: Map<String, Value>, default: Option<&Map<String, Value>>, args: &RolloutArgs) -> Result<Value, String> {
    let mut prompt = Map::new();
    prompt.insert("id".into(), id.into());
    let answer = args.answer_field.as_deref().map(|field| answer(&row, field)).transpose()?;
    match &args.prompt_field {
        Some(field) => {
            let question =
                row.get(field).and_then(Value::as_str).ok_or_else(|| format!("has no text in {field:?}, which --prompt-field names"))?;
            let words = args.prompt_template.as_ref().map_or_else(|| question.to_owned(), |template| template.replace("{}", question));
            match args.raw_text {
                true => prompt.insert("text".into(), words.into()),
                false => prompt.insert("messages".into(), json!([{"role": "user", "content": words}])),
            };
        }
        None => {
            let strange = |key: &&String| !FIELDS.contains(&key.as_str()) && Some(key.as_str()) != args.answer_field.as_deref();
            if let Some(key) = row.keys().find(strange) {
                let shown: String = key.chars().take(100).collect();
                return Err(format!(
                    "has {shown:?}, which is no field of a prompt; the fields are {} (or name the question with --prompt-field)",
                    FIELDS.join(", ")
                ));
            }
            let inputs: Vec<&str> = ["messages", "text", "token_ids"].into_iter().filter(|field| row.contains_key(*field)).collect();
            let [input] = inputs[..] else {
                return Err(format!(
                    "has {} of messages, text and token_ids; give exactly one, or name the question with --prompt-field",
                    inputs.len()
                ));
            };
            for field in [input, "metadata"] {
                if let Some(value) = row.remove(field) {
                    prompt.insert(field.into(), value);
                }
            }
        }
    }
    let mut reward = match row.remove("reward") {
        Some(Value::Object(reward)) => reward,
        Some(_) => return Err("reward must be an object such as {\"kind\": \"math\", \"answer\": \"72\"}".into()),
        None => default
            .cloned()
            .ok_or("has no reward; give one, or one for all lines with --reward '{\"kind\": \"math\"}' --answer-field answer")?,
    };
    if let Some(answer) = answer {
        reward.insert("answer".into(), answer);
    }
    prompt.insert("reward".into(), reward.into());
    Ok(prompt.into())
}

/// A reference answer; verifiers take text, so a number is written out.
fn answer(row: &Map<String, Value>, field: &str) -> Result<Value, String> {
    match row.get(field) {
        Some(Value::Number(number)) => Ok(number.to_string().into()),
        Some(value) if !value.is_null() => Ok(value.clone()),
        _ => Err(format!("has no {field:?}, which --answer-field names")),
    }
}
