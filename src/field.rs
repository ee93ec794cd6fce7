//! A value that a caller sent and that cannot be used, named by its path, and the parsing that finds the path.
//!
//! Everything that reads JSON from outside goes through [`parse`], so that every refusal says which field it is about.

use std::collections::HashSet;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
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
    if let Some((field, _)) = named("duplicate field `") {
        let path = if path == field || path.ends_with(&format!(".{field}")) { path } else { join(&path, field) };
        return FieldError::new(path, "is given twice; give it once");
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

/// Refuses a text in which an object holds one key twice: readers disagree about which of the two counts. Structs refuse that by
/// themselves; this also finds it in values that are read as they are.
pub fn refuse_duplicate_keys(text: &str) -> Result<(), FieldError> {
    walk(&mut serde_json::Deserializer::from_str(text))
}

/// Path of the first place at which these bytes cannot be read as JSON; empty at the root.
pub fn first_problem(bytes: &[u8]) -> String {
    walk(&mut serde_json::Deserializer::from_slice(bytes)).err().map_or_else(String::new, |error| error.path)
}

fn walk<'de, R: serde_json::de::Read<'de>>(reader: &mut serde_json::Deserializer<R>) -> Result<(), FieldError> {
    match serde_path_to_error::deserialize::<_, DistinctKeys>(reader) {
        Ok(DistinctKeys) => Ok(()),
        Err(error) => Err(of_serde(error.path(), error.inner())),
    }
}

/// Any value whose objects hold no key twice.
struct DistinctKeys;

impl<'de> Deserialize<'de> for DistinctKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Anything;
        impl<'de> Visitor<'de> for Anything {
            type Value = DistinctKeys;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_bool<E>(self, _: bool) -> Result<DistinctKeys, E> {
                Ok(DistinctKeys)
            }

            fn visit_i64<E>(self, _: i64) -> Result<DistinctKeys, E> {
                Ok(DistinctKeys)
            }

            fn visit_u64<E>(self, _: u64) -> Result<DistinctKeys, E> {
                Ok(DistinctKeys)
            }

            fn visit_f64<E>(self, _: f64) -> Result<DistinctKeys, E> {
                Ok(DistinctKeys)
            }

            fn visit_str<E>(self, _: &str) -> Result<DistinctKeys, E> {
                Ok(DistinctKeys)
            }

            fn visit_unit<E>(self) -> Result<DistinctKeys, E> {
                Ok(DistinctKeys)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<DistinctKeys, A::Error> {
                while items.next_element::<DistinctKeys>()?.is_some() {}
                Ok(DistinctKeys)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DistinctKeys, A::Error> {
                let mut keys = HashSet::new();
                while let Some(key) = map.next_key::<String>()? {
                    if keys.contains(&key) {
                        let shown: String = key.chars().take(100).collect();
                        return Err(A::Error::custom(format!("holds the key {shown:?} twice; give it once")));
                    }
                    keys.insert(key);
                    map.next_value::<DistinctKeys>()?;
                }
                Ok(DistinctKeys)
            }
        }
        deserializer.deserialize_any(Anything)
    }
}

/// Whether the text is good JSON that holds a number no field can take.
pub fn is_out_of_range(error: &serde_json::Error) -> bool {
    error.to_string().starts_with("number out of range")
}

/// Whether `text` is good JSON in which a name was wanted and something else than a string was found: serde_json calls that a mistake in the
/// JSON.
pub fn is_wrong_type(error: &serde_json::Error, text: &str) -> bool {
    error.to_string().starts_with("expected value") && serde_json::from_str::<IgnoredAny>(text).is_ok()
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
