//! A request's strategy: what every prompt's [`Plan`] is, and how many of its samples a trainer gets.
//!
//! Two shapes: a plan with an exit (`uniform`, `dapo`, `sequential`) and an allocation of a budget from the prompts' histories
//! (`estimate`). What a request writes is read in `read.rs`; what [`Serialize`] prints, [`Strategy::read`] reads back to an equal value,
//! because jobs are restored from it.

mod allocation;
mod read;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use super::plan::{Plan, default_max_failed};
use crate::field::FieldError;

/// Names of the strategies this server runs.
pub const KINDS: [&str; 4] = ["uniform", "dapo", "sequential", "estimate"];

/// A strategy with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Strategy {
    /// The rule, with the settings that only it has.
    pub kind: Kind,
    /// Samples kept per prompt (n); for `estimate` what a prompt gets on average where `budget` is left out.
    pub group_size: u32,
    /// Samples drawn per prompt at most (N_max).
    pub max_samples: u32,
    /// A reward above this is positive.
    pub positive_above: f64,
    /// More failed samples than this end the group as failed; `None` is a tenth of each prompt's N_max, at least 1.
    pub max_failed: Option<u32>,
    /// What an answer that exceeds a verifier's limit counts as.
    pub limit_counts: LimitCounts,
    /// Leave truncated answers out instead of counting them as negative.
    pub mask_truncated: bool,
    /// Samples for the whole request, charged in request order.
    pub budget: Option<u64>,
    /// Weight of a prompt's history as the width planner's prior; 0 is off. It never changes a group.
    pub history_prior: f64,
    /// How much of a prompt's history stays when a job adds to it.
    pub history_decay: f64,
}

/// The rule of a strategy.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// n samples of each prompt.
    Uniform,
    /// n samples of each prompt; groups without signal are dropped, until enough are kept.
    Dapo {
        /// Groups with signal that end the job: the first ones by request order.
        groups_wanted: u32,
    },
    /// Sample a prompt in index order until its exit.
    Sequential {
        /// When to stop.
        exit: ExitRule,
        /// The exit is tested after every so many samples (M).
        round_size: u32,
        /// Stop a prompt whose first so many samples are all positive; 0 is off.
        straight_positives: u32,
    },
    /// Share a budget among the prompts in proportion to `1 / sqrt(p + epsilon)`, and train on every draw.
    Estimate {
        /// Every prompt gets at least so many.
        min_samples: u32,
        /// `a` and `b` of `p = (S + a) / (N + a + b)`.
        prior: (f64, f64),
        /// Keeps the share of a prompt that nothing solves finite.
        epsilon: f64,
    },
}

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

/// What earlier jobs saw of a prompt: decayed counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Counted outcomes.
    pub n: f64,
    /// Of these, positive.
    pub s: f64,
}

impl History {
    /// The pass rate, if anything was counted.
    pub fn pass_rate(self) -> Option<f64> {
        (self.n > 0.0).then(|| self.s / self.n)
    }
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

impl Kind {
    /// Its name in a request.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Uniform => "uniform",
            Kind::Dapo { .. } => "dapo",
            Kind::Sequential { .. } => "sequential",
            Kind::Estimate { .. } => "estimate",
        }
    }
}

impl Strategy {
    /// One plan per prompt, in request order; `history` has one entry per prompt. Call [`Strategy::check`] first.
    pub fn plans(&self, history: &[Option<History>]) -> Vec<Plan> {
        match self.kind {
            Kind::Estimate { min_samples, prior: (a, b), epsilon } => {
                let weight = |history: &Option<History>| {
                    let History { n, s } = history.unwrap_or_default();
                    1.0 / ((s + a) / (n + a + b) + epsilon).sqrt()
                };
                let weights: Vec<f64> = history.iter().map(weight).collect();
                let shares = allocation::shares(&weights, min_samples, self.max_samples, self.total(history.len()));
                shares.into_iter().map(|n| self.plan(0, 0, n, n)).collect()
            }
            _ => vec![self.common_plan(); history.len()],
        }
    }

    /// The plan of every prompt, where all have the same.
    fn common_plan(&self) -> Plan {
        let n = self.group_size;
        match self.kind {
            Kind::Sequential { exit, round_size, straight_positives } => {
                let (k_pos, k_neg) = match exit {
                    ExitRule::Positive => (1, 0),
                    ExitRule::Signal => (1, 1),
                    ExitRule::Balance => (n / 2, n - n / 2),
                    ExitRule::Counts { positives, negatives } => (positives, negatives),
                };
                Plan { straight_pos: straight_positives, ..self.plan(k_pos, k_neg, self.max_samples, round_size) }
            }
            _ => self.plan(0, 0, n, n),
        }
    }

    fn plan(&self, k_pos: u32, k_neg: u32, n_max: u32, m: u32) -> Plan {
        Plan { max_failed: self.max_failed.unwrap_or(default_max_failed(n_max)), ..Plan::new(k_pos, k_neg, n_max, m) }
    }

    /// The budget that is charged in request order. `estimate` has spent its own in the allocation.
    pub fn charged_budget(&self) -> Option<u64> {
        self.budget.filter(|_| !matches!(self.kind, Kind::Estimate { .. }))
    }

    /// Groups with signal that `dapo` wants.
    pub fn groups_wanted(&self) -> Option<u32> {
        match self.kind {
            Kind::Dapo { groups_wanted } => Some(groups_wanted),
            _ => None,
        }
    }

    /// The budget of `estimate` for so many prompts.
    fn total(&self, prompts: usize) -> u64 {
        self.budget.unwrap_or(u64::from(self.group_size) * prompts as u64)
    }

    /// How many samples of a prompt with this plan are kept: all draws, except for `sequential`.
    pub fn kept_size(&self, plan: &Plan) -> u32 {
        match self.kind {
            Kind::Sequential { .. } => self.group_size,
            Kind::Uniform | Kind::Dapo { .. } | Kind::Estimate { .. } => plan.n_max,
        }
    }

    /// Refuses what cannot be met with this number of prompts.
    pub fn check(&self, prompts: usize) -> Result<(), FieldError> {
        match self.kind {
            Kind::Dapo { groups_wanted } if groups_wanted as usize > prompts => {
                let problem = format!("is {groups_wanted}, but the request has {prompts} prompts; want fewer groups or send more prompts");
                Err(FieldError::new("groups_wanted", problem))
            }
            Kind::Estimate { min_samples, .. } => {
                let of = |each: u32| u64::from(each) * prompts as u64;
                let (least, most, total) = (of(min_samples), of(self.max_samples), self.total(prompts));
                if (least..=most).contains(&total) {
                    return Ok(());
                }
                let default = if self.budget.is_none() { " (group_size for each prompt)" } else { "" };
                let problem = format!(
                    "is {total}{default}, but {prompts} prompts with min_samples {min_samples} and max_samples {} take {least} to {most} \
                     samples; choose a budget in that range or move the limits",
                    self.max_samples
                );
                Err(FieldError::new("budget", problem))
            }
            _ => Ok(()),
        }
    }
}

impl Serialize for Strategy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_map(None)?;
        out.serialize_entry("kind", self.kind.name())?;
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
