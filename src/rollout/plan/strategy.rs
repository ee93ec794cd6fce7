//! A request's strategy, read and turned into a [`Plan`] per prompt.
//!
//! There are two shapes: a plan with an exit (`sequential`, and `uniform` and `dapo`, whose exit is "all n"), and an allocation that is
//! computed once, from the prompts' history, before anything is sampled (`estimate`).

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::estimate::{self, History};
use super::plan::{Plan, default_max_failed};
use crate::field::{self, FieldError};

/// Names of the strategies this server runs.
pub const KINDS: [&str; 4] = ["sequential", "uniform", "dapo", "estimate"];

/// When a prompt has been sampled enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExitRule {
    /// One positive.
    Positive,
    /// One positive and one negative.
    Signal,
    /// n/2 positives and n - n/2 negatives.
    Balance,
    /// This many of each.
    #[serde(untagged)]
    Counts {
        /// Positives wanted.
        positives: u32,
        /// Negatives wanted.
        negatives: u32,
    },
}

/// What an answer that exceeds a limit of its verifier counts as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitCounts {
    /// A negative.
    #[default]
    Negative,
    /// Nothing: the index is skipped and counted.
    Skip,
}

/// What makes one strategy differ from the others.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// n samples of each prompt (GRPO, RLOO, Dr. GRPO).
    Uniform,
    /// n of each, groups without contrast dropped, until so many informative ones are there, by request order.
    Dapo {
        /// Informative groups wanted.
        groups_wanted: u32,
    },
    /// In index order until an exit.
    Sequential {
        /// When to stop.
        exit: ExitRule,
        /// The exit is tested after every so many samples (M).
        round_size: u32,
        /// Stop a prompt whose first so many samples are all positive; 0 is off.
        straight_positives: u32,
    },
    /// As many as the prompt's history suggests; every draw is kept.
    Estimate {
        /// Fewest samples of a prompt.
        min_samples: u32,
        /// Pseudo-counts (a, b) of the estimated rate.
        prior: (f64, f64),
        /// Added to the rate below the root.
        epsilon: f64,
    },
}

/// A strategy with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Strategy {
    /// Which one.
    pub kind: Kind,
    /// Samples kept per prompt (n).
    pub group_size: u32,
    /// Samples drawn per prompt at most (N_max).
    pub max_samples: u32,
    /// A reward above this is positive.
    pub positive_above: f64,
    /// More failed samples than this end a group as failed; without it a tenth of the prompt's most samples, at least 1.
    pub max_failed: Option<u32>,
    /// What an answer that exceeds a verifier's limit counts as.
    pub limit_counts: LimitCounts,
    /// Leave truncated answers out instead of counting them as negative.
    pub mask_truncated: bool,
    /// Samples of the whole request, charged below each exit in request order.
    pub budget: Option<u64>,
    /// What one counted outcome of a prompt's history weighs in the width planner's prior; 0 is off. Changes how soon groups close only.
    pub history_prior: f64,
    /// What a prompt's older counts are worth when this job closes.
    pub history_decay: f64,
}

impl Default for Strategy {
    fn default() -> Self {
        Strategy {
            kind: Kind::Sequential { exit: ExitRule::Balance, round_size: 1, straight_positives: 0 },
            group_size: 4,
            max_samples: 32,
            positive_above: 0.5,
            max_failed: None,
            limit_counts: LimitCounts::Negative,
            mask_truncated: false,
            budget: None,
            history_prior: 0.0,
            history_decay: 0.9,
        }
    }
}

/// As the caller writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(rename = "kind")]
    _kind: Option<String>,
    exit: Option<Value>,
    group_size: Option<u32>,
    max_samples: Option<u32>,
    min_samples: Option<u32>,
    round_size: Option<u32>,
    positive_above: Option<f64>,
    straight_positives: Option<u32>,
    max_failed: Option<u32>,
    limit_counts: Option<LimitCounts>,
    mask_truncated: Option<bool>,
    budget: Option<u64>,
    groups_wanted: Option<u32>,
    prior: Option<(f64, f64)>,
    epsilon: Option<f64>,
    history_prior: Option<f64>,
    history_decay: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    positives: u32,
    negatives: u32,
}

impl Strategy {
    /// Reads a request's `strategy`, or the echo of one; error paths are relative to it.
    pub fn read(value: &Value) -> Result<Self, FieldError> {
        let kinds = KINDS.join(", ");
        if !value.is_object() {
            return Err(FieldError::new("", format!("must be an object such as {{\"kind\": \"sequential\"}}; supported kinds: {kinds}")));
        }
        let name = match value.get("kind") {
            None | Some(Value::Null) => "sequential",
            Some(Value::String(kind)) if KINDS.contains(&kind.as_str()) => kind,
            Some(other) => return Err(FieldError::new("kind", format!("is {other}, which this server does not run; supported: {kinds}"))),
        };
        let written: Written = field::parse(value)?;
        written.refuse_others(name)?;
        let group_size = written.group_size.unwrap_or(4);
        let (kind, max_samples) = match name {
            "uniform" | "dapo" => {
                if let Some(max_samples) = written.max_samples.filter(|n| *n != group_size) {
                    let problem =
                        format!("is {max_samples}; `{name}` draws group_size ({group_size}) samples of each prompt, leave it out");
                    return Err(FieldError::new("max_samples", problem));
                }
                let kind = match (name, written.groups_wanted) {
                    ("uniform", _) => Kind::Uniform,
                    (_, Some(groups_wanted)) => Kind::Dapo { groups_wanted },
                    (_, None) => {
                        return Err(FieldError::new("groups_wanted", "is missing; say how many informative groups `dapo` is to find"));
                    }
                };
                (kind, group_size)
            }
            "estimate" => {
                let min_samples = written.min_samples.unwrap_or(2);
                let kind =
                    Kind::Estimate { min_samples, prior: written.prior.unwrap_or((1.0, 1.0)), epsilon: written.epsilon.unwrap_or(0.01) };
                (kind, written.max_samples.unwrap_or(32))
            }
            _ => {
                let exit = match &written.exit {
                    None => ExitRule::Balance,
                    Some(exit) => ExitRule::read(exit).map_err(|e| e.within("exit"))?,
                };
                let (round_size, straight_positives) = (written.round_size.unwrap_or(1), written.straight_positives.unwrap_or(0));
                (Kind::Sequential { exit, round_size, straight_positives }, written.max_samples.unwrap_or(32))
            }
        };
        let default = Strategy::default();
        let strategy = Strategy {
            kind,
            group_size,
            max_samples,
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
        let fail = |field: &str, problem: String| Err(FieldError::new(field, problem));
        let n_max = self.max_samples;
        if self.group_size < 2 && self.kind != Kind::Uniform {
            return fail("group_size", format!("is {}; a group needs at least 2 samples to show a contrast", self.group_size));
        }
        if self.group_size == 0 {
            return fail("group_size", "is 0; a group needs at least 1 sample".into());
        }
        if n_max == 0 {
            return fail("max_samples", "is 0; allow at least 1 sample".into());
        }
        if self.group_size > n_max {
            return fail("group_size", format!("is {}, above max_samples {n_max}; lower one or raise the other", self.group_size));
        }
        if !self.positive_above.is_finite() {
            return fail("positive_above", "must be a finite number".into());
        }
        if let Some(max_failed) = self.max_failed.filter(|failed| *failed > n_max) {
            return fail("max_failed", format!("is {max_failed}, above max_samples {n_max}; lower it"));
        }
        if self.budget == Some(0) {
            return fail("budget", "is 0; allow at least 1 sample, or leave it out".into());
        }
        if !(0.0..=100.0).contains(&self.history_prior) {
            return fail("history_prior", format!("is {}; it must be between 0 (off) and 100", self.history_prior));
        }
        if !(0.0..=1.0).contains(&self.history_decay) {
            return fail("history_decay", format!("is {}; it must be between 0 (forget at once) and 1 (never)", self.history_decay));
        }
        match &self.kind {
            Kind::Uniform => Ok(()),
            Kind::Dapo { groups_wanted: 0 } => fail("groups_wanted", "is 0; ask for at least 1 group".into()),
            Kind::Dapo { .. } => Ok(()),
            Kind::Estimate { min_samples, prior: (a, b), epsilon } => {
                if *min_samples == 0 || *min_samples > n_max {
                    return fail("min_samples", format!("is {min_samples}; it must be between 1 and max_samples ({n_max})"));
                }
                if !(*a > 0.0 && *b > 0.0 && a.is_finite() && b.is_finite()) {
                    return fail("prior", format!("is [{a}, {b}]; both pseudo-counts must be above 0"));
                }
                if !(*epsilon > 0.0 && *epsilon <= 1.0) {
                    return fail("epsilon", format!("is {epsilon}; it must be above 0 and at most 1"));
                }
                Ok(())
            }
            Kind::Sequential { round_size, straight_positives, .. } => {
                if *round_size == 0 || *round_size > n_max {
                    return fail("round_size", format!("is {round_size}; it must be between 1 and max_samples ({n_max})"));
                }
                if *straight_positives != 0 && !(self.group_size..=n_max).contains(straight_positives) {
                    let problem = format!(
                        "is {straight_positives}; it must be 0 (off) or between group_size ({}) and max_samples ({n_max})",
                        self.group_size
                    );
                    return fail("straight_positives", problem);
                }
                let plan = self.plan_of(n_max);
                if u64::from(plan.k_pos) + u64::from(plan.k_neg) > u64::from(n_max) {
                    let problem =
                        format!("wants {} positives and {} negatives, more than max_samples ({n_max}) can give", plan.k_pos, plan.k_neg);
                    return fail("exit", problem);
                }
                Ok(())
            }
        }
    }

    /// Checks what depends on the number of prompts; error paths are relative to the strategy.
    pub fn check(&self, prompts: usize) -> Result<(), FieldError> {
        let prompts = prompts as u64;
        match &self.kind {
            Kind::Dapo { groups_wanted } if u64::from(*groups_wanted) > prompts => {
                let problem =
                    format!("is {groups_wanted}, and the request has {prompts} prompts; give more prompts or ask for fewer groups");
                Err(FieldError::new("groups_wanted", problem))
            }
            Kind::Estimate { min_samples, .. } => {
                let (least, most) = (prompts * u64::from(*min_samples), prompts * u64::from(self.max_samples));
                let budget = self.allocation(prompts as usize);
                if (least..=most).contains(&budget) {
                    return Ok(());
                }
                let problem = format!(
                    "is {budget}; {prompts} prompts of min_samples ({min_samples}) to max_samples ({}) take {least} to {most}",
                    self.max_samples
                );
                Err(FieldError::new("budget", problem))
            }
            _ => Ok(()),
        }
    }

    /// The number of samples that `estimate` allots: the budget, or n for each prompt.
    fn allocation(&self, prompts: usize) -> u64 {
        self.budget.unwrap_or(u64::from(self.group_size) * prompts as u64)
    }

    /// One plan per prompt, in request order; `history` is what the job's snapshot knows of each.
    pub fn plans(&self, history: &[Option<History>]) -> Vec<Plan> {
        match &self.kind {
            Kind::Estimate { min_samples, prior, epsilon } => {
                let rates: Vec<f64> = history.iter().map(|known| estimate::rate(*known, *prior)).collect();
                let counts = estimate::allocate(&rates, *epsilon, (*min_samples, self.max_samples), self.allocation(history.len()));
                counts.into_iter().map(|n| self.plan_of(n)).collect()
            }
            _ => vec![self.plan_of(self.max_samples); history.len()],
        }
    }

    /// The plan of a prompt with at most `n_max` samples.
    pub fn plan_of(&self, n_max: u32) -> Plan {
        let n = self.group_size;
        let (k_pos, k_neg, m, straight_pos) = match &self.kind {
            Kind::Sequential { exit, round_size, straight_positives } => {
                let (k_pos, k_neg) = match *exit {
                    ExitRule::Positive => (1, 0),
                    ExitRule::Signal => (1, 1),
                    ExitRule::Balance => (n / 2, n - n / 2),
                    ExitRule::Counts { positives, negatives } => (positives, negatives),
                };
                (k_pos, k_neg, *round_size, *straight_positives)
            }
            Kind::Uniform | Kind::Dapo { .. } | Kind::Estimate { .. } => (0, 0, n_max, 0),
        };
        let max_failed = self.max_failed.unwrap_or_else(|| default_max_failed(n_max));
        Plan { k_pos, k_neg, n_max, m, straight_pos, max_failed }
    }

    /// Samples that a group of this plan keeps.
    pub fn kept_size(&self, plan: &Plan) -> u32 {
        match self.kind {
            Kind::Sequential { .. } => self.group_size,
            Kind::Uniform | Kind::Dapo { .. } | Kind::Estimate { .. } => plan.n_max,
        }
    }

    /// Informative groups that `dapo` wants.
    pub fn groups_wanted(&self) -> Option<u32> {
        match self.kind {
            Kind::Dapo { groups_wanted } => Some(groups_wanted),
            _ => None,
        }
    }

    /// The budget that is charged in request order. `estimate` spends its own in the allocation.
    pub fn charged_budget(&self) -> Option<u64> {
        self.budget.filter(|_| !matches!(self.kind, Kind::Estimate { .. }))
    }

    /// The strategy's name.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Uniform => "uniform",
            Kind::Dapo { .. } => "dapo",
            Kind::Sequential { .. } => "sequential",
            Kind::Estimate { .. } => "estimate",
        }
    }
}

impl Written {
    /// Refuses, by name, what belongs to another strategy.
    fn refuse_others(&self, kind: &str) -> Result<(), FieldError> {
        let owners: [(&str, bool, &[&str]); 7] = [
            ("exit", self.exit.is_some(), &["sequential"]),
            ("round_size", self.round_size.is_some(), &["sequential"]),
            ("straight_positives", self.straight_positives.is_some(), &["sequential"]),
            ("groups_wanted", self.groups_wanted.is_some(), &["dapo"]),
            ("min_samples", self.min_samples.is_some(), &["estimate"]),
            ("prior", self.prior.is_some(), &["estimate"]),
            ("epsilon", self.epsilon.is_some(), &["estimate"]),
        ];
        for (name, given, of) in owners {
            if given && !of.contains(&kind) {
                return Err(FieldError::new(name, format!("is only for `{}`, and this is `{kind}`; leave it out", of.join("` and `"))));
            }
        }
        Ok(())
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

/// The echo: every setting that applies, with its effective value. [`Strategy::read`] takes it back.
impl Serialize for Strategy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_map(None)?;
        out.serialize_entry("kind", self.name())?;
        match &self.kind {
            Kind::Uniform => {}
            Kind::Dapo { groups_wanted } => out.serialize_entry("groups_wanted", groups_wanted)?,
            Kind::Sequential { exit, round_size, straight_positives } => {
                out.serialize_entry("exit", exit)?;
                out.serialize_entry("round_size", round_size)?;
                out.serialize_entry("straight_positives", straight_positives)?;
            }
            Kind::Estimate { min_samples, prior, epsilon } => {
                out.serialize_entry("min_samples", min_samples)?;
                out.serialize_entry("prior", prior)?;
                out.serialize_entry("epsilon", epsilon)?;
            }
        }
        out.serialize_entry("group_size", &self.group_size)?;
        out.serialize_entry("max_samples", &self.max_samples)?;
        out.serialize_entry("positive_above", &self.positive_above)?;
        out.serialize_entry("max_failed", &self.max_failed)?;
        out.serialize_entry("limit_counts", &self.limit_counts)?;
        out.serialize_entry("mask_truncated", &self.mask_truncated)?;
        out.serialize_entry("budget", &self.budget)?;
        out.serialize_entry("history_prior", &self.history_prior)?;
        out.serialize_entry("history_decay", &self.history_decay)?;
        out.end()
    }
}
