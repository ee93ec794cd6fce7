//! A value that a caller sent and that cannot be used, named by its path, and the parsing that finds the path.
//!
//! Everything that reads JSON from outside goes through [`parse`], so that every refusal says which field it is about.

use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// Which field cannot be used and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct FieldError {
    /// Path of the field as the caller wrote it, for example `prompts[3].reward.answer`; empty for the whole value.
    pub path: String,
    /// Says what is wrong and what would be right; reads on from the field's name.
    pub problem: String,
}

impl FieldError {
    /// A field error.
    pub fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        FieldError { path: path.into(), problem: problem.into() }
    }

    /// The same error seen from the value that holds this one in its field `prefix`.
    pub fn within(self, prefix: &str) -> Self {
        FieldError { path: join(prefix, &self.path), problem: self.problem }
    }
}

/// `prefix.path`, where either may be empty and `path` may start with an index.
pub fn join(prefix: &str, path: &str) -> String {
    match (prefix, path) {
        ("", path) => path.to_owned(),
        (prefix, "") => prefix.to_owned(),
        (prefix, path) if path.starts_with('[') => format!("{prefix}{path}"),
        (prefix, path) => format!("{prefix}.{path}"),
    }
}

/// Reads `value` as a `T`; the error's path is relative to `value`.
pub fn parse<T: DeserializeOwned>(value: &Value) -> Result<T, FieldError> {
    serde_path_to_error::deserialize(value).map_err(|error| of_serde(error.path(), error.inner()))
}

/// A reader's complaint, with the field it is about: a missing or unknown field is named itself, not what should hold it.
pub fn of_serde(path: &serde_path_to_error::Path, error: &serde_json::Error) -> FieldError {
    let path = path_of(path);
    let message = error.to_string().replace(" at line 1 column 0", "");
    let named = |prefix: &str| message.strip_prefix(prefix).and_then(|rest| rest.split_once('`'));
    if let Some((field, _)) = named("missing field `") {
        return FieldError::new(join(&path, field), "is missing");
    }
    if let Some((field, rest)) = named("unknown field `") {
        let path = if path == field || path.ends_with(&format!(".{field}")) { path } else { join(&path, field) };
        return FieldError::new(path, format!("is not a field here{}; remove it", rest.trim_end()));
    }
    for prefix in ["invalid type: ", "invalid value: "] {
        if let Some((found, expected)) = message.strip_prefix(prefix).and_then(|rest| rest.split_once(", expected ")) {
            let expected = expected.replace("u32", "a whole number from 0 to 4294967295").replace("u64", "a whole number, 0 or more");
            return FieldError::new(path, format!("is {found}; expected {expected}"));
        }
    }
    FieldError::new(path, message)
}

/// Whether the text is good JSON that holds a number no field can take.
pub fn is_out_of_range(error: &serde_json::Error) -> bool {
    error.to_string().starts_with("number out of range")
}

/// The path as text: empty at the root, and never longer than a sentence can bear.
fn path_of(path: &serde_path_to_error::Path) -> String {
    let text = path.to_string();
    // "?" stands for a place that the reader did not get to.
    match text.as_str() {
        "." | "?" => String::new(),
        text => text.trim_end_matches(".?").chars().take(200).collect(),
    }
}

/// A `T` written as an object. Serde alone would also take an array and read the fields by their position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectOnly<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectOnly<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(ObjectOnly(PhantomData))
    }
}
