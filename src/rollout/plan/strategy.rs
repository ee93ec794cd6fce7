//! A request's strategy, read and turned into a [`Plan`].
//!
//! Only `sequential` is here: sample a prompt in index order until its exit. Others join as further kinds.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::plan::{Plan, default_max_failed};
use crate::field::{self, FieldError};

/// Names of the strategies this server runs.
pub const KINDS: [&str; 1] = ["sequential"];

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

/// The `sequential` strategy with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequential {
    /// When to stop.
    pub exit: ExitRule,
    /// Samples kept per prompt (n).
    pub group_size: u32,
    /// Samples drawn per prompt at most (N_max).
    pub max_samples: u32,
    /// The exit is tested after every so many samples (M).
    pub round_size: u32,
    /// A reward above this is positive.
    pub positive_above: f64,
    /// Stop a prompt whose first so many samples are all positive; 0 is off.
    pub straight_positives: u32,
    /// More failed samples than this end the group as failed.
    pub max_failed: u32,
    /// What an answer that exceeds a verifier's limit counts as.
    pub limit_counts: LimitCounts,
    /// Leave truncated answers out instead of counting them as negative.
    pub mask_truncated: bool,
}

impl Default for Sequential {
    fn default() -> Self {
        Sequential {
            exit: ExitRule::Balance,
            group_size: 4,
            max_samples: 32,
            round_size: 1,
            positive_above: 0.5,
            straight_positives: 0,
            max_failed: default_max_failed(32),
            limit_counts: LimitCounts::Negative,
            mask_truncated: false,
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
    round_size: Option<u32>,
    positive_above: Option<f64>,
    straight_positives: Option<u32>,
    max_failed: Option<u32>,
    limit_counts: Option<LimitCounts>,
    mask_truncated: Option<bool>,
    budget: Option<Value>,
    groups_wanted: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    positives: u32,
    negatives: u32,
}

impl Sequential {
    /// Reads a request's `strategy`; error paths are relative to it.
    pub fn read(value: &Value) -> Result<Self, FieldError> {
        if !value.is_object() {
            return Err(FieldError::new(
                "",
                format!("must be an object such as {{\"kind\": \"sequential\"}}; supported kinds: {}", KINDS.join(", ")),
            ));
        }
        match value.get("kind") {
            None | Some(Value::Null) => {}
            Some(Value::String(kind)) if KINDS.contains(&kind.as_str()) => {}
            Some(other) => {
                return Err(FieldError::new(
                    "kind",
                    format!("is {other}, which this server does not run; supported: {}", KINDS.join(", ")),
                ));
            }
        }
        let written: Written = field::parse(value)?;
        for (name, value) in [("budget", &written.budget), ("groups_wanted", &written.groups_wanted)] {
            if value.is_some() {
                return Err(FieldError::new(name, "is not supported by this server; leave it out or null"));
            }
        }
        let default = Sequential::default();
        let max_samples = written.max_samples.unwrap_or(default.max_samples);
        let strategy = Sequential {
            exit: written.exit.map_or(Ok(default.exit), |exit| ExitRule::read(&exit).map_err(|e| e.within("exit")))?,
            group_size: written.group_size.unwrap_or(default.group_size),
            max_samples,
            round_size: written.round_size.unwrap_or(default.round_size),
            positive_above: written.positive_above.unwrap_or(default.positive_above),
            straight_positives: written.straight_positives.unwrap_or(0),
            max_failed: written.max_failed.unwrap_or(default_max_failed(max_samples)),
            limit_counts: written.limit_counts.unwrap_or_default(),
            mask_truncated: written.mask_truncated.unwrap_or(false),
        };
        strategy.validate()?;
        Ok(strategy)
    }

    fn validate(&self) -> Result<(), FieldError> {
        let fail = |field: &str, problem: String| Err(FieldError::new(field, problem));
        let n_max = self.max_samples;
        if self.group_size < 2 {
            return fail("group_size", format!("is {}; a group needs at least 2 samples to show a contrast", self.group_size));
        }
        if n_max == 0 {
            return fail("max_samples", "is 0; allow at least 1 sample".into());
        }
        if self.group_size > n_max {
            return fail("group_size", format!("is {}, above max_samples {n_max}; lower one or raise the other", self.group_size));
        }
        if self.round_size == 0 || self.round_size > n_max {
            return fail("round_size", format!("is {}; it must be between 1 and max_samples ({n_max})", self.round_size));
        }
        if !(0.0..1.0).contains(&self.positive_above) {
            return fail(
                "positive_above",
                format!("is {}; rewards are 0 or 1 here, so it must be at least 0 and below 1", self.positive_above),
            );
        }
        if self.straight_positives != 0 && !(self.group_size..=n_max).contains(&self.straight_positives) {
            let problem = format!(
                "is {}; it must be 0 (off) or between group_size ({}) and max_samples ({n_max})",
                self.straight_positives, self.group_size
            );
            return fail("straight_positives", problem);
        }
        if self.max_failed > n_max {
            return fail("max_failed", format!("is {}, above max_samples {n_max}; lower it", self.max_failed));
        }
        let plan = self.plan();
        if u64::from(plan.k_pos) + u64::from(plan.k_neg) > u64::from(n_max) {
            let problem = format!("wants {} positives and {} negatives, more than max_samples ({n_max}) can give", plan.k_pos, plan.k_neg);
            return fail("exit", problem);
        }
        Ok(())
    }

    /// The plan that this strategy follows.
    pub fn plan(&self) -> Plan {
        let n = self.group_size;
        let (k_pos, k_neg) = match self.exit {
            ExitRule::Positive => (1, 0),
            ExitRule::Signal => (1, 1),
            ExitRule::Balance => (n / 2, n - n / 2),
            ExitRule::Counts { positives, negatives } => (positives, negatives),
        };
        Plan {
            k_pos,
            k_neg,
            n_max: self.max_samples,
            m: self.round_size,
            straight_pos: self.straight_positives,
            max_failed: self.max_failed,
        }
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

impl Serialize for Sequential {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Sequential", 12)?;
        out.serialize_field("kind", "sequential")?;
        out.serialize_field("exit", &self.exit)?;
        out.serialize_field("group_size", &self.group_size)?;
        out.serialize_field("max_samples", &self.max_samples)?;
        out.serialize_field("round_size", &self.round_size)?;
        out.serialize_field("positive_above", &self.positive_above)?;
        out.serialize_field("straight_positives", &self.straight_positives)?;
        out.serialize_field("max_failed", &self.max_failed)?;
        out.serialize_field("limit_counts", &self.limit_counts)?;
        out.serialize_field("mask_truncated", &self.mask_truncated)?;
        out.serialize_field("budget", &None::<u64>)?;
        out.serialize_field("groups_wanted", &None::<u64>)?;
        out.end()
    }
}
