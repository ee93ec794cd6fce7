//! The answer is JSON that is valid under a schema.
//!
//! What is read: the whole answer, or else its last complete block fenced by ```` ```json ````. A schema is compiled without looking at the
//! network or at files, and its patterns run on a linear engine. An answer that is too long, too deep, or that holds a number no machine
//! takes is a [`Ruling::Limit`]; a text without JSON is no answer.

use std::sync::Arc;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ReferencingError, Validator};
use serde_json::Value;

use super::pattern::COMPILED_BYTES;
use super::{Found, Ruling, shortened};
use crate::field;

/// Longest answer that is read, in bytes.
const ANSWER_BYTES: usize = 1 << 20;
/// Longest schema, in bytes.
const SCHEMA_BYTES: usize = 64 * 1024;

/// A compiled schema.
#[derive(Clone)]
pub struct Schema(Arc<Validator>);

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Schema")
    }
}

impl Schema {
    /// Says why a schema cannot be used.
    pub fn new(schema: &Value) -> Result<Self, String> {
        if !schema.is_object() && !schema.is_boolean() {
            return Err(format!("is {}, which is no schema; give an object", shortened(&schema.to_string())));
        }
        let bytes = schema.to_string().len();
        if bytes > SCHEMA_BYTES {
            return Err(format!("is {bytes} bytes long; at most {SCHEMA_BYTES} are compiled"));
        }
        let patterns = PatternOptions::regex().size_limit(COMPILED_BYTES).dfa_size_limit(COMPILED_BYTES);
        let validator = jsonschema::options().offline().with_pattern_options(patterns).build(schema);
        validator.map(|validator| Schema(Arc::new(validator))).map_err(|error| {
            if let ValidationErrorKind::Referencing(ReferencingError::Unretrievable { uri, .. }) = error.kind() {
                let uri = shortened(uri);
                return format!("refers to {uri}, which is not looked up; put it under \"$defs\" and refer to \"#/$defs/NAME\"");
            }
            let reason: String = error.to_string().chars().take(300).collect();
            let place = error.instance_path().to_string();
            format!("cannot be compiled{}: {reason}", if place.is_empty() { place } else { format!(" (at {place})") })
        })
    }

    /// Whether the answer's JSON is valid.
    pub fn judge(&self, text: &str) -> Found {
        let limit = |what: String| Found::new(Ruling::Limit, None, what);
        if text.len() > ANSWER_BYTES {
            return limit(format!("{} bytes, of which at most {ANSWER_BYTES} are read as JSON", text.len()));
        }
        let (mut json, mut read) = (text, serde_json::from_str::<Value>(text));
        if let (true, Some(block)) = (read.is_err(), last_block(text)) {
            (json, read) = (block, serde_json::from_str(block));
        }
        match read {
            Ok(value) => Found::new(Ruling::of(self.0.is_valid(&value)), Some(json.trim()), "json"),
            Err(error) if field::is_out_of_range(&error) => limit("JSON with a number out of range".into()),
            // The reader gives no kind for it.
            Err(error) if error.to_string().starts_with("recursion limit exceeded") => limit("JSON of more than 127 levels".into()),
            Err(_) => Found::new(Ruling::NoAnswer, None, "json"),
        }
    }
}

/// What stands in the last complete block that opens with ```` ```json ````.
fn last_block(text: &str) -> Option<&str> {
    let mut last = None;
    let mut open: Option<(usize, bool)> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let fence = line.trim();
        match open {
            Some((from, json)) if fence == "```" => {
                last = if json { Some(&text[from..at]) } else { last };
                open = None;
            }
            None if fence.starts_with("```") => {
                open = Some((at + line.len(), fence.trim_start_matches('`').trim().eq_ignore_ascii_case("json")));
            }
            _ => {}
        }
        at += line.len();
    }
    last
}
