//! Promises of the sampler: a published generator keyed by what is drawn, draws that follow the filtered distribution exactly, and
//! log-probabilities that are right to f32's accuracy and equal between sampler and scorer to the bit.

mod distribution;
mod draws;
mod filters;
mod logprobs;
mod stream;

use adaroll::ops::cpu::CpuOps;
use adaroll::ops::{Draw, Drawn, Filters, NonFinite, Ops};

use crate::numbers::tensor_of;

/// Filters that own what they name.
#[derive(Clone, Debug)]
struct Spec {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    bias: Vec<(u32, f32)>,
    banned: Vec<u32>,
}

impl Spec {
    fn plain(temperature: f32) -> Spec {
        Spec { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, bias: vec![], banned: vec![] }
    }

    fn filters(&self) -> Filters<'_> {
        let Spec { temperature, top_k, top_p, min_p, .. } = *self;
        Filters { temperature, top_k, top_p, min_p, bias: &self.bias, banned: &self.banned }
    }

    fn draw(&self, row: usize, key: [u32; 2], position: u32, sample: u32) -> Draw<'_> {
        Draw { row, filters: self.filters(), key, position, sample }
    }
}

fn sample(ops: &mut CpuOps, rows: &[Vec<f32>], draws: &[Draw<'_>]) -> Vec<Result<Drawn, NonFinite>> {
    let logits = tensor_of(ops, rows);
    let mut out = Vec::new();
    ops.sample(&logits, draws, &mut out);
    out
}

fn score(ops: &mut CpuOps, rows: &[Vec<f32>], tokens: &[(usize, u32)], temperature: f32) -> Vec<Result<Drawn, NonFinite>> {
    let logits = tensor_of(ops, rows);
    let mut out = Vec::new();
    ops.logprobs_of(&logits, tokens, temperature, &mut out);
    out
}

/// Token and the bits of both log-probabilities.
fn bits(drawn: &Result<Drawn, NonFinite>) -> Option<(u32, u32, u32)> {
    drawn.ok().map(|d| (d.token, d.logprob.to_bits(), d.logprob_raw.to_bits()))
}

/// Softmax in f64; -inf has probability 0.
fn softmax(z: &[f64]) -> Vec<f64> {
    let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = z.iter().map(|v| (v - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// Natural logarithms of the softmax in f64.
fn log_softmax(z: &[f64]) -> Vec<f64> {
    let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // The largest term is 1 and stays out of the sum, so that a small rest is not lost.
    let first = z.iter().position(|v| *v == top).unwrap();
    let rest: f64 = z.iter().enumerate().filter(|(i, _)| *i != first).map(|(_, v)| (v - top).exp()).sum();
    z.iter().map(|v| v - top - rest.ln_1p()).collect()
}

/// A distribution after the filters, by the rules of the table, in f64 and by sorting.
struct Kept {
    /// Probabilities of all tokens; 0 where dropped.
    probabilities: Vec<f64>,
    /// Whether a threshold lies so close to a share that rounding decides.
    ambiguous: bool,
}

fn reference(logits: &[f32], spec: &Spec) -> Kept {
    let mut z: Vec<f64> = logits.iter().map(|&v| f64::from(v)).collect();
    for &(id, bias) in &spec.bias {
        z[id as usize] += f64::from(bias);
    }
    for &id in &spec.banned {
        z[id as usize] = f64::NEG_INFINITY;
    }
    // Adding zero makes zeros equal.
    z.iter_mut().for_each(|v| *v = *v / f64::from(spec.temperature) + 0.0);
    // Stable: equal values stay in the order of their ids.
    let mut order: Vec<usize> = (0..z.len()).collect();
    order.sort_by(|&a, &b| z[b].total_cmp(&z[a]).then(a.cmp(&b)));
    order.retain(|&i| z[i] > f64::NEG_INFINITY);
    if spec.top_k > 0 {
        order.truncate(spec.top_k as usize);
    }
    let mut ambiguous = false;
    let share = |i: usize| (z[i] - z[order[0]]).exp();
    let shares: Vec<f64> = order.iter().map(|&i| share(i)).collect();
    let mut keep = order.len();
    if spec.top_p < 1.0 {
        let target = f64::from(spec.top_p) * shares.iter().sum::<f64>();
        let mut sum = 0.0;
        for (n, s) in shares.iter().enumerate() {
            sum += s;
            // Equal shares add up exactly; others to about 1e-7.
            ambiguous |= (sum - target).abs() < 1e-5 * target && shares.iter().any(|s| *s != 1.0);
            if sum >= target {
                keep = n + 1;
                break;
            }
        }
    }
    if spec.min_p > 0.0 {
        let min_p = f64::from(spec.min_p);
        ambiguous |= shares.iter().any(|s| *s != 1.0 && (s / min_p - 1.0).abs() < 1e-5);
        keep = keep.min(shares.iter().filter(|s| **s >= min_p).count());
    }
    let mut kept = vec![f64::NEG_INFINITY; z.len()];
    for &i in &order[..keep] {
        kept[i] = z[i];
    }
    Kept { probabilities: softmax(&kept), ambiguous }
}
