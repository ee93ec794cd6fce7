//! Verifiers: text in, a verdict out.
//!
//! A request names a reward per prompt ([`Spec`]); it is compiled once, with its reference answer ("gold"), into a [`Verifier`], which
//! then judges every sample of the prompt on a [`Pool`] of bounded size. A verdict is never a silent zero: what could not be judged says so.

pub mod math;
mod pool;

pub use pool::Pool;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::field::{self, FieldError};

/// Names of the reward kinds this server judges.
pub const KINDS: [&str; 1] = ["math"];

/// A prompt's reward as the request names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Spec {
    /// The last number of the answer equals `answer`: 1, else 0. See [`math`].
    Math {
        /// The reference answer, a number.
        answer: String,
    },
}

impl Spec {
    /// Reads a prompt's `reward`; error paths are relative to it.
    pub fn read(value: &Value) -> Result<Self, FieldError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Math {
            #[serde(rename = "kind")]
            _kind: String,
            answer: String,
        }
        let supported = KINDS.join(", ");
        match value.get("kind") {
            Some(Value::String(kind)) if kind == "math" => {
                let Math { answer, .. } = field::parse(value).map_err(|error| match error.path.is_empty() {
                    true if value.get("answer").is_none() => FieldError::new("answer", "is missing; give the reference answer as a string"),
                    _ => error,
                })?;
                Ok(Spec::Math { answer })
            }
            Some(other) => Err(FieldError::new("kind", format!("is {other}, which this server does not judge; supported: {supported}"))),
            None if value.is_object() => Err(FieldError::new("kind", format!("is missing; supported: {supported}"))),
            None => Err(FieldError::new(
                "",
                format!("must be an object such as {{\"kind\": \"math\", \"answer\": \"72\"}}; supported kinds: {supported}"),
            )),
        }
    }

    /// Compiles the reward; refuses a reference answer that cannot be used.
    pub fn compile(&self) -> Result<Verifier, BadGold> {
        match self {
            Spec::Math { answer } => math::Number::parse_gold(answer).map(Verifier::Math).ok_or_else(|| BadGold {
                field: "answer",
                problem: format!("is {:?}, which is not one number; give it as in \"72\", \"-1.5\" or \"3/4\"", shortened(answer)),
            }),
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

/// What a verifier says of one answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The reward.
    Scored(f64),
    /// Not judged yet; retries remain.
    Unscored,
    /// The answer itself exceeds a limit of the verifier: negative or skipped, as the request's `limit_counts` says.
    Limit(String),
    /// It cannot be judged: neither positive nor negative.
    Failed(String),
}

impl Verdict {
    /// A short name for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Scored(_) => "scored",
            Verdict::Unscored => "unscored",
            Verdict::Limit(_) => "limit",
            Verdict::Failed(_) => "failed",
        }
    }
}

/// A compiled reward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verifier {
    /// Compares the answer's number with this one.
    Math(math::Number),
}

impl Verifier {
    /// The reward's kind, as requests and metrics name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Verifier::Math(_) => "math",
        }
    }

    /// Judges one answer.
    pub fn judge(&self, text: &str) -> Verdict {
        match self {
            Verifier::Math(gold) => math::judge(gold, text),
        }
    }
}

/// At most 80 characters of `text`.
fn shortened(text: &str) -> String {
    if text.chars().count() <= 80 { text.to_owned() } else { text.chars().take(77).chain("...".chars()).collect() }
}
