//! The fields of each kind as a request writes them, with their defaults.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::field::{self, FieldError};
use crate::reward::exact::Rules;
use crate::reward::math::Mark;

#[derive(Deserialize)]
pub(super) struct Math {
    pub(super) answer: String,
    /// [`math::Options`](super::super::math::Options), read on their own, so that an unknown one is named.
    #[serde(flatten)]
    pub(super) options: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExactFields {
    pub(super) answer: String,
    #[serde(default)]
    pub(super) ignore_case: bool,
    #[serde(default = "yes")]
    pub(super) trim: bool,
    #[serde(default)]
    pub(super) letters_and_digits: bool,
    #[serde(default)]
    pub(super) mark: Option<Mark>,
}

impl ExactFields {
    pub(super) fn rules(&self) -> Rules {
        let ExactFields { ignore_case, trim, letters_and_digits, mark, .. } = *self;
        Rules { ignore_case, trim, letters_and_digits, mark }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Regex {
    pub(super) pattern: String,
    #[serde(default)]
    pub(super) ignore_case: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChoiceFields {
    pub(super) answer: String,
    #[serde(default = "four_letters")]
    pub(super) choices: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Json {
    pub(super) schema: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hook {
    pub(super) url: String,
    #[serde(default = "half_a_minute")]
    pub(super) timeout_s: f64,
    #[serde(default)]
    pub(super) data: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pull {
    #[serde(default)]
    pub(super) timeout_s: Option<f64>,
}

fn yes() -> bool {
    true
}

fn four_letters() -> Vec<String> {
    ["A", "B", "C", "D"].map(str::to_owned).to_vec()
}

fn half_a_minute() -> f64 {
    30.0
}

/// The fields beside `kind`.
pub(super) fn fields<T: DeserializeOwned>(value: &Value) -> Result<T, FieldError> {
    let mut fields = value.clone();
    if let Value::Object(fields) = &mut fields {
        fields.shift_remove("kind");
    }
    field::parse(&fields)
}
