//! What a prompt yields: the balanced samples that a trainer gets, and what is known about the prompt.

use serde::{Deserialize, Serialize};

use super::advantage::{Advantage, Observed};
use super::outcome::Outcome;
use super::plan::{Exit, ExitKind, Plan};
use super::stats::{Seen, Stats};
use super::strategy::History;

/// How a group ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The plan got what it wanted.
    Resolved,
    /// `max_samples` or the budget ended it first. Its samples may still be of use.
    Exhausted,
    /// Too many samples failed, or the reference answer cannot be used. It keeps no samples.
    Failed,
}

impl Status {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Status::Resolved => "resolved",
            Status::Exhausted => "exhausted",
            Status::Failed => "failed",
        }
    }
}

/// One kept sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// Index of the sample within its prompt.
    pub index: u32,
    /// How much better than the baseline; 0 in a group without signal.
    pub advantage: f64,
}

/// A prompt's group, without its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// How it ended.
    pub status: Status,
    /// Why sampling stopped; absent for a failed group.
    pub exit: Option<ExitKind>,
    /// Whether the kept rewards differ, and where the advantage scales with a pass rate, whether both classes are kept. Without contrast
    /// nothing can be learned: advantages are 0.
    pub signal: bool,
    /// The group's weight on the gradient of the pass rate, where an objective is set and the rate is strictly between 0 and 1.
    pub effective_weight: Option<f64>,
    /// The kept samples by index.
    pub kept: Vec<Kept>,
    /// Statistics over every sample the strategy saw.
    pub stats: Stats,
}

impl Group {
    /// Forms the group of the samples below `exit`; `size` is the kept size n, `history` the prompt's before this
    /// job.
    pub fn form(plan: &Plan, exit: Exit, seen: &[Seen], size: u32, advantage: Advantage, history: Option<History>) -> Self {
        let stats = Stats::of(plan, exit, seen);
        let (status, exit_kind) = match exit.kind {
            ExitKind::Plan | ExitKind::Straight => (Status::Resolved, Some(exit.kind)),
            ExitKind::Cap | ExitKind::Budget => (Status::Exhausted, Some(exit.kind)),
            ExitKind::Failed => (Status::Failed, None),
        };
        if status == Status::Failed {
            return Group { status, exit: exit_kind, signal: false, effective_weight: None, kept: Vec::new(), stats };
        }
        let outcomes: Vec<Outcome> = seen.iter().map(|s| s.outcome).collect();
        let indices = kept_indices(&outcomes, size);
        let rewards: Vec<f64> = indices.iter().map(|&i| seen[i as usize].reward).collect();
        let positive: Vec<bool> = indices.iter().map(|&i| seen[i as usize].outcome == Outcome::Positive).collect();
        let observed = Observed {
            rewards: &rewards,
            positive: &positive,
            reward_mean: stats.reward_mean.unwrap_or(0.0),
            pass_rate: stats.pass_rate.unwrap_or(0.0),
            pass_rate_unbiased: stats.pass_rate_unbiased.unwrap_or(0.0),
            history,
        };
        let signal = advantage.has_signal(&observed);
        let advantages = advantage.of(&observed);
        let effective_weight = if signal { advantage.effective_weight(&observed, &advantages) } else { None };
        let kept = indices.into_iter().zip(advantages).map(|(index, advantage)| Kept { index, advantage }).collect();
        Group { status, exit: exit_kind, signal, effective_weight, kept, stats }
    }

    /// The group of a prompt whose reference answer cannot be used: nothing was sampled.
    pub fn of_bad_gold() -> Self {
        Group { status: Status::Failed, exit: None, signal: false, effective_weight: None, kept: Vec::new(), stats: Stats::default() }
    }
}

/// The first n/2 positives and the first n - n/2 negatives by index; where one class is short, more of the other. Ascending.
pub fn kept_indices(outcomes: &[Outcome], size: u32) -> Vec<u32> {
    let of = |class| (0u32..).zip(outcomes).filter(|(_, o)| **o == class).map(|(i, _)| i).collect::<Vec<_>>();
    let (mut positive, mut negative) = (of(Outcome::Positive), of(Outcome::Negative));
    let size = size as usize;
    let want_positive = (size / 2).max(size.saturating_sub(negative.len()));
    positive.truncate(want_positive);
    negative.truncate(size - positive.len());
    positive.append(&mut negative);
    positive.sort_unstable();
    positive
}
