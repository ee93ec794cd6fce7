//! A reward as a request names it. What [`Spec`] serialises to is what [`Spec::read`] reads back: the store restores jobs that way.
//!
//! A field that no server could use (a pattern that does not compile, a schema that is none, a bad URL) is refused when it is read; a
//! reference answer is checked when the reward is compiled, because the request may say that a bad one only fails its group.

mod parts;
mod wire;

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use parts::Nesting;
pub use parts::Weighted;
use wire::{ChoiceFields, ExactFields, Hook, Json, Math, Pull, Regex, fields};

use super::choice::Choice;
use super::compose::Rule;
use super::exact::{Exact, Rules};
use super::format::Form;
use super::length::Length;
use super::pattern::Pattern;
use super::schema::Schema;
use super::webhook::Webhook;
use super::{Verifier, math, shortened};
use crate::field::{self, FieldError};

/// Names of the reward kinds this server judges.
pub const KINDS: [&str; 12] = ["math", "exact", "regex", "choice", "json", "format", "length", "all", "any", "weighted", "webhook", "pull"];

/// Longest deadline of a webhook's call, in seconds.
const WEBHOOK_SECONDS: f64 = 3600.0;
/// Longest time that a sample waits for its score, in seconds.
const PULL_SECONDS: f64 = 366.0 * 86_400.0;

/// A prompt's reward as the request names it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Spec {
    /// The answer is equivalent to `answer`, as mathematics. See [`math`].
    Math {
        /// The reference answer.
        answer: String,
        /// [`math::Options`] as they were written.
        #[serde(flatten)]
        options: Map<String, Value>,
    },
    /// The answer is `answer`. See [`exact`](super::exact).
    Exact {
        /// The reference answer.
        answer: String,
        /// What counts.
        #[serde(flatten)]
        rules: Rules,
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
    /// The text has this form: 1, else 0. See [`format`](super::format).
    Format(Form),
    /// A penalty for long answers, from 0 down to -1. See [`length`](super::length).
    Length(Length),
    /// 1 if every part is positive, else 0. See [`compose`](super::compose).
    All {
        /// The parts.
        parts: Vec<Spec>,
    },
    /// 1 if one of the parts is positive, else 0. See [`compose`](super::compose).
    Any {
        /// The parts.
        parts: Vec<Spec>,
    },
    /// The sum of the parts' rewards, each times its weight. See [`compose`](super::compose).
    Weighted {
        /// The parts.
        parts: Vec<Weighted>,
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
        Spec::read_within(value, &mut { Nesting::OUTSIDE })
    }

    /// The same for a reward that may be a part of another.
    fn read_within(value: &Value, nesting: &mut Nesting) -> Result<Self, FieldError> {
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
            "math" => fields::<Math>(value).map(|Math { answer, options }| Spec::Math { answer, options }),
            "exact" => fields::<ExactFields>(value).map(|f| Spec::Exact { rules: f.rules(), answer: f.answer }),
            "regex" => fields::<Regex>(value).map(|f| Spec::Regex { pattern: f.pattern, ignore_case: f.ignore_case }),
            "choice" => fields::<ChoiceFields>(value).map(|f| Spec::Choice { answer: f.answer, choices: f.choices }),
            "json" => fields::<Json>(value).map(|Json { schema }| Spec::Json { schema }),
            "format" => fields(value).map(Spec::Format),
            "length" => fields(value).map(Spec::Length),
            "all" => parts::read(value, nesting).map(|parts| Spec::All { parts }),
            "any" => parts::read(value, nesting).map(|parts| Spec::Any { parts }),
            "weighted" => parts::read_weighted(value, nesting).map(|parts| Spec::Weighted { parts }),
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
            // Parts were checked when they were read.
            Spec::Math { options, .. } => math_options(options).map(drop),
            Spec::Exact { .. } | Spec::All { .. } | Spec::Any { .. } | Spec::Weighted { .. } => Ok(()),
            Spec::Format(form) => form.check(),
            Spec::Length(length) => length.check(),
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
        let bad = |field: &'static str| move |problem| BadGold { field: field.into(), problem };
        let bad_timeout = |error: FieldError| BadGold { field: "timeout_s".into(), problem: error.problem };
        match self {
            Spec::Math { answer, options } => {
                let options = math_options(options).map_err(|error| BadGold { field: error.path, problem: error.problem })?;
                math::Gold::new(answer, options).map(|gold| Verifier::Math(Box::new(gold))).map_err(bad("answer"))
            }
            Spec::Exact { answer, rules } => Exact::new(answer, *rules).map(Verifier::Exact).map_err(bad("answer")),
            Spec::Regex { pattern, ignore_case } => Pattern::new(pattern, *ignore_case).map(Verifier::Regex).map_err(bad("pattern")),
            Spec::Choice { answer, choices } => {
                Choice::check(choices).map_err(|error| BadGold { field: "choices".into(), problem: error.problem })?;
                Choice::new(answer, choices).map(Verifier::Choice).map_err(bad("answer"))
            }
            Spec::Json { schema } => Schema::new(schema).map(Verifier::Json).map_err(bad("schema")),
            Spec::Format(form) => Ok(Verifier::Format(*form)),
            Spec::Length(length) => Ok(Verifier::Length(*length)),
            Spec::All { parts } => parts::compile(Rule::All, parts),
            Spec::Any { parts } => parts::compile(Rule::Any, parts),
            Spec::Weighted { parts } => parts::compile_weighted(parts),
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

    /// Calls `visit` with this reward and every part of it; the first error ends that, with its path.
    pub fn walk(&self, visit: &mut impl FnMut(&Spec) -> Result<(), FieldError>) -> Result<(), FieldError> {
        visit(self)?;
        let inner: Vec<(String, &Spec)> = match self {
            Spec::All { parts } | Spec::Any { parts } => parts.iter().enumerate().map(|(i, part)| (format!("parts[{i}]"), part)).collect(),
            Spec::Weighted { parts } => parts.iter().enumerate().map(|(i, part)| (format!("parts[{i}].reward"), &part.reward)).collect(),
            _ => Vec::new(),
        };
        inner.into_iter().try_for_each(|(at, part)| part.walk(visit).map_err(|error| error.within(&at)))
    }
}

/// A reference answer that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct BadGold {
    /// The field of the reward that holds it, as a path.
    pub field: String,
    /// What is wrong with it and what would be right.
    pub problem: String,
}

/// The options of a mathematical comparison; an error names the one that cannot be used.
fn math_options(written: &Map<String, Value>) -> Result<math::Options, FieldError> {
    let options: math::Options = field::parse(&Value::Object(written.clone()))?;
    if options.marks.is_empty() {
        return Err(FieldError::new("marks", "is empty, so that no answer would be found; name the marks that count, or leave it out"));
    }
    match options.tolerance {
        Some(tolerance) if !(0.0..1.0).contains(&tolerance) => Err(FieldError::new(
            "tolerance",
            format!("is {tolerance}; give a relative difference of at least 0 and below 1, such as 0.000001"),
        )),
        _ => Ok(options),
    }
}

fn seconds(timeout_s: f64, most: f64) -> Result<Duration, FieldError> {
    // Below a millisecond no call can be answered.
    match (0.001..=most).contains(&timeout_s) {
        true => Ok(Duration::from_secs_f64(timeout_s)),
        false => Err(FieldError::new("timeout_s", format!("is {timeout_s}; give seconds from 0.001 to {most}"))),
    }
}
