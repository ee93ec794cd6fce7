//! When to stop sampling a prompt.
//!
//! The decision looks at outcomes in index order and at nothing else: which sample finished first never matters. Stopping at whichever
//! samples finish first would favour short answers; see the twin test.

use serde::Serialize;

use super::outcome::Outcome;

/// Stop at the first `t >= 1`, a multiple of `m` or equal to `n_max`, at which the prefix `0..t` holds at least `k_pos` positives and
/// `k_neg` negatives, or at which `t >= straight_pos` and the samples `0..straight_pos` are all positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Positives wanted.
    pub k_pos: u32,
    /// Negatives wanted.
    pub k_neg: u32,
    /// At most this many indices; an index at or above it is never issued.
    pub n_max: u32,
    /// The exit is tested after every `m` samples.
    pub m: u32,
    /// Stop a prompt whose first `straight_pos` samples are all positive; 0 turns this off.
    pub straight_pos: u32,
    /// More failed indices than this end the group as failed, at once.
    pub max_failed: u32,
}

/// Where a plan stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Number of indices below the exit.
    pub t: u32,
    /// Why it stops there.
    pub kind: ExitKind,
}

/// Why a plan stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExitKind {
    /// Enough positives and negatives.
    Plan,
    /// The first `straight_pos` samples were all positive.
    Straight,
    /// `n_max` samples, and still not enough.
    Cap,
    /// The request's budget ended first.
    Budget,
    /// Too many indices failed.
    Failed,
}

impl ExitKind {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            ExitKind::Plan => "plan",
            ExitKind::Straight => "straight",
            ExitKind::Cap => "cap",
            ExitKind::Budget => "budget",
            ExitKind::Failed => "failed",
        }
    }
}

impl Plan {
    /// A plan with the default allowance for failures: a tenth of `n_max`, at least 1.
    pub fn new(k_pos: u32, k_neg: u32, n_max: u32, m: u32) -> Self {
        Plan { k_pos, k_neg, n_max, m, straight_pos: 0, max_failed: default_max_failed(n_max) }
    }

    /// Whether the exit is tested after `t` samples.
    pub fn is_tested(&self, t: u32) -> bool {
        t == self.n_max || t.is_multiple_of(self.m.max(1))
    }

    /// `T_ub`: the smallest exit that the outcomes known so far already guarantee, whatever the missing ones turn out to be. Samples at
    /// or above it can never matter again. It only falls as outcomes arrive.
    pub fn bound(&self, outcomes: &[Outcome]) -> Exit {
        let (mut positive, mut negative, mut failed) = (0, 0, 0);
        let mut straight = self.straight_pos > 0;
        for index in 0..self.n_max {
            let outcome = outcome_at(outcomes, index);
            match outcome {
                Outcome::Positive => positive += 1,
                Outcome::Negative => negative += 1,
                Outcome::Failed => failed += 1,
                Outcome::Unscored | Outcome::Skipped => {}
            }
            straight &= index >= self.straight_pos || outcome == Outcome::Positive;
            let t = index + 1;
            if failed > self.max_failed {
                return Exit { t, kind: ExitKind::Failed };
            }
            if self.is_tested(t) && positive >= self.k_pos && negative >= self.k_neg {
                return Exit { t, kind: ExitKind::Plan };
            }
            if self.is_tested(t) && straight && t >= self.straight_pos {
                return Exit { t, kind: ExitKind::Straight };
            }
        }
        Exit { t: self.n_max, kind: ExitKind::Cap }
    }

    /// The exit, once every index below it is resolved.
    pub fn exit(&self, outcomes: &[Outcome]) -> Option<Exit> {
        let bound = self.bound(outcomes);
        let resolved = (0..bound.t).all(|index| outcome_at(outcomes, index).is_resolved());
        resolved.then_some(bound)
    }

    /// Whether the sample at `index` may still matter: whether it lies below [`Plan::bound`].
    pub fn may_matter(&self, outcomes: &[Outcome], index: u32) -> bool {
        index < self.bound(outcomes).t
    }

    /// The smallest exit that is still possible, if every missing outcome is what the plan would wish for. Every index below it is
    /// needed for certain (unless failures end the group first).
    pub fn earliest(&self, outcomes: &[Outcome]) -> u32 {
        let (mut positive, mut negative, mut missing) = (0u32, 0u32, 0u32);
        let mut straight = self.straight_pos > 0;
        for index in 0..self.n_max {
            let outcome = outcome_at(outcomes, index);
            match outcome {
                Outcome::Positive => positive += 1,
                Outcome::Negative => negative += 1,
                Outcome::Unscored => missing += 1,
                Outcome::Failed | Outcome::Skipped => {}
            }
            straight &= index >= self.straight_pos || matches!(outcome, Outcome::Positive | Outcome::Unscored);
            let t = index + 1;
            let wanted = self.k_pos.saturating_sub(positive) + self.k_neg.saturating_sub(negative);
            if self.is_tested(t) && (wanted <= missing || (straight && t >= self.straight_pos)) {
                return t.min(self.bound(outcomes).t);
            }
        }
        self.bound(outcomes).t
    }

    /// `m` of the statistics: the shortest stop that this plan can make at all.
    pub fn shortest_stop(&self) -> u32 {
        self.earliest(&[])
    }
}

impl Exit {
    /// The exit under a budget that leaves `allowance` samples to this prompt.
    pub fn within(self, allowance: u32) -> Exit {
        if self.t > allowance { Exit { t: allowance, kind: ExitKind::Budget } } else { self }
    }
}

/// A tenth of `n_max`, at least 1.
pub fn default_max_failed(n_max: u32) -> u32 {
    (n_max / 10).max(1)
}

fn outcome_at(outcomes: &[Outcome], index: u32) -> Outcome {
    outcomes.get(index as usize).copied().unwrap_or_default()
}
