//! Honest pass rates of an adaptively sampled prompt.
//!
//! Stopping once enough positives are there makes S/N biased: at a true rate of .1, "2 of each" shows .154. So three rates are reported:
//! S/N itself, the mean of the first `m` samples, and the path-count estimator (Girshick, Mosteller, Savage 1946), which is unbiased
//! and uses every sample.

use serde::Serialize;

use super::advantage::{deviation, mean};
use super::outcome::Outcome;
use super::plan::{Exit, ExitKind, Plan};

/// What the strategy saw of one sample below the exit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Its outcome.
    pub outcome: Outcome,
    /// Its raw reward; read only where the outcome is positive or negative.
    pub reward: f64,
    /// Tokens drawn.
    pub tokens: u64,
    /// Whether it ended at `max_tokens` or at the end of the context.
    pub truncated: bool,
}

/// Statistics over every index below the exit. `seen = positive + negative + failed + skipped`; rates and means are over positive and
/// negative, and absent where there is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Indices below the exit.
    pub seen: u32,
    /// Of these, positive.
    pub positive: u32,
    /// Negative.
    pub negative: u32,
    /// Without a reward for good.
    pub failed: u32,
    /// Left out by `mask_truncated` or `limit_counts`.
    pub skipped: u32,
    /// Ended at `max_tokens` or at the end of the context, whatever their outcome.
    pub truncated: u32,
    /// S/N. Biased by the exit; the baseline of `ada`.
    pub pass_rate: Option<f64>,
    /// Mean over the first `m` indices, `m` the shortest stop of the plan. Unbiased, comparable with uniform sampling.
    pub pass_rate_first: Option<f64>,
    /// The path-count estimator. Unbiased.
    pub pass_rate_unbiased: Option<f64>,
    /// Mean of the raw rewards.
    pub reward_mean: Option<f64>,
    /// Their standard deviation (`n - 1`; 0 for one sample).
    pub reward_std: Option<f64>,
    /// Tokens drawn below the exit.
    pub tokens_seen: u64,
}

impl Stats {
    /// The statistics of `seen`, the samples below `exit`.
    pub fn of(plan: &Plan, exit: Exit, seen: &[Seen]) -> Self {
        let count = |outcome| seen.iter().filter(|s| s.outcome == outcome).count() as u32;
        let (positive, negative) = (count(Outcome::Positive), count(Outcome::Negative));
        let rewards: Vec<f64> = seen.iter().filter(|s| s.outcome.counts()).map(|s| s.reward).collect();
        let outcomes: Vec<Outcome> = seen.iter().map(|s| s.outcome).collect();
        let first = &outcomes[..outcomes.len().min(plan.shortest_stop() as usize)];
        Stats {
            seen: seen.len() as u32,
            positive,
            negative,
            failed: count(Outcome::Failed),
            skipped: count(Outcome::Skipped),
            truncated: seen.iter().filter(|s| s.truncated).count() as u32,
            pass_rate: rate(&outcomes),
            pass_rate_first: rate(first),
            pass_rate_unbiased: unbiased(plan, exit, &outcomes),
            reward_mean: mean(&rewards),
            reward_std: (!rewards.is_empty()).then(|| deviation(&rewards)),
            tokens_seen: seen.iter().map(|s| s.tokens).sum(),
        }
    }
}

/// Positives per counted outcome.
fn rate(outcomes: &[Outcome]) -> Option<f64> {
    let counted = outcomes.iter().filter(|o| o.counts()).count();
    let positive = outcomes.iter().filter(|o| **o == Outcome::Positive).count();
    (counted > 0).then(|| positive as f64 / counted as f64)
}

/// paths(first counted draw positive -> the stop point) / paths(all -> the stop point), given which indices were passed over.
pub fn unbiased(plan: &Plan, exit: Exit, outcomes: &[Outcome]) -> Option<f64> {
    let s_over_n = rate(outcomes)?;
    if plan.k_pos == plan.k_neg && plan.k_pos > 0 && plan.m == 1 && plan.straight_pos == 0 {
        return Some(closed_form(plan.k_pos, outcomes).unwrap_or(s_over_n));
    }
    let all = path_weight(plan, exit, outcomes, false);
    if all > 0.0 { Some(path_weight(plan, exit, outcomes, true) / all) } else { Some(s_over_n) }
}

/// "K of each" tested after every sample: (K-1)/(N-1) if the K-th positive came last, (N-K)/(N-1) if the K-th negative did. At N = 2K both
/// meet in one lattice point, whose estimate is their mean, 1/2. Nothing if the prefix does not hold K of each: every order is then
/// possible, and the estimate is S/N.
fn closed_form(k: u32, outcomes: &[Outcome]) -> Option<f64> {
    let count = |class| outcomes.iter().filter(|o| **o == class).count() as u32;
    let (positive, negative) = (count(Outcome::Positive), count(Outcome::Negative));
    let n = positive + negative;
    match () {
        () if positive < k || negative < k => None,
        () if n == 2 * k => Some(0.5),
        () if positive == k => Some(f64::from(k - 1) / f64::from(n - 1)),
        () => Some(f64::from(n - k) / f64::from(n - 1)),
    }
}

/// Total weight of the lattice paths that end at the stop point of `outcomes` and at no earlier stop. Every path to one point has the
/// same weight under any draw probability `q`, so ratios do not depend on it; the observed rate keeps the point far from underflow.
fn path_weight(plan: &Plan, exit: Exit, outcomes: &[Outcome], first_positive: bool) -> f64 {
    let counted = outcomes.iter().filter(|o| o.counts()).count();
    let positives = outcomes.iter().filter(|o| **o == Outcome::Positive).count();
    let q = (positives as f64 + 0.5) / (counted as f64 + 1.0);
    // alive[straight][s]: weight of the paths with s positives; straight says whether the samples 0..straight_pos so far are positive.
    let mut alive = [vec![0.0; counted + 2], vec![0.0; counted + 2]];
    alive[usize::from(plan.straight_pos > 0)][0] = 1.0;
    let mut draws = 0;
    for (index, outcome) in outcomes.iter().enumerate() {
        let in_straight = (index as u32) < plan.straight_pos;
        let mut next = [vec![0.0; counted + 2], vec![0.0; counted + 2]];
        for straight in [0, 1] {
            for s in 0..=draws {
                let weight = alive[straight][s];
                let broken = if in_straight { 0 } else { straight };
                if !outcome.counts() {
                    next[broken][s] += weight;
                    continue;
                }
                next[straight][s + 1] += weight * q;
                if !(first_positive && draws == 0) {
                    next[broken][s] += weight * (1.0 - q);
                }
            }
        }
        draws += usize::from(outcome.counts());
        alive = next;
        let t = index as u32 + 1;
        let stops = |straight: usize, s: usize| {
            let enough = s as u32 >= plan.k_pos && (draws - s) as u32 >= plan.k_neg;
            plan.is_tested(t) && (enough || (straight == 1 && t >= plan.straight_pos))
        };
        if index + 1 == outcomes.len() {
            // At a cap, a budget or a failure every path that is still alive ends here.
            let forced = matches!(exit.kind, ExitKind::Cap | ExitKind::Budget | ExitKind::Failed);
            return [0, 1]
                .iter()
                .filter(|&&straight| forced || stops(straight, positives))
                .map(|&straight| alive[straight][positives])
                .sum();
        }
        for (straight, weights) in alive.iter_mut().enumerate() {
            for (s, weight) in weights.iter_mut().enumerate().take(draws + 1) {
                if stops(straight, s) {
                    *weight = 0.0;
                }
            }
        }
    }
    0.0
}
