//! One response against one reference, as `adaroll verify` and `POST /v1/verify` take it.
//!
//! A row names its reference in short (`gold`, with `kind` and `options` where the defaults do not fit) or as a whole `reward`. Both become a
//! [`Spec`], so that a verdict here is the verdict of a rollout. A field that cannot be used is refused by its path; a reference that cannot be
//! used is a verdict of its own ([`Ruling::BadGold`]).

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use crate::field::{self, FieldError};
use crate::reward::{self, BadGold, Ruling, Spec, Verdict, Verifier};

/// Kinds of rewards that are one gold and options.
pub const KINDS: [&str; 5] = ["math", "exact", "regex", "choice", "json"];

/// Longest id, in bytes.
const ID_BYTES: usize = 1024;

/// What a response is held against, as the caller writes it.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// The reference answer: the text of most kinds, the pattern of `regex`, the schema of `json`.
    pub gold: Option<Value>,
    /// What kind of reward it belongs to; `math` if there is none.
    pub kind: Option<String>,
    /// The other fields of that reward.
    pub options: Option<Map<String, Value>>,
    /// A whole reward in place of the three.
    pub reward: Option<Value>,
}

impl Reference {
    /// The reward that is meant. Refuses what is not readable; paths are relative to what holds the fields.
    pub fn read(self) -> Result<Question, FieldError> {
        match self.reward {
            None => short(self.gold, self.kind.as_deref().unwrap_or(KINDS[0]), self.options.unwrap_or_default()),
            Some(reward) => {
                let beside = [("gold", self.gold.is_some()), ("kind", self.kind.is_some()), ("options", self.options.is_some())];
                if let Some((name, _)) = beside.iter().find(|(_, is_given)| *is_given) {
                    return Err(FieldError::new(*name, "is given beside reward, which holds all of it; give one of them"));
                }
                let within = |error: FieldError| error.within("reward");
                let spec = Spec::read(&reward).map_err(within)?;
                spec.walk(&mut |part| elsewhere(part).map_or(Ok(()), |why| Err(FieldError::new("kind", why)))).map_err(within)?;
                Ok(Question { gold_field: None, spec: Ok(spec) })
            }
        }
    }
}

/// Reads a gold with its kind and options.
fn short(gold: Option<Value>, kind: &str, options: Map<String, Value>) -> Result<Question, FieldError> {
    check_kind(kind)?;
    let gold_field = match kind {
        "regex" => "pattern",
        "json" => "schema",
        _ => "answer",
    };
    let gold = match gold {
        Some(Value::String(text)) => text.into(),
        Some(Value::Number(number)) if !number.is_f64() => number.to_string().into(),
        Some(schema @ Value::Object(_)) if kind == "json" => schema,
        None => return Err(FieldError::new("gold", "is missing; give the reference answer, or a whole reward")),
        Some(Value::Number(_)) => {
            return Err(FieldError::new(
                "gold",
                "is a number whose digits may have been rounded on the way; give it as a string, such as \"0.5\"",
            ));
        }
        Some(_) => return Err(FieldError::new("gold", "must be a string such as \"72\"")),
    };
    let mut reward = Map::new();
    reward.insert("kind".into(), kind.into());
    match (&gold, kind) {
        (Value::String(text), "json") => match serde_json::from_str::<Value>(text) {
            Ok(schema) => reward.insert(gold_field.into(), schema),
            Err(error) => {
                let bad = BadGold { field: "gold".into(), problem: format!("is no JSON: {error}; give a JSON schema") };
                return Ok(Question { gold_field: Some(gold_field), spec: Err(bad) });
            }
        },
        _ => reward.insert(gold_field.into(), gold),
    };
    for (name, value) in options {
        if name == "kind" || name == gold_field {
            let field = if name == "kind" { "kind" } else { "gold" };
            return Err(FieldError::new(field::join("options", &name), format!("is not an option; give it as {field}")));
        }
        reward.insert(name, value);
    }
    let spec = match Spec::read(&reward.into()) {
        Ok(spec) => Ok(spec),
        Err(error) if error.path == gold_field => Err(BadGold { field: "gold".into(), problem: error.problem }),
        Err(error) => {
            let problem = match error.problem.starts_with("is not a field here") {
                true => not_an_option(&error.problem, kind, gold_field),
                false => error.problem,
            };
            return Err(FieldError::new(field::join("options", &error.path), problem));
        }
    };
    Ok(Question { gold_field: Some(gold_field), spec })
}

fn check_kind(kind: &str) -> Result<(), FieldError> {
    if KINDS.contains(&kind) {
        return Ok(());
    }
    let shown: String = kind.chars().take(100).collect();
    let why = match kind {
        "webhook" => WEBHOOK.to_owned(),
        "pull" => PULL.to_owned(),
        _ if reward::KINDS.contains(&kind) => format!("is {shown:?}, which has no gold; give a whole reward"),
        _ => format!("is {shown:?}, which is not judged here"),
    };
    Err(FieldError::new("kind", format!("{why}; with a gold go {}", KINDS.join(", "))))
}

const WEBHOOK: &str = "is \"webhook\", whose verdicts come from a grader, and nobody is asked here";
const PULL: &str = "is \"pull\", whose scores come from the client, and nobody is asked here";

/// Why a reward, or a part of one, cannot be judged by the text alone.
fn elsewhere(spec: &Spec) -> Option<&'static str> {
    match spec {
        Spec::Webhook { .. } => Some(WEBHOOK),
        Spec::Pull { .. } => Some(PULL),
        Spec::Length(_) => Some("is \"length\", which counts the tokens of a sample, and there are only texts here; leave it out"),
        _ => None,
    }
}

/// A complaint about an unknown field lists the known ones, of which the gold's is no option.
fn not_an_option(problem: &str, kind: &str, gold_field: &str) -> String {
    let names: Vec<&str> = problem.split('`').skip(1).step_by(2).filter(|name| *name != gold_field && *name != "kind").collect();
    match names.is_empty() {
        true => format!("is not an option; the kind \"{kind}\" has none"),
        false => format!("is not an option of the kind \"{kind}\"; its options are {}", names.join(", ")),
    }
}

/// An id as it goes back: a string or a whole number.
pub fn read_id(id: Option<Value>) -> Result<Option<Value>, FieldError> {
    match id {
        Some(Value::String(text)) if text.len() > ID_BYTES => Err(FieldError::new("id", format!("must be at most {ID_BYTES} bytes long"))),
        Some(Value::Number(number)) if number.is_f64() => Err(FieldError::new("id", "must be a string or a whole number")),
        Some(id @ (Value::String(_) | Value::Number(_))) => Ok(Some(id)),
        None => Ok(None),
        Some(_) => Err(FieldError::new("id", "must be a string or a whole number")),
    }
}

/// A reward that was read, with a reference that may turn out to be none.
#[derive(Clone, Debug)]
pub struct Question {
    /// The reward's field that holds the gold, where it was given in short.
    gold_field: Option<&'static str>,
    spec: Result<Spec, BadGold>,
}

/// What is said of one response.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The verdict.
    pub ruling: Ruling,
    /// The text that was taken for the answer; long ones are cut.
    pub extracted: Option<String>,
    /// Where the answer was found and what decided; what was too large; what is wrong with the gold.
    pub rule: Cow<'static, str>,
    /// What a rollout would give for it. None for a limit and a bad gold.
    pub reward: Option<f64>,
    /// How long it took, the reading of the gold included.
    pub took: Duration,
}

impl Question {
    /// The reward, if its gold was readable so far.
    pub fn spec(&self) -> Option<&Spec> {
        self.spec.as_ref().ok()
    }

    /// The reward's field that holds the gold, where it was given in short.
    pub fn gold_field(&self) -> Option<&'static str> {
        self.gold_field
    }

    /// The compiled reward; the field of a bad gold is named as the caller wrote it.
    pub fn compile(&self) -> Result<Verifier, BadGold> {
        let spec = self.spec.as_ref().map_err(BadGold::clone)?;
        spec.compile().map_err(|BadGold { field, problem }| {
            let field = match self.gold_field {
                None => field::join("reward", &field),
                Some(gold) if gold == field => "gold".into(),
                Some(_) => field::join("options", &field),
            };
            BadGold { field, problem }
        })
    }

    /// The verdict on a response. An error is a fault of the verifier's own.
    pub fn judge(&self, response: &str) -> Result<Answer, String> {
        let started = Instant::now();
        let judged = catch_unwind(AssertUnwindSafe(|| self.compile().map(|verifier| (verifier.kind(), verifier.judge(response)))));
        let took = started.elapsed();
        match judged {
            Err(_) => Err("the verifier stopped with an internal error; please report this".into()),
            Ok(Err(bad)) => Ok(Answer { ruling: Ruling::BadGold, extracted: None, rule: bad.to_string().into(), reward: None, took }),
            Ok(Ok((kind, judgement))) => {
                let reward = match judgement.verdict {
                    Verdict::Scored(reward) => Some(reward),
                    Verdict::Unscored | Verdict::Limit(_) | Verdict::Failed(_) => None,
                };
                let found = judgement.found.ok_or_else(|| format!("the {kind} verifier does not say what it found; please report this"))?;
                Ok(Answer { ruling: found.ruling, extracted: found.extracted, rule: found.rule, reward, took })
            }
        }
    }
}
