//! How much better a kept sample is than its baseline.
//!
//! Two settings: a *baseline* that is subtracted from the reward, and an *objective* that says what the group's gradient should be
//! proportional to. With a kept positive share s and A = r - p, the expected gradient is w(p) grad p with
//! w = [s(1-p)^2 + (1-s)p^2] / (p(1-p)): balanced groups already weigh hard prompts more. An objective f undoes that and puts f'(p) in its
//! place, in one of two forms:
//!
//! - `kappa`: (r - baseline) kappa with kappa = C / [s(1-p)^2 + (1-s)p^2] and C = f'(p) p (1-p), clipped;
//! - `stratified`: +C n/n+ for positives and -C n/n- for negatives, whatever the baseline.
//!
//! Names stand for usual pairs.

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::estimate::History;
use crate::field::{self, FieldError};

/// Added to the standard deviation of `grpo`.
const EPSILON: f64 = 1e-6;
/// Added to the mean below the root of `ada_est`, and the least rate that a reward is divided by.
const EPSILON_MEAN: f64 = 1e-2;
/// Kappa is clipped here unless the request says otherwise.
const CLIP: f64 = 100.0;

/// What is subtracted from a reward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Baseline {
    /// Mean of the kept samples.
    Group,
    /// Mean of the other kept samples.
    LeaveOneOut,
    /// S/N: mean of every sample that the plan saw.
    Plan,
    /// The prompt's pass rate in earlier jobs; S/N where there were none.
    History,
}

/// How the difference is scaled by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Not at all.
    One,
    /// By 1/(std + 1e-6) of the kept samples, with the n - 1 deviation.
    Std,
    /// By 1/baseline.
    Mean,
    /// By 1/sqrt(baseline + 0.01).
    RootMean,
}

/// The function of the pass rate whose gradient the group should give.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Function {
    /// f = p.
    Linear,
    /// f = log p.
    Log,
    /// f = p^a / a; at a = 0 the logarithm.
    Power(f64),
    /// f' = 1/sqrt(p(1-p)), as dividing by the standard deviation does.
    Std,
    /// f = log(p/(1-p)).
    Logit,
}

impl Function {
    /// C = f'(p) p (1-p), finite on all of [0, 1].
    pub fn c(self, p: f64) -> f64 {
        match self {
            Function::Linear => p * (1.0 - p),
            Function::Log => 1.0 - p,
            Function::Power(a) => p.powf(a) * (1.0 - p),
            Function::Std => (p * (1.0 - p)).sqrt(),
            Function::Logit => 1.0,
        }
    }
}

/// Where an objective's p comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rate {
    /// S/N.
    Plan,
    /// The unbiased path-count estimate.
    Unbiased,
}

/// How an objective enters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// (r - baseline) min(kappa, clip).
    Kappa {
        /// The baseline.
        baseline: Baseline,
        /// Kappa is at most this.
        clip: f64,
    },
    /// C n/n+ and -C n/n-.
    Stratified,
}

/// How advantages are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Advantage {
    /// A usual pair, by its name.
    Named(Name),
    /// A baseline alone.
    Plain(Baseline),
    /// An objective.
    Objective {
        /// Of the pass rate.
        function: Function,
        /// How it enters.
        form: Form,
        /// Where p comes from.
        rate: Rate,
    },
}

/// Names of usual pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Name {
    /// `r - S/N` (Reinforce-Ada, v1).
    Ada,
    /// `(r - mean) / (std + 1e-6)` over the kept samples.
    Grpo,
    /// `r - mean of the other kept samples`.
    Rloo,
    /// `r - mean` over the kept samples (Dr. GRPO).
    Drgrpo,
    /// `(r - S/N) / sqrt(S/N + 0.01)` (Reinforce-Ada, Est).
    AdaEst,
    /// `(r - S/N) / (S/N)` (Reinforce-Ada, v3, as printed).
    AdaV3,
    /// `(r - mean) / mean` over the kept samples (MaxRL).
    Maxrl,
}

impl Name {
    /// Every name.
    pub const ALL: [(&'static str, Name); 7] = [
        ("ada", Name::Ada),
        ("grpo", Name::Grpo),
        ("rloo", Name::Rloo),
        ("drgrpo", Name::Drgrpo),
        ("ada_est", Name::AdaEst),
        ("ada_v3", Name::AdaV3),
        ("maxrl", Name::Maxrl),
    ];

    fn parts(self) -> (Baseline, Scale) {
        match self {
            Name::Ada => (Baseline::Plan, Scale::One),
            Name::Grpo => (Baseline::Group, Scale::Std),
            Name::Rloo => (Baseline::LeaveOneOut, Scale::One),
            Name::Drgrpo => (Baseline::Group, Scale::One),
            Name::AdaEst => (Baseline::Plan, Scale::RootMean),
            Name::AdaV3 => (Baseline::Plan, Scale::Mean),
            Name::Maxrl => (Baseline::Group, Scale::Mean),
        }
    }
}

impl Default for Advantage {
    fn default() -> Self {
        Advantage::Named(Name::Ada)
    }
}

/// What advantages are computed from.
#[derive(Clone, Copy, Debug)]
pub struct Rewards<'a> {
    /// Raw rewards of the kept samples.
    pub kept: &'a [f64],
    /// Whether each is positive.
    pub positive: &'a [bool],
    /// Mean raw reward of everything the plan saw.
    pub seen_mean: f64,
    /// S/N in outcomes.
    pub pass_rate: f64,
    /// The unbiased estimate of the pass rate.
    pub unbiased: f64,
    /// What earlier jobs saw of the prompt.
    pub history: Option<History>,
}

impl Advantage {
    /// Reads a request's `advantage`, or the echo of one; error paths are relative to it.
    pub fn read(value: &Value) -> Result<Self, FieldError> {
        let names: Vec<&str> = Name::ALL.iter().map(|(name, _)| *name).collect();
        let help = format!("use one of {}, or {{\"baseline\": ..., \"objective\": ...}}", names.join(", "));
        match value {
            Value::String(given) => match Name::ALL.iter().find(|(name, _)| name == given) {
                Some((_, name)) => Ok(Advantage::Named(*name)),
                None => Err(FieldError::new("", format!("is {given:?}, which this server does not compute; {help}"))),
            },
            Value::Object(_) => Self::read_parts(value),
            other => Err(FieldError::new("", format!("is {other}; {help}"))),
        }
    }

    fn read_parts(value: &Value) -> Result<Self, FieldError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            baseline: Option<Baseline>,
            objective: Option<Value>,
            form: Option<String>,
            p: Option<Rate>,
            clip: Option<f64>,
        }
        let written: Written = field::parse(value)?;
        const OBJECTIVES: &str = "use \"none\", \"linear\", \"log\", \"std\", \"logit\" or {\"power\": a}";
        let function = match &written.objective {
            None => None,
            Some(Value::String(name)) if name == "none" => None,
            Some(objective @ (Value::String(_) | Value::Object(_))) => match serde_json::from_value::<Function>(objective.clone()) {
                Ok(Function::Power(a)) if !(a.is_finite() && (0.0..=8.0).contains(&a)) => {
                    return Err(FieldError::new("objective.power", format!("is {a}; it must be between 0 (the logarithm) and 8")));
                }
                Ok(function) => Some(function),
                Err(_) => return Err(FieldError::new("objective", format!("is {objective}, which is no objective; {OBJECTIVES}"))),
            },
            Some(other) => return Err(FieldError::new("objective", format!("is {other}; {OBJECTIVES}"))),
        };
        let Some(function) = function else {
            for (name, given) in [("form", written.form.is_some()), ("p", written.p.is_some()), ("clip", written.clip.is_some())] {
                if given {
                    return Err(FieldError::new(name, "belongs to an objective, and there is none; leave it out"));
                }
            }
            return Ok(Advantage::Plain(written.baseline.unwrap_or(Baseline::Plan)));
        };
        let form = match written.form.as_deref() {
            None | Some("kappa") => {
                let clip = written.clip.unwrap_or(CLIP);
                if !(clip.is_finite() && clip > 0.0) {
                    return Err(FieldError::new("clip", format!("is {clip}; it must be above 0")));
                }
                Form::Kappa { baseline: written.baseline.unwrap_or(Baseline::Plan), clip }
            }
            Some("stratified") if written.baseline.is_some() => {
                return Err(FieldError::new("baseline", "is not used by the stratified form; leave it out"));
            }
            Some("stratified") if written.clip.is_some() => {
                return Err(FieldError::new("clip", "is not used by the stratified form; leave it out"));
            }
            Some("stratified") => Form::Stratified,
            Some(other) => return Err(FieldError::new("form", format!("is {other:?}; use \"kappa\" or \"stratified\""))),
        };
        Ok(Advantage::Objective { function, form, rate: written.p.unwrap_or(Rate::Unbiased) })
    }

    /// One advantage for each kept reward, and the weight that the group puts on the gradient of the pass rate where an objective sets it.
    /// The caller asks only for groups with contrast.
    pub fn of(&self, rewards: Rewards<'_>) -> (Vec<f64>, Option<f64>) {
        match self {
            Advantage::Named(name) => {
                let (baseline, scale) = name.parts();
                (rewards.scaled(baseline, scale), None)
            }
            Advantage::Plain(baseline) => (rewards.scaled(*baseline, Scale::One), None),
            Advantage::Objective { function, form, rate } => rewards.toward(*function, *form, *rate),
        }
    }
}

impl Rewards<'_> {
    /// r - baseline.
    fn centred(&self, baseline: Baseline) -> Vec<f64> {
        let (n, mean) = (self.kept.len() as f64, mean(self.kept).unwrap_or(0.0));
        match baseline {
            Baseline::LeaveOneOut if self.kept.len() > 1 => self.kept.iter().map(|r| (r - mean) * n / (n - 1.0)).collect(),
            Baseline::LeaveOneOut => vec![0.0; self.kept.len()],
            Baseline::Group | Baseline::Plan | Baseline::History => self.kept.iter().map(|r| r - self.baseline(baseline)).collect(),
        }
    }

    /// The baseline as one number; that of leave-one-out is the mean it is made of.
    fn baseline(&self, baseline: Baseline) -> f64 {
        match baseline {
            Baseline::Group | Baseline::LeaveOneOut => mean(self.kept).unwrap_or(0.0),
            Baseline::Plan => self.seen_mean,
            Baseline::History => self.history.filter(|h| h.n > 0.0).map_or(self.seen_mean, |h| h.s / h.n),
        }
    }

    fn scaled(&self, baseline: Baseline, scale: Scale) -> Vec<f64> {
        let value = self.baseline(baseline);
        let divisor = match scale {
            Scale::One => return self.centred(baseline),
            Scale::Std => deviation(self.kept) + EPSILON,
            // A mean of 0 or below (rewards need not be 0 or 1) divides nothing sensibly.
            Scale::Mean => value.max(EPSILON),
            Scale::RootMean => (value.max(0.0) + EPSILON_MEAN).sqrt(),
        };
        self.centred(baseline).into_iter().map(|a| a / divisor).collect()
    }

    fn toward(&self, function: Function, form: Form, rate: Rate) -> (Vec<f64>, Option<f64>) {
        let p = match rate {
            Rate::Plan => self.pass_rate,
            Rate::Unbiased => self.unbiased,
        };
        let n = self.kept.len() as f64;
        let positives = self.positive.iter().filter(|positive| **positive).count() as f64;
        let (s, c) = (positives / n, function.c(p));
        // Without both classes among the kept there is nothing that an objective of the pass rate could weigh.
        if positives == 0.0 || positives == n {
            return (vec![0.0; self.kept.len()], Some(0.0));
        }
        // At the ends of [0, 1] the weight f'(p) may be infinite; C is what stays finite there.
        let weight = |c: f64| if p > 0.0 && p < 1.0 { c / (p * (1.0 - p)) } else { c };
        match form {
            Form::Stratified => {
                let of = |positive: &bool| if *positive { c * n / positives } else { -c * n / (n - positives) };
                (self.positive.iter().map(of).collect(), Some(weight(c)))
            }
            Form::Kappa { baseline, clip } => {
                let balance = s * (1.0 - p).powi(2) + (1.0 - s) * p * p;
                let kappa = (c / balance).min(clip);
                (self.centred(baseline).into_iter().map(|a| a * kappa).collect(), Some(weight(kappa * balance)))
            }
        }
    }
}

impl Serialize for Advantage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Advantage::Named(name) => name.serialize(serializer),
            Advantage::Plain(baseline) => {
                let mut out = serializer.serialize_map(Some(2))?;
                out.serialize_entry("baseline", baseline)?;
                out.serialize_entry("objective", "none")?;
                out.end()
            }
            Advantage::Objective { function, form, rate } => {
                let mut out = serializer.serialize_map(None)?;
                if let Form::Kappa { baseline, .. } = form {
                    out.serialize_entry("baseline", baseline)?;
                }
                out.serialize_entry("objective", function)?;
                match form {
                    Form::Kappa { clip, .. } => {
                        out.serialize_entry("form", "kappa")?;
                        out.serialize_entry("clip", clip)?;
                    }
                    Form::Stratified => out.serialize_entry("form", "stratified")?,
                }
                out.serialize_entry("p", rate)?;
                out.end()
            }
        }
    }
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
