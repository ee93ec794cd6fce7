//! Log-probability and entropy of target tokens, and the gradient of the logits in place.

use crate::ops::backward::{Scored, Slope};
use crate::ops::cpu::isa::{Isa, per_isa};
use crate::ops::cpu::math::{exp, tree_sum};
use crate::ops::cpu::sample::{self, Scratch};
use crate::ops::{Drawn, NonFinite};

#[inline(always)]
fn entropy_body(row: &[f32], temperature: f32, max: f32, ln_sum: f32) -> f32 {
    let (mut sums, mut weighted) = ([0f64; 16], [0f64; 16]);
    for chunk in row.chunks(16) {
        for ((s, w), v) in sums.iter_mut().zip(&mut weighted).zip(chunk) {
            let below = v / temperature - max;
            let e = exp(below);
            *s += f64::from(e);
            *w += f64::from(e * below);
        }
    }
    ln_sum - (tree_sum(weighted) / tree_sum(sums)) as f32
}
per_isa! {
    /// -sum p ln p = ln_sum - sum e (z - max) / sum e.
    fn entropy(row: &[f32], temperature: f32, max: f32, ln_sum: f32) -> f32 = entropy_body
}

/// One row. See [`crate::ops::TrainOps::score`].
pub(super) fn score(isa: Isa, row: &[f32], target: u32, temperature: f32, scratch: &mut Scratch) -> Result<Scored, NonFinite> {
    let temperature = if temperature == 0.0 { 1.0 } else { temperature };
    let (Drawn { logprob, .. }, norm) = sample::logprob_and_norm(isa, row, target, temperature, scratch)?;
    let entropy = entropy(isa, row, temperature, norm.max, norm.ln_sum);
    Ok(Scored { logprob, entropy, max: norm.max, ln_sum: norm.ln_sum })
}

#[inline(always)]
fn dlogits_body(row: &mut [f32], temperature: f32, scored: Scored, slope: Slope) {
    let inverse = 1.0 / temperature;
    for v in row.iter_mut() {
        let logprob = (*v / temperature - scored.max) - scored.ln_sum;
        let slope = slope.entropy.mul_add(logprob + scored.entropy, slope.logprob);
        *v = -(exp(logprob) * slope) * inverse;
    }
}
per_isa! {
    fn dlogits(row: &mut [f32], temperature: f32, scored: Scored, slope: Slope) = dlogits_body
}

/// One row. See [`crate::ops::TrainOps::score_backward`].
pub(super) fn score_backward(isa: Isa, row: &mut [f32], target: u32, temperature: f32, scored: Scored, slope: Slope) {
    let temperature = if temperature == 0.0 { 1.0 } else { temperature };
    dlogits(isa, row, temperature, scored, slope);
    row[target as usize] += slope.logprob * (1.0 / temperature);
}
