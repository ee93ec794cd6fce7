//! Typed reading of one JSON object's fields, with a sentence that names the field for everything that does not fit.
//!
//! A field that is null counts as missing, as it does for transformers.

use std::path::Path;

use serde_json::{Map, Value};

use crate::model::error::ModelError;
use crate::model::files::cut;

/// One JSON object of a configuration file.
pub(super) struct Fields<'a> {
    path: &'a Path,
    /// Name of the object within the file, with a final dot; empty for the file's own object.
    prefix: String,
    object: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The file's own object.
    pub(super) fn root(path: &'a Path, object: &'a Map<String, Value>) -> Self {
        Fields { path, prefix: String::new(), object }
    }

    /// The error for a field: `problem` continues a sentence that begins with the field's name.
    pub(super) fn error(&self, key: &str, problem: impl Into<String>) -> ModelError {
        ModelError::config(self.path, format!("{}{key}", self.prefix), problem)
    }

    /// Whether the field is there at all, be it null.
    pub(super) fn contains(&self, key: &str) -> bool {
        self.object.contains_key(key)
    }

    /// The field's value, unless it is missing or null.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// The first field whose value is an object.
    pub(super) fn nested(&self) -> Option<&'a str> {
        self.object.iter().find(|(_, value)| value.is_object()).map(|(key, _)| key.as_str())
    }

    /// A nested object.
    pub(super) fn object(&self, key: &str) -> Result<Option<Fields<'a>>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Fields { path: self.path, prefix: format!("{}{key}.", self.prefix), object })),
            Some(other) => Err(self.error(key, format!("is {}; it must be an object or null", show(other)))),
        }
    }

    /// A whole number between `min` and `max`.
    pub(super) fn size(&self, key: &str, min: usize, max: usize) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) if (min..=max).contains(&n) => Ok(Some(n)),
            _ => Err(self.error(key, format!("is {}; it must be a whole number from {min} to {max}", show(value)))),
        }
    }

    /// As [`Fields::size`], for a field that has no sensible default.
    pub(super) fn required_size(&self, key: &str, min: usize, max: usize) -> Result<usize, ModelError> {
        self.size(key, min, max)?.ok_or_else(|| self.error(key, format!("is missing; give a whole number from {min} to {max}")))
    }

    /// A number between `min` and `max`.
    pub(super) fn number(&self, key: &str, min: f64, max: f64) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if (min..=max).contains(&x) => Ok(Some(x)),
            _ => Err(self.error(key, format!("is {}; it must be a number from {min:?} to {max:?}", show(value)))),
        }
    }

    /// A boolean; false if missing.
    pub(super) fn flag(&self, key: &str) -> Result<bool, ModelError> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.error(key, format!("is {}; it must be true or false", show(other)))),
        }
    }

    /// A string.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.error(key, format!("is {}; it must be a string", show(other)))),
        }
    }

    /// A list of strings.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let texts = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        texts.map(Some).ok_or_else(|| self.error(key, format!("is {}; it must be a list of strings", show(value))))
    }

    /// Token ids below `vocab_size`: one number, a list of numbers, or nothing.
    pub(super) fn token_ids(&self, key: &str, vocab_size: usize) -> Result<Vec<u32>, ModelError> {
        let values = match self.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list.as_slice(),
            Some(one) => std::slice::from_ref(one),
        };
        let id = |value: &Value| {
            let id = value.as_u64().filter(|&id| id < vocab_size as u64).and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| {
                let last = vocab_size - 1;
                self.error(
                    key,
                    format!("holds {}; it must be a token id from 0 to {last} (vocab_size is {vocab_size}) or null", show(value)),
                )
            })
        };
        values.iter().map(id).collect()
    }
}

/// A JSON value for an error sentence, cut to a readable length.
pub(super) fn show(value: &Value) -> String {
    cut(&value.to_string(), 80)
}

/// A string of the file for an error sentence: quoted, escaped and cut like any other value.
pub(super) fn quote(text: &str) -> String {
    show(&Value::from(text))
}
