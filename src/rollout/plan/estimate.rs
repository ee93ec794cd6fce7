//! `estimate`: how many samples each prompt gets, from what earlier jobs saw of it.
//!
//! A prompt's history is a decayed count of outcomes, kept across jobs. Its snapshot is a part of the job, so that the allocation is a pure
//! function of the job.

use serde::{Deserialize, Serialize};

/// Decayed counts of a prompt's outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Counted outcomes (N).
    pub n: f64,
    /// Positives among them (S).
    pub s: f64,
}

impl History {
    /// After a job that saw `n` counted outcomes, `s` of them positive: N <- decay N + n, S <- decay S + s.
    pub fn updated(self, decay: f64, n: f64, s: f64) -> Self {
        History { n: decay * self.n + n, s: decay * self.s + s }
    }
}

/// The estimated pass rate, (S + a) / (N + a + b).
pub fn rate(history: Option<History>, (a, b): (f64, f64)) -> f64 {
    let History { n, s } = history.unwrap_or_default();
    (s + a) / (n + a + b)
}

/// Samples per prompt: proportional to 1/sqrt(rate + epsilon), within the bounds, whole numbers that sum to `budget` exactly. A budget that
/// the bounds cannot meet is met as nearly as they allow.
///
/// The real-valued shares are clipped first (the scale is found so that the clipped shares sum to the budget), then rounded down; what is
/// left goes to the largest remainders, ties to the earlier prompt.
pub fn allocate(rates: &[f64], epsilon: f64, (min, max): (u32, u32), budget: u64) -> Vec<u32> {
    let count = rates.len() as u64;
    let budget = budget.clamp(count * u64::from(min), count * u64::from(max));
    let weights: Vec<f64> = rates.iter().map(|rate| 1.0 / (rate + epsilon).sqrt()).collect();
    let share = |scale: f64, weight: f64| (scale * weight).clamp(f64::from(min), f64::from(max));
    let total = |scale: f64| weights.iter().map(|weight| share(scale, *weight)).sum::<f64>();
    // The total grows with the scale: bisect until neighbouring numbers are reached. The order of operations is fixed, so is the result.
    let smallest = weights.iter().copied().fold(f64::INFINITY, f64::min);
    let (mut low, mut high) = (0.0, f64::from(max) / smallest.max(f64::MIN_POSITIVE) + 1.0);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if total(middle) < budget as f64 { low = middle } else { high = middle }
    }
    let shares: Vec<f64> = weights.iter().map(|weight| share(high, *weight)).collect();
    let mut counts: Vec<u32> = shares.iter().map(|share| ((share + 1e-9).floor() as u32).clamp(min, max)).collect();
    let mut by_remainder: Vec<usize> = (0..counts.len()).collect();
    // A remainder that is only rounding noise must not decide.
    let remainder = |i: usize| ((shares[i] - f64::from(counts[i])) * 1e6).round() as i64;
    by_remainder.sort_by_key(|&i| (std::cmp::Reverse(remainder(i)), i));
    let mut left = budget.saturating_sub(counts.iter().map(|n| u64::from(*n)).sum());
    while left > 0 {
        let before = left;
        for &i in &by_remainder {
            if left > 0 && counts[i] < max {
                counts[i] += 1;
                left -= 1;
            }
        }
        if left == before {
            break;
        }
    }
    counts
}
