//! The special tokens that a model folder names: `bos_token`, `eos_token` and their like.
//!
//! Chat templates read them as variables, and the tokenizer treats their text as control tokens. They stand in tokenizer_config.json;
//! older folders keep them in special_tokens_map.json. A value is a string, an object with the string in `content`, or null.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::tokenizer::TextError;

/// Fields that name one special token each.
const FIELDS: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Special tokens by the name of their field, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpecialTokens {
    named: Vec<(String, String)>,
    additional: Vec<String>,
}

impl SpecialTokens {
    /// Reads them from a model folder; none if the folder has neither file.
    pub fn from_folder(folder: &Path) -> Result<SpecialTokens, TextError> {
        let config = read_object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let map = read_object(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
        let lookup = |field: &str| config.get(field).filter(|value| !value.is_null()).or_else(|| map.get(field));
        let mut tokens = SpecialTokens::default();
        for field in FIELDS {
            if let Some(text) = lookup(field).and_then(token_text) {
                tokens.named.push((field.to_owned(), text));
            }
        }
        // Models with tokens of their own name them here (`image_token`, say), as an object; other folders give a plain list.
        match lookup("extra_special_tokens") {
            Some(Value::Object(extra)) => {
                tokens.named.extend(extra.iter().filter_map(|(name, value)| Some((name.clone(), token_text(value)?))));
            }
            Some(Value::Array(extra)) => tokens.additional.extend(extra.iter().filter_map(token_text)),
            _ => {}
        }
        if let Some(Value::Array(additional)) = lookup("additional_special_tokens") {
            tokens.additional.extend(additional.iter().filter_map(token_text));
        }
        Ok(tokens)
    }

    /// The text of the token that a field names, for example `bos_token`.
    pub fn get(&self, field: &str) -> Option<&str> {
        self.named.iter().find(|(name, _)| name == field).map(|(_, text)| text.as_str())
    }

    /// Every token that some field names, with the field's name.
    pub fn named(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// Tokens that are listed without a name of their own.
    pub fn additional(&self) -> &[String] {
        &self.additional
    }

    /// The text of every special token that the folder tells of.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(|(_, text)| text.as_str()).chain(self.additional.iter().map(String::as_str))
    }
}

/// The text of a token written as a string or as an object with `content`.
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// A JSON object from a file; `None` if there is no such file.
pub(super) fn read_object(path: &Path) -> Result<Option<Map<String, Value>>, TextError> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(TextError::Json { path: path.to_owned(), reason: "its top level is not an object".into() }),
        Err(error) => Err(TextError::Json { path: path.to_owned(), reason: error.to_string() }),
    }
}

/// The text of a file; `None` if there is no such file.
pub(super) fn read_text(path: &Path) -> Result<Option<String>, TextError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TextError::Read { path: PathBuf::from(path), reason: error.to_string() }),
    }
}
