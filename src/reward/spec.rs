//! A reward as a request names it. What [`Spec`] serialises to is what [`Spec::read`] reads back: the store restores jobs that way.
//!
//! A field that no server could use (a pattern that does not compile, a schema that is none, a bad URL) is refused when it is read; a
//! reference answer is checked when the reward is compiled, because the request may say that a bad one only fails its group.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::choice::Choice;
use super::exact::Exact;
use super::pattern::Pattern;
use super::schema::Schema;
use super::webhook::Webhook;
use super::{Verifier, number, shortened};
use crate::field::{self, FieldError};

/// Names of the reward kinds this server judges.
pub const KINDS: [&str; 7] = ["math", "exact", "regex", "choice", "json", "webhook", "pull"];

/// Longest deadline of a webhook's call, in seconds.
const WEBHOOK_SECONDS: f64 = 3600.0;
/// Longest time that a sample waits for its score, in seconds.
const PULL_SECONDS: f64 = 366.0 * 86_400.0;

/// A prompt's reward as the request names it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Spec {
    /// The last number of the answer equals `answer`: 1, else 0. See [`number`].
    Math {
        /// The reference answer, a number.
        answer: String,
    },
    /// The answer is `answer`. See [`exact`](super::exact).
    Exact {
        /// The reference answer.
        answer: String,
        /// Upper and lower case are the same.
        ignore_case: bool,
        /// White space around the answer does not count.
        trim: bool,
    },
    /// `pattern` matches somewhere in the answer. See [`pattern`](super::pattern).
    Regex {
        /// A regular expression.
        pattern: String,
        /// Upper and lower case are the same.
        ignore_case: bool,
    },
    /// The choice that the answer settles on is `answer`. See [`choice`](super::choice).
    Choice {
        /// The right choice.
        answer: String,
        /// All choices.
        choices: Vec<String>,
    },
    /// The answer's JSON is valid under `schema`. See [`schema`](super::schema).
    Json {
        /// A JSON schema.
        schema: Value,
    },
    /// A grader over HTTP gives the reward. See [`webhook`](super::webhook).
    Webhook {
        /// Where the grader listens.
        url: String,
        /// How long one call may take, in seconds.
        timeout_s: f64,
        /// Passed to the grader with every sample.
        data: Value,
    },
    /// The client posts the scores itself.
    Pull {
        /// A sample without a score for so many seconds is failed; none waits for ever.
        timeout_s: Option<f64>,
    },
}

impl Spec {
    /// Reads a prompt's `reward`; error paths are relative to it.
    pub fn read(value: &Value) -> Result<Self, FieldError> {
        let supported = KINDS.join(", ");
        let kind = match value.get("kind") {
            Some(Value::String(kind)) if KINDS.contains(&kind.as_str()) => kind.as_str(),
            Some(other) => {
                let other = shortened(&other.to_string());
                return Err(FieldError::new("kind", format!("is {other}, which this server does not judge; supported: {supported}")));
            }
            None if value.is_object() => return Err(FieldError::new("kind", format!("is missing; supported: {supported}"))),
            None => {
                let like = "{\"kind\": \"math\", \"answer\": \"72\"}";
                return Err(FieldError::new("", format!("must be an object such as {like}; supported kinds: {supported}")));
            }
        };
        let spec = match kind {
            "math" => fields::<Math>(value).map(|Math { answer }| Spec::Math { answer }),
            "exact" => fields::<ExactFields>(value).map(|f| Spec::Exact { answer: f.answer, ignore_case: f.ignore_case, trim: f.trim }),
            "regex" => fields::<Regex>(value).map(|f| Spec::Regex { pattern: f.pattern, ignore_case: f.ignore_case }),
            "choice" => fields::<ChoiceFields>(value).map(|f| Spec::Choice { answer: f.answer, choices: f.choices }),
            "json" => fields::<Json>(value).map(|Json { schema }| Spec::Json { schema }),
            "webhook" => fields::<Hook>(value).map(|f| Spec::Webhook { url: f.url, timeout_s: f.timeout_s, data: f.data }),
            _ => fields::<Pull>(value).map(|Pull { timeout_s }| Spec::Pull { timeout_s }),
        };
        let spec = spec.map_err(|error| match (error.path.as_str(), error.problem.as_str()) {
            ("answer", "is missing") => FieldError::new("answer", "is missing; give the reference answer as a string"),
            _ => error,
        })?;
        spec.check()?;
        Ok(spec)
    }

    /// Refuses what no server could use; reference answers are left to [`Spec::compile`].
    fn check(&self) -> Result<(), FieldError> {
        match self {
            Spec::Math { .. } | Spec::Exact { .. } => Ok(()),
            Spec::Regex { pattern, ignore_case } => {
                Pattern::new(pattern, *ignore_case).map(drop).map_err(|problem| FieldError::new("pattern", problem))
            }
            Spec::Choice { choices, .. } => Choice::check(choices),
            Spec::Json { schema } => Schema::new(schema).map(drop).map_err(|problem| FieldError::new("schema", problem)),
            Spec::Webhook { url, timeout_s, .. } => {
                Webhook::parse_url(url).map_err(|problem| FieldError::new("url", problem))?;
                seconds(*timeout_s, WEBHOOK_SECONDS).map(drop)
            }
            Spec::Pull { timeout_s } => timeout_s.map_or(Ok(()), |timeout| seconds(timeout, PULL_SECONDS).map(drop)),
        }
    }

    /// Compiles the reward; refuses a reference answer that cannot be used.
    pub fn compile(&self) -> Result<Verifier, BadGold> {
        let bad = |field| move |problem| BadGold { field, problem };
        let bad_timeout = |error: FieldError| BadGold { field: "timeout_s", problem: error.problem };
        match self {
            Spec::Math { answer } => number::Number::parse_gold(answer).map(Verifier::Math).ok_or_else(|| BadGold {
                field: "answer",
                problem: format!("is {:?}, which is not one number; give it as in \"72\", \"-1.5\" or \"3/4\"", shortened(answer)),
            }),
            Spec::Exact { answer, ignore_case, trim } => {
                Exact::new(answer, *ignore_case, *trim).map(Verifier::Exact).map_err(bad("answer"))
            }
            Spec::Regex { pattern, ignore_case } => Pattern::new(pattern, *ignore_case).map(Verifier::Regex).map_err(bad("pattern")),
            Spec::Choice { answer, choices } => {
                Choice::check(choices).map_err(|error| BadGold { field: "choices", problem: error.problem })?;
                Choice::new(answer, choices).map(Verifier::Choice).map_err(bad("answer"))
            }
            Spec::Json { schema } => Schema::new(schema).map(Verifier::Json).map_err(bad("schema")),
            Spec::Webhook { url, timeout_s, data } => {
                let timeout = seconds(*timeout_s, WEBHOOK_SECONDS).map_err(bad_timeout)?;
                Webhook::new(url, timeout, data.clone()).map(Verifier::Webhook).map_err(bad("url"))
            }
            Spec::Pull { timeout_s } => {
                let timeout = timeout_s.map(|timeout| seconds(timeout, PULL_SECONDS)).transpose().map_err(bad_timeout)?;
                Ok(Verifier::Pull { timeout })
            }
        }
    }
}

/// A reference answer that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct BadGold {
    /// The field of the reward that holds it.
    pub field: &'static str,
    /// What is wrong with it and what would be right.
    pub problem: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Math {
    answer: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExactFields {
    answer: String,
    #[serde(default)]
    ignore_case: bool,
    #[serde(default = "yes")]
    trim: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Regex {
    pattern: String,
    #[serde(default)]
    ignore_case: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChoiceFields {
    answer: String,
    #[serde(default = "four_letters")]
    choices: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    schema: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Hook {
    url: String,
    #[serde(default = "half_a_minute")]
    timeout_s: f64,
    #[serde(default)]
    data: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pull {
    #[serde(default)]
    timeout_s: Option<f64>,
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
fn fields<T: DeserializeOwned>(value: &Value) -> Result<T, FieldError> {
    let mut fields = value.clone();
    if let Value::Object(fields) = &mut fields {
        fields.shift_remove("kind");
    }
    field::parse(&fields)
}

fn seconds(timeout_s: f64, most: f64) -> Result<Duration, FieldError> {
    // Below a millisecond no call can be answered.
    match (0.001..=most).contains(&timeout_s) {
        true => Ok(Duration::from_secs_f64(timeout_s)),
        false => Err(FieldError::new("timeout_s", format!("is {timeout_s}; give seconds from 0.001 to {most}"))),
    }
}
