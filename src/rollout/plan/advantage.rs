//! How much better a kept sample is than its baseline, and how that is scaled.
//!
//! With a kept positive share s and `A = r - p` the expected gradient is `w(p) grad p`, `w = [s(1-p)^2 + (1-s)p^2] / (p(1-p))`. An
//! [`Objective`] f asks for `w = f'(p)`: `kappa` multiplies `r - baseline` by `f'(p) p (1-p) / [s(1-p)^2 + (1-s)p^2]`, `stratified` gives
//! every positive `C n/n+` and every negative `-C n/n-` with `C = f'(p) p (1-p)`. Nothing here is ever infinite or NaN: a scale that
//! needs a pass rate is applied only where both classes were kept.

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::strategy::History;
use crate::field::{self, FieldError};

/// Added to what `grpo` and `ada_est` divide by.
const EPSILON: f64 = 1e-6;

/// Where kappa is cut unless the request says otherwise.
const CLIP: f64 = 10.0;

/// A baseline and a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advantage {
    /// What is subtracted from a reward. Stratified advantages do not look at it.
    pub baseline: Baseline,
    /// What the difference is multiplied by.
    pub scale: Scale,
}

/// What a reward is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Baseline {
    /// Mean reward of the kept samples.
    Group,
    /// Mean reward of the other kept samples.
    LeaveOneOut,
    /// Mean reward of every sample that the plan saw.
    Plan,
    /// Pass rate of the prompt in earlier jobs; the plan mean where there is none.
    History,
}

/// What `r - baseline` is multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// 1.
    None,
    /// `1 / (std + 1e-6)` of the kept rewards, with the `n - 1` deviation (`grpo`).
    Deviation,
    /// `1 / sqrt(p + 1e-6)`, p = S/N (`ada_est`).
    RootRate,
    /// `1 / p`, p = S/N (`ada_v3`).
    Rate,
    /// `1 / s`, s the kept positive share (`maxrl`).
    KeptRate,
    /// What makes the expected gradient that of an objective.
    Objective {
        /// f.
        objective: Objective,
        /// How it is reached.
        form: Form,
        /// The pass rate that f' is taken at.
        p: RateSource,
        /// Largest kappa; `stratified` does not look at it.
        clip: f64,
    },
}

/// The function f of the pass rate that is climbed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Objective {
    /// p.
    Linear,
    /// log p.
    Log,
    /// p^a / a.
    Power(f64),
    /// arcsin: f' = 1 / sqrt(p(1-p)), as dividing by the deviation does.
    Std,
    /// log(p / (1-p)).
    Logit,
}

/// How an objective is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// `(r - baseline) * min(kappa, clip)`.
    Kappa,
    /// `C n/n+` for a positive, `-C n/n-` for a negative.
    Stratified,
}

/// Which estimate of the pass rate an objective reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RateSource {
    /// S/N.
    Plan,
    /// The path-count estimator.
    Unbiased,
}

/// What an advantage is computed from.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Rewards of the kept samples.
    pub rewards: &'a [f64],
    /// Which of them are positive.
    pub positive: &'a [bool],
    /// Mean reward of every sample that the plan saw.
    pub reward_mean: f64,
    /// S/N.
    pub pass_rate: f64,
    /// The path-count estimate.
    pub pass_rate_unbiased: f64,
    /// The prompt's history before this job.
    pub history: Option<History>,
}

/// As the caller writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    baseline: Option<Baseline>,
    objective: Option<Value>,
    form: Option<Form>,
    p: Option<RateSource>,
    clip: Option<f64>,
}

impl Default for Advantage {
    /// `ada`.
    fn default() -> Self {
        Advantage { baseline: Baseline::Plan, scale: Scale::None }
    }
}

impl Objective {
    /// `C = f'(p) p (1-p)`.
    pub fn contrast(self, p: f64) -> f64 {
        match self {
            Objective::Linear => p * (1.0 - p),
            Objective::Log => 1.0 - p,
            Objective::Power(a) => p.powf(a) * (1.0 - p),
            Objective::Std => (p * (1.0 - p)).max(0.0).sqrt(),
            Objective::Logit => 1.0,
        }
    }

    /// Nothing for "none".
    fn read(value: &Value) -> Result<Option<Self>, FieldError> {
        if value == "none" {
            return Ok(None);
        }
        let help = "use \"none\", \"linear\", \"log\", {\"power\": a}, \"std\" or \"logit\"";
        let objective: Objective =
            serde_json::from_value(value.clone()).map_err(|_| FieldError::new("", format!("is {value}, which is no objective; {help}")))?;
        match objective {
            Objective::Power(a) if !(0.0..=100.0).contains(&a) => {
                Err(FieldError::new("power", format!("is {a}; it must be between 0 (as \"log\") and 100")))
            }
            other => Ok(Some(other)),
        }
    }
}

impl Advantage {
    /// Every name that [`Advantage::from_name`] takes.
    pub const NAMES: [&'static str; 7] = ["ada", "grpo", "rloo", "drgrpo", "ada_est", "ada_v3", "maxrl"];

    /// The advantage called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        let (baseline, scale) = match name {
            // r - S/N, Reinforce-Ada v1.
            "ada" => (Baseline::Plan, Scale::None),
            "grpo" => (Baseline::Group, Scale::Deviation),
            "rloo" => (Baseline::LeaveOneOut, Scale::None),
            "drgrpo" => (Baseline::Group, Scale::None),
            "ada_est" => (Baseline::Plan, Scale::RootRate),
            "ada_v3" => (Baseline::Plan, Scale::Rate),
            "maxrl" => (Baseline::Group, Scale::KeptRate),
            _ => return None,
        };
        Some(Advantage { baseline, scale })
    }

    /// Its name, if the pair has one.
    pub fn name(&self) -> Option<&'static str> {
        Self::NAMES.into_iter().find(|name| Self::from_name(name) == Some(*self))
    }

    /// Reads a request's `advantage`: a name, or `{"baseline", "objective", "form", "p", "clip"}`. Error paths are relative to it.
    pub fn read(value: &Value) -> Result<Self, FieldError> {
        let names = Self::NAMES.join(", ");
        match value {
            Value::String(name) => Self::from_name(name)
                .ok_or_else(|| FieldError::new("", format!("is {name:?}, which this server does not compute; supported: {names}"))),
            Value::Object(_) => Self::of_written(field::parse(value)?),
            other => Err(FieldError::new("", format!("is {other}; use a name ({names}) or {{\"baseline\": ..., \"objective\": ...}}"))),
        }
    }

    fn of_written(written: Written) -> Result<Self, FieldError> {
        let objective = match &written.objective {
            None => None,
            Some(objective) => Objective::read(objective).map_err(|e| e.within("objective"))?,
        };
        let refuse = |given: bool, field: &str, owner: &str| {
            if given { Err(FieldError::new(field, format!("is only for {owner}; leave it out"))) } else { Ok(()) }
        };
        let Some(objective) = objective else {
            let owner = "an objective other than \"none\"";
            refuse(written.form.is_some(), "form", owner)?;
            refuse(written.p.is_some(), "p", owner)?;
            refuse(written.clip.is_some(), "clip", owner)?;
            return Ok(Advantage { baseline: written.baseline.unwrap_or(Baseline::Plan), scale: Scale::None });
        };
        let form = written.form.unwrap_or(Form::Kappa);
        if form == Form::Stratified {
            refuse(written.baseline.is_some(), "baseline", "the form `kappa`")?;
            refuse(written.clip.is_some(), "clip", "the form `kappa`")?;
        }
        let clip = written.clip.unwrap_or(CLIP);
        if !(clip.is_finite() && clip > 0.0) {
            return Err(FieldError::new("clip", format!("is {clip}; it must be a finite number above 0")));
        }
        let p = written.p.unwrap_or(if form == Form::Kappa { RateSource::Plan } else { RateSource::Unbiased });
        let baseline = written.baseline.unwrap_or(Baseline::Plan);
        Ok(Advantage { baseline, scale: Scale::Objective { objective, form, p, clip } })
    }

    /// Whether anything can be learned: the kept rewards differ, and both classes are there where the scale needs a pass rate.
    pub fn has_signal(&self, seen: &Observed) -> bool {
        let differ = seen.rewards.windows(2).any(|pair| pair[0] != pair[1]);
        let both = seen.positive.contains(&true) && seen.positive.contains(&false);
        differ && (both || matches!(self.scale, Scale::None | Scale::Deviation))
    }

    /// One advantage for each kept reward; zeros without signal.
    pub fn of(&self, seen: &Observed) -> Vec<f64> {
        if !self.has_signal(seen) {
            return vec![0.0; seen.rewards.len()];
        }
        let share = share(seen);
        let scale = match self.scale {
            Scale::None => 1.0,
            Scale::Deviation => 1.0 / (deviation(seen.rewards) + EPSILON),
            Scale::RootRate => 1.0 / (seen.pass_rate + EPSILON).sqrt(),
            Scale::Rate => 1.0 / seen.pass_rate,
            Scale::KeptRate => 1.0 / share,
            Scale::Objective { objective, form: Form::Kappa, p, clip } => {
                let p = p.of(seen);
                let kappa = objective.contrast(p) / (share * (1.0 - p) * (1.0 - p) + (1.0 - share) * p * p);
                kappa.min(clip)
            }
            Scale::Objective { objective, form: Form::Stratified, p, .. } => {
                let c = objective.contrast(p.of(seen));
                return seen.positive.iter().map(|positive| if *positive { c / share } else { -c / (1.0 - share) }).collect();
            }
        };
        let baseline = self.baseline.of(seen);
        seen.rewards.iter().zip(baseline).map(|(r, b)| (r - b) * scale).collect()
    }

    /// The group's weight on grad p under an objective: the mean of `A` over the score of its class, `1/p` for a positive and `-1/(1-p)` for
    /// a negative.
    pub fn effective_weight(&self, seen: &Observed, advantages: &[f64]) -> Option<f64> {
        let Scale::Objective { p, .. } = self.scale else { return None };
        let p = Some(p.of(seen)).filter(|p| *p > 0.0 && *p < 1.0)?;
        let score = |positive: &bool| if *positive { 1.0 / p } else { -1.0 / (1.0 - p) };
        Some(seen.positive.iter().zip(advantages).map(|(positive, a)| a * score(positive)).sum::<f64>() / seen.positive.len() as f64)
    }
}

impl Baseline {
    /// The baseline of each kept sample.
    fn of(self, seen: &Observed) -> Vec<f64> {
        let n = seen.rewards.len();
        let kept = mean(seen.rewards).unwrap_or(0.0);
        match self {
            Baseline::Group => vec![kept; n],
            Baseline::LeaveOneOut => seen.rewards.iter().map(|r| kept - (r - kept) / (n as f64 - 1.0).max(1.0)).collect(),
            Baseline::Plan => vec![seen.reward_mean; n],
            Baseline::History => vec![seen.history.and_then(History::pass_rate).unwrap_or(seen.reward_mean); n],
        }
    }
}

impl RateSource {
    fn of(self, seen: &Observed) -> f64 {
        match self {
            RateSource::Plan => seen.pass_rate,
            RateSource::Unbiased => seen.pass_rate_unbiased,
        }
    }
}

impl Serialize for Advantage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(name) = self.name() {
            return serializer.serialize_str(name);
        }
        let mut out = serializer.serialize_map(None)?;
        let Scale::Objective { objective, form, p, clip } = self.scale else {
            out.serialize_entry("baseline", &self.baseline)?;
            out.serialize_entry("objective", "none")?;
            return out.end();
        };
        if form == Form::Kappa {
            out.serialize_entry("baseline", &self.baseline)?;
        }
        out.serialize_entry("objective", &objective)?;
        out.serialize_entry("form", &form)?;
        out.serialize_entry("p", &p)?;
        if form == Form::Kappa {
            out.serialize_entry("clip", &clip)?;
        }
        out.end()
    }
}

/// The kept positive share.
fn share(seen: &Observed) -> f64 {
    seen.positive.iter().filter(|p| **p).count() as f64 / seen.positive.len().max(1) as f64
}

/// The mean, if there is anything to take it of.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The standard deviation with `n - 1`; 0 for fewer than two values.
pub fn deviation(values: &[f64]) -> f64 {
    let Some(mean) = mean(values).filter(|_| values.len() > 1) else { return 0.0 };
    (values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}
