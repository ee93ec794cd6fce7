//! Messages in, token ids out, and no message can pretend to be another.
//!
//! This is the way from messages to a prompt: it renders the chat template and encodes the text without added special tokens, as the
//! template has written its own. Text of special tokens inside messages is encoded as ordinary text (see [`super::shield`]); for
//! messages without any, the ids are those of the rendered text.

use serde_json::{Map, Value};

use super::template::{ChatTemplate, TemplateError};
use super::tokenizer::{TextError, Tokenizer};

/// Why messages gave no prompt.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The template failed or refused.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The rendered text could not be encoded.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The messages hold every character that could serve as a mark.
    #[error("the messages hold every private-use character from U+E000 to U+F8FF; remove some of them")]
    NoMark,
}

/// A rendered and encoded conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatPrompt {
    /// What the template made of the messages.
    pub text: String,
    /// Its token ids.
    pub token_ids: Vec<u32>,
}

/// Renders and encodes messages. `extra` are further variables of the template (`tools`, `enable_thinking`, ...).
pub fn encode_chat(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Value],
    add_generation_prompt: bool,
    extra: &Map<String, Value>,
) -> Result<ChatPrompt, ChatError> {
    let break_char = break_char(template, messages, extra)?;
    let mut broken = false;
    let mut guard = |value: &Value| {
        guarded(value, &mut |text| {
            let guarded = tokenizer.shield().broken(text, break_char);
            broken |= guarded.is_some();
            guarded.unwrap_or_else(|| text.to_owned())
        })
    };
    let guarded_messages: Vec<Value> = messages.iter().map(&mut guard).collect();
    let guarded_extra: Map<String, Value> = extra.iter().map(|(name, value)| (name.clone(), guard(value))).collect();

    let rendered = template.render(&guarded_messages, add_generation_prompt, &guarded_extra)?;
    let (text, token_ids) = if broken {
        tokenizer.shield().encode(tokenizer, &rendered, break_char)?
    } else {
        let token_ids = tokenizer.encode(&rendered, false)?;
        (rendered, token_ids)
    };
    Ok(ChatPrompt { text, token_ids })
}

/// A private-use character that neither the messages nor the template use, as itself or as a JSON escape.
fn break_char(template: &ChatTemplate, messages: &[Value], extra: &Map<String, Value>) -> Result<char, ChatError> {
    let mut texts: Vec<String> = messages.iter().chain(extra.values()).map(Value::to_string).collect();
    texts.extend(template.sources().map(str::to_owned));
    let unused = |c: &char| {
        let escape = format!("\\u{:04x}", u32::from(*c));
        texts.iter().all(|text| !text.contains(*c) && !text.contains(&escape))
    };
    ('\u{E000}'..='\u{F8FF}').find(unused).ok_or(ChatError::NoMark)
}

/// A copy of a JSON value with every string, keys included, passed through `change`.
fn guarded(value: &Value, change: &mut impl FnMut(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(text)),
        Value::Array(items) => Value::Array(items.iter().map(|item| guarded(item, change)).collect()),
        Value::Object(fields) => Value::Object(fields.iter().map(|(key, item)| (change(key), guarded(item, change))).collect()),
        other => other.clone(),
    }
}
