//! A strategy as a request writes it: every refusal names its field.

use serde::Deserialize;
use serde_json::Value;

use super::{ExitRule, KINDS, Kind, LimitCounts, Strategy};
use crate::field::{self, FieldError};

/// As the caller writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(rename = "kind")]
    _kind: Option<String>,
    group_size: Option<u32>,
    max_samples: Option<u32>,
    positive_above: Option<f64>,
    max_failed: Option<u32>,
    limit_counts: Option<LimitCounts>,
    mask_truncated: Option<bool>,
    budget: Option<u64>,
    history_prior: Option<f64>,
    history_decay: Option<f64>,
    // Only for `dapo`.
    groups_wanted: Option<u32>,
    // Only for `sequential`.
    exit: Option<Value>,
    round_size: Option<u32>,
    straight_positives: Option<u32>,
    // Only for `estimate`.
    min_samples: Option<u32>,
    prior: Option<(f64, f64)>,
    epsilon: Option<f64>,
}

/// Fields of one kind only.
const OWN: [(&str, &str); 7] = [
    ("groups_wanted", "dapo"),
    ("exit", "sequential"),
    ("round_size", "sequential"),
    ("straight_positives", "sequential"),
    ("min_samples", "estimate"),
    ("prior", "estimate"),
    ("epsilon", "estimate"),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    positives: u32,
    negatives: u32,
}

impl Strategy {
    /// Reads a request's `strategy`; error paths are relative to it.
    pub fn read(value: &Value) -> Result<Self, FieldError> {
        let supported = KINDS.join(", ");
        if !value.is_object() {
            let problem = format!("must be an object such as {{\"kind\": \"sequential\"}}; supported kinds: {supported}");
            return Err(FieldError::new("", problem));
        }
        let kind = match value.get("kind") {
            None | Some(Value::Null) => "sequential",
            Some(Value::String(kind)) if KINDS.contains(&kind.as_str()) => kind,
            Some(other) => {
                return Err(FieldError::new("kind", format!("is {other}, which this server does not run; supported: {supported}")));
            }
        };
        for (name, owner) in OWN {
            if owner != kind && value.get(name).is_some_and(|v| !v.is_null()) {
                return Err(FieldError::new(name, format!("is only for `{owner}`; leave it out")));
            }
        }
        let written: Written = field::parse(value)?;
        let default = Strategy::default();
        let group_size = written.group_size.unwrap_or(default.group_size);
        let kind = match kind {
            "uniform" => Kind::Uniform,
            "dapo" => Kind::Dapo {
                groups_wanted: written
                    .groups_wanted
                    .ok_or_else(|| FieldError::new("groups_wanted", "is missing; `dapo` draws until it has so many groups with signal"))?,
            },
            "estimate" => Kind::Estimate {
                min_samples: written.min_samples.unwrap_or(2),
                prior: written.prior.unwrap_or((1.0, 1.0)),
                epsilon: written.epsilon.unwrap_or(0.01),
            },
            _ => Kind::Sequential {
                exit: written.exit.map_or(Ok(ExitRule::Balance), |exit| ExitRule::read(&exit).map_err(|e| e.within("exit")))?,
                round_size: written.round_size.unwrap_or(1),
                straight_positives: written.straight_positives.unwrap_or(0),
            },
        };
        let fixed = matches!(kind, Kind::Uniform | Kind::Dapo { .. });
        let strategy = Strategy {
            kind,
            group_size,
            max_samples: written.max_samples.unwrap_or(if fixed { group_size } else { default.max_samples }),
            positive_above: written.positive_above.unwrap_or(default.positive_above),
            max_failed: written.max_failed,
            limit_counts: written.limit_counts.unwrap_or_default(),
            mask_truncated: written.mask_truncated.unwrap_or(false),
            budget: written.budget,
            history_prior: written.history_prior.unwrap_or(default.history_prior),
            history_decay: written.history_decay.unwrap_or(default.history_decay),
        };
        strategy.validate()?;
        Ok(strategy)
    }

    fn validate(&self) -> Result<(), FieldError> {
        let (n, n_max) = (self.group_size, self.max_samples);
        let refuse = |wrong: bool, field: &str, problem: String| if wrong { Err(FieldError::new(field, problem)) } else { Ok(()) };
        refuse(n < 2, "group_size", format!("is {n}; a group needs at least 2 samples to show a contrast"))?;
        refuse(n_max == 0, "max_samples", "is 0; allow at least 1 sample".into())?;
        let below = |v: f64, least: f64| !(v.is_finite() && v >= least);
        match self.kind {
            Kind::Uniform | Kind::Dapo { .. } => {
                let problem = format!("is {n_max}; `{}` draws group_size ({n}) samples of every prompt, leave it out", self.kind.name());
                refuse(n_max != n, "max_samples", problem)?;
            }
            Kind::Sequential { .. } | Kind::Estimate { .. } => {
                refuse(n > n_max, "group_size", format!("is {n}, above max_samples {n_max}; lower one or raise the other"))?;
            }
        }
        match self.kind {
            Kind::Uniform => {}
            Kind::Dapo { groups_wanted } => {
                refuse(groups_wanted == 0, "groups_wanted", "is 0; want at least 1 group".into())?;
            }
            Kind::Sequential { exit, round_size, straight_positives: straight } => {
                let problem = format!("is {round_size}; it must be between 1 and max_samples ({n_max})");
                refuse(round_size == 0 || round_size > n_max, "round_size", problem)?;
                let problem = format!("is {straight}; it must be 0 (off) or between group_size ({n}) and max_samples ({n_max})");
                refuse(straight != 0 && !(n..=n_max).contains(&straight), "straight_positives", problem)?;
                if let ExitRule::Counts { positives, negatives } = exit {
                    let wanted = u64::from(positives) + u64::from(negatives);
                    let problem = format!("wants {wanted} samples, above max_samples {n_max}; no prompt could ever resolve");
                    refuse(wanted > u64::from(n_max), "exit", problem)?;
                }
            }
            Kind::Estimate { min_samples, prior: (a, b), epsilon } => {
                let problem = format!("is {min_samples}; it must be between 1 and max_samples ({n_max})");
                refuse(min_samples == 0 || min_samples > n_max, "min_samples", problem)?;
                let problem = format!("is [{a}, {b}]; both counts must be above 0 and at most 1e6");
                refuse(![a, b].iter().all(|v| *v > 0.0 && *v <= 1e6), "prior", problem)?;
                let problem = format!("is {epsilon}; it must be between 0 and 1");
                refuse(!(0.0..=1.0).contains(&epsilon), "epsilon", problem)?;
            }
        }
        let failed = self.max_failed.unwrap_or(0);
        refuse(failed > n_max, "max_failed", format!("is {failed}, above max_samples {n_max}; lower it"))?;
        refuse(!self.positive_above.is_finite(), "positive_above", "must be a finite number".into())?;
        let zeros = !self.mask_truncated || self.limit_counts == LimitCounts::Negative;
        let problem = "is below 0, but a truncated answer (or one beyond a verifier's limit) is a negative of reward 0; raise it, or set \
                       mask_truncated and limit_counts \"skip\"";
        refuse(zeros && self.positive_above < 0.0, "positive_above", problem.into())?;
        refuse(self.budget == Some(0), "budget", "is 0; allow at least 1 sample, or leave it out for no limit".into())?;
        let (prior, decay) = (self.history_prior, self.history_decay);
        refuse(below(prior, 0.0), "history_prior", format!("is {prior}; it must be 0 (off) or above"))?;
        refuse(!(0.0..=1.0).contains(&decay), "history_decay", format!("is {decay}; it must be between 0 and 1"))
    }
}

impl ExitRule {
    fn read(value: &Value) -> Result<Self, FieldError> {
        const HELP: &str = "use \"positive\", \"signal\", \"balance\", or {\"positives\": a, \"negatives\": b}";
        match value {
            Value::String(name) => match name.as_str() {
                "positive" => Ok(ExitRule::Positive),
                "signal" => Ok(ExitRule::Signal),
                "balance" => Ok(ExitRule::Balance),
                other => Err(FieldError::new("", format!("is {other:?}, which is no exit; {HELP}"))),
            },
            Value::Object(_) => {
                let Counts { positives, negatives } = field::parse(value)?;
                if positives == 0 && negatives == 0 {
                    return Err(FieldError::new("", format!("wants nothing; {HELP} with at least one above 0")));
                }
                Ok(ExitRule::Counts { positives, negatives })
            }
            other => Err(FieldError::new("", format!("is {other}, which is no exit; {HELP}"))),
        }
    }
}
