//! The token ids at which a model's samples end.
//!
//! generation_config.json wins over config.json, because that is where chat models list all of theirs (`[2, 128131]`, say) while
//! config.json keeps the base model's one. The `eos_token` that tokenizer_config.json names is one in any case: it is what the chat
//! template closes a turn with.

use std::path::Path;

use super::special_tokens::read_object;
use super::tokenizer::{TextError, Tokenizer};

/// Stop token ids of a model folder, each once: those of the configuration first, in its order.
pub fn stop_token_ids(folder: &Path, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, TextError> {
    let mut ids = Vec::new();
    for file in ["generation_config.json", "config.json"] {
        ids = eos_token_ids(&folder.join(file))?;
        if !ids.is_empty() {
            break;
        }
    }
    let named = tokenizer.and_then(|tokenizer| tokenizer.token_id(tokenizer.special_tokens().get("eos_token")?));
    ids.extend(named);
    let mut seen = Vec::new();
    ids.retain(|id| {
        !seen.contains(id) && {
            seen.push(*id);
            true
        }
    });
    Ok(ids)
}

/// The field `eos_token_id` of one file: a number, a list of numbers, or nothing.
fn eos_token_ids(path: &Path) -> Result<Vec<u32>, TextError> {
    use serde_json::Value;
    let Some(object) = read_object(path)? else { return Ok(Vec::new()) };
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = match object.get("eos_token_id") {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(id).collect(),
        Some(value) => id(value).map(|id| vec![id]),
    };
    ids.ok_or_else(|| TextError::Field {
        path: path.to_owned(),
        field: "eos_token_id".into(),
        problem: "must be a token id or a list of token ids; correct it or leave it out".into(),
    })
}
