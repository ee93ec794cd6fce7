//! The parts of a composition as a request names them: how they nest, and what cannot be one.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{BadGold, Spec, fields};
use crate::field::{self, FieldError, Object};
use crate::reward::Verifier;
use crate::reward::compose::{Composition, Rule};

/// So many compositions may hold each other.
const DEPTH: usize = 4;
/// Most parts of a reward, those of parts included.
const PARTS: usize = 16;

/// A part with its weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Weighted {
    /// What its reward is multiplied with: any finite number. The sum is not divided by anything.
    pub weight: f64,
    /// The part. Without weight it is not judged.
    pub reward: Spec,
}

/// Where in a composition something is read.
pub(super) struct Nesting {
    depth: usize,
    parts: usize,
}

impl Nesting {
    pub(super) const OUTSIDE: Nesting = Nesting { depth: 0, parts: 0 };

    /// Reads every one of `parts` by `read`, one level further in.
    fn read<W, T>(
        &mut self,
        parts: &[W],
        mut read: impl FnMut(&W, &mut Nesting, &str) -> Result<T, FieldError>,
    ) -> Result<Vec<T>, FieldError> {
        let refused = |problem: String| Err(FieldError::new("parts", problem));
        if self.depth == DEPTH {
            return refused(format!("are nested more than {DEPTH} deep"));
        }
        if parts.is_empty() {
            return refused(format!("is empty; give 1 to {PARTS} rewards"));
        }
        self.parts += parts.len();
        if self.parts > PARTS {
            return refused(format!("makes {} parts in all; a reward may have {PARTS}, those of its parts included", self.parts));
        }
        self.depth += 1;
        let read = parts.iter().enumerate().map(|(i, part)| read(part, self, &at(i))).collect();
        self.depth -= 1;
        read
    }
}

/// The parts of an `all` or an `any`.
pub(super) fn read(value: &Value, nesting: &mut Nesting) -> Result<Vec<Spec>, FieldError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Written {
        parts: Vec<Value>,
    }
    nesting.read(&fields::<Written>(value)?.parts, |part, nesting, at| {
        let part = read_part(part, nesting).map_err(|e| e.within(at))?;
        match part {
            Spec::Length(_) => {
                let problem =
                    "is \"length\", which is never positive, so that it would decide the whole; give it a weight in a \"weighted\"";
                Err(FieldError::new(field::join(at, "kind"), problem))
            }
            part => Ok(part),
        }
    })
}

/// The parts of a `weighted`.
pub(super) fn read_weighted(value: &Value, nesting: &mut Nesting) -> Result<Vec<Weighted>, FieldError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Written {
        parts: Vec<Object<Part>>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Part {
        weight: f64,
        reward: Value,
    }
    let parts = nesting.read(&fields::<Written>(value)?.parts, |Object(part), nesting, at| {
        let reward = read_part(&part.reward, nesting).map_err(|e| e.within(&field::join(at, "reward")))?;
        Ok(Weighted { weight: part.weight, reward })
    })?;
    if parts.iter().all(|part| part.weight == 0.0) {
        return Err(FieldError::new("parts", "have no weight but 0, so that every reward would be 0"));
    }
    Ok(parts)
}

fn read_part(value: &Value, nesting: &mut Nesting) -> Result<Spec, FieldError> {
    match Spec::read_within(value, nesting)? {
        Spec::Pull { .. } => {
            Err(FieldError::new("kind", "is \"pull\", which cannot be a part: the client posts the reward of the whole sample"))
        }
        part => Ok(part),
    }
}

/// Compiles the parts of an `all` or an `any`.
pub(super) fn compile(rule: Rule, parts: &[Spec]) -> Result<Verifier, BadGold> {
    compose(rule, parts.iter().enumerate().map(|(i, part)| (at(i), part)))
}

/// Compiles the parts of a `weighted`.
pub(super) fn compile_weighted(parts: &[Weighted]) -> Result<Verifier, BadGold> {
    let rule = Rule::Weighted(parts.iter().map(|part| part.weight).collect());
    compose(rule, parts.iter().enumerate().map(|(i, part)| (field::join(&at(i), "reward"), &part.reward)))
}

fn compose<'a>(rule: Rule, parts: impl Iterator<Item = (String, &'a Spec)>) -> Result<Verifier, BadGold> {
    let compiled =
        parts.map(|(at, part)| part.compile().map_err(|bad| BadGold { field: field::join(&at, &bad.field), problem: bad.problem }));
    Ok(Verifier::Composition(Composition::new(rule, compiled.collect::<Result<_, _>>()?)))
}

fn at(part: usize) -> String {
    format!("parts[{part}]")
}
