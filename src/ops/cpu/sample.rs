//! Log-probabilities and draws from rows of logits. The sampler and the scorer share [`log_sum_exp`]; that is why a scored sequence gives
//! back the sampler's log-probabilities bit for bit.

use super::isa::{Isa, per_isa};
use super::math::{exp, ln, tree_sum};
use crate::ops::philox::gumbel_noise;
use crate::ops::{Draw, Drawn, Filters, NonFinite};

/// Working memory of one thread.
#[derive(Default)]
pub(super) struct Scratch {
    scaled: Vec<f32>,
    keys: Vec<u64>,
}

/// Largest value of a row and the logarithm of the sum of `exp(value - max)`.
#[derive(Clone, Copy)]
pub(super) struct Norm {
    pub(super) max: f32,
    pub(super) ln_sum: f32,
}

impl Norm {
    fn logprob(self, value: f32) -> f32 {
        (value - self.max) - self.ln_sum
    }
}

#[inline(always)]
fn all_finite_body(row: &[f32]) -> bool {
    let mut worst = [0u32; 16];
    for chunk in row.chunks(16) {
        for (w, v) in worst.iter_mut().zip(chunk) {
            *w = (*w).max(v.to_bits() & 0x7fff_ffff);
        }
    }
    worst.iter().all(|&w| w < 0x7f80_0000)
}
per_isa! {
    fn all_finite(row: &[f32]) -> bool = all_finite_body
}

#[inline(always)]
fn max_body(row: &[f32]) -> f32 {
    let mut top = [f32::NEG_INFINITY; 16];
    for chunk in row.chunks(16) {
        for (t, v) in top.iter_mut().zip(chunk) {
            *t = if *v > *t { *v } else { *t };
        }
    }
    top.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
}

#[inline(always)]
fn log_sum_exp_body(row: &[f32]) -> (f32, f32) {
    let max = max_body(row);
    // In f64: beside the 1 of the most likely token an f32 sum drops whatever is below 2^-24, and a vocabulary of such terms matters.
    let mut sums = [0f64; 16];
    let (whole, rest) = row.as_chunks::<16>();
    for chunk in whole {
        for j in 0..16 {
            sums[j] += f64::from(exp(chunk[j] - max));
        }
    }
    for (s, v) in sums.iter_mut().zip(rest) {
        *s += f64::from(exp(*v - max));
    }
    (max, ln(tree_sum(sums) as f32))
}
per_isa! {
    /// Maximum and ln of the sum of exponentials: element i in lane i mod 16 (f64), ascending, then the tree.
    fn log_sum_exp(row: &[f32]) -> (f32, f32) = log_sum_exp_body
}

fn norm(isa: Isa, row: &[f32]) -> Norm {
    let (max, ln_sum) = log_sum_exp(isa, row);
    Norm { max, ln_sum }
}

#[inline(always)]
fn divide_body(row: &[f32], temperature: f32, out: &mut [f32]) {
    for (o, v) in out.iter_mut().zip(row) {
        *o = v / temperature;
    }
}
per_isa! {
    fn divide(row: &[f32], temperature: f32, out: &mut [f32]) = divide_body
}

/// Best value and its lowest index, one pair a lane.
struct Best {
    value: [f32; 16],
    index: [u32; 16],
}

impl Best {
    #[inline(always)]
    fn new() -> Best {
        Best { value: [f32::NEG_INFINITY; 16], index: [u32::MAX; 16] }
    }

    #[inline(always)]
    fn consider(&mut self, first: u32, values: &[f32; 16]) {
        for (j, &value) in values.iter().enumerate() {
            let better = value > self.value[j];
            self.value[j] = if better { value } else { self.value[j] };
            self.index[j] = if better { first + j as u32 } else { self.index[j] };
        }
    }

    /// The winner over all lanes; `None` if everything was -inf.
    fn winner(&self) -> Option<u32> {
        let (mut value, mut index) = (f32::NEG_INFINITY, u32::MAX);
        for (&v, &i) in self.value.iter().zip(&self.index) {
            if v > value || (v == value && i < index) {
                (value, index) = (v, i);
            }
        }
        (index != u32::MAX).then_some(index)
    }
}

/// Tokens whose noise is made at a time; a multiple of 64.
const NOISE: usize = 512;

#[inline(always)]
fn gumbel_argmax_body(z: &[f32], key: [u32; 2], position: u32, sample: u32) -> Option<u32> {
    let mut best = Best::new();
    let mut noise = [0f32; NOISE];
    for (n, values) in z.chunks(NOISE).enumerate() {
        gumbel_noise(key, position, sample, n * NOISE, &mut noise[..values.len().next_multiple_of(64)]);
        for (i, chunk) in values.chunks(16).enumerate() {
            let mut sum = [f32::NEG_INFINITY; 16];
            for (j, (s, v)) in sum.iter_mut().zip(chunk).enumerate() {
                *s = v + noise[16 * i + j];
            }
            best.consider((n * NOISE + 16 * i) as u32, &sum);
        }
    }
    best.winner()
}
per_isa! {
    /// Argmax of `z + noise`; ties: the lower index.
    fn gumbel_argmax(z: &[f32], key: [u32; 2], position: u32, sample: u32) -> Option<u32> = gumbel_argmax_body
}

#[inline(always)]
fn argmax_body(z: &[f32]) -> Option<u32> {
    let mut best = Best::new();
    for (i, chunk) in z.chunks(16).enumerate() {
        let mut values = [f32::NEG_INFINITY; 16];
        values[..chunk.len()].copy_from_slice(chunk);
        best.consider(16 * i as u32, &values);
    }
    best.winner()
}
per_isa! {
    /// Argmax; ties: the lower index.
    fn argmax(z: &[f32]) -> Option<u32> = argmax_body
}

/// Sorts like (value descending, index ascending) when compared as integers, smallest first.
fn rank_key(value: f32, index: usize) -> u64 {
    // Adding zero turns -0 into +0: equal values have equal bits.
    let bits = (value + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 };
    u64::from(!ascending) << 32 | index as u64
}

fn key_index(key: u64) -> usize {
    (key & 0xffff_ffff) as usize
}

/// A token's share in units of 2^-40 of the most likely token's: integers, so that their sum has no order.
fn mass(value: f32, max: f32) -> u64 {
    (exp(value - max) * 1_099_511_627_776.0) as u64
}

/// Sets everything that the filters drop to -inf.
fn filter(isa: Isa, z: &mut [f32], f: &Filters<'_>, keys: &mut Vec<u64>) {
    let top_k = f.top_k as usize;
    if top_k > 0 && top_k < z.len() {
        keys.clear();
        keys.extend(z.iter().enumerate().map(|(i, &v)| rank_key(v, i)));
        let (_, _, dropped) = keys.select_nth_unstable(top_k - 1);
        for &mut key in dropped {
            z[key_index(key)] = f32::NEG_INFINITY;
        }
    }
    let max = norm(isa, z).max;
    if f.top_p < 1.0 {
        keys.clear();
        keys.extend(z.iter().enumerate().filter(|(_, v)| **v > f32::NEG_INFINITY).map(|(i, &v)| rank_key(v, i)));
        let masses = |keys: &[u64], z: &[f32]| keys.iter().map(|&k| mass(z[key_index(k)], max)).sum::<u64>();
        let target = (f64::from(f.top_p) * masses(keys, z) as f64).ceil() as u64;
        // Weighted selection: the smallest prefix in rank order whose mass reaches the target, one halving at a time.
        let (mut first, mut end, mut before) = (0, keys.len(), 0);
        while end - first > 1 {
            let middle = (end - first) / 2;
            keys[first..end].select_nth_unstable(middle);
            let lower = masses(&keys[first..first + middle], z);
            if before + lower >= target {
                end = first + middle;
            } else {
                before += lower;
                first += middle;
            }
        }
        for &key in &keys[end..] {
            z[key_index(key)] = f32::NEG_INFINITY;
        }
    }
    if f.min_p > 0.0 {
        for v in z.iter_mut() {
            if exp(*v - max) < f.min_p {
                *v = f32::NEG_INFINITY;
            }
        }
    }
}

/// One draw from one row of logits.
pub(super) fn draw(isa: Isa, row: &[f32], d: &Draw<'_>, scratch: &mut Scratch) -> Result<Drawn, NonFinite> {
    if !all_finite(isa, row) {
        return Err(NonFinite);
    }
    let f = &d.filters;
    let raw = norm(isa, row);
    let filtered = f.top_k > 0 || f.top_p < 1.0 || f.min_p > 0.0;
    let touched = !f.bias.is_empty() || !f.banned.is_empty();
    if f.temperature == 1.0 && !filtered && !touched {
        let token = gumbel_argmax(isa, row, d.key, d.position, d.sample).ok_or(NonFinite)?;
        let logprob = raw.logprob(row[token as usize]);
        return finite(token, logprob, logprob);
    }
    scratch.scaled.clear();
    scratch.scaled.extend_from_slice(row);
    let z = &mut scratch.scaled[..];
    for &(id, bias) in f.bias {
        z[id as usize] += bias;
    }
    for &id in f.banned {
        z[id as usize] = f32::NEG_INFINITY;
    }
    if f.temperature == 0.0 {
        let token = argmax(isa, z).ok_or(NonFinite)?;
        let logprob = raw.logprob(row[token as usize]);
        return finite(token, logprob, logprob);
    }
    if touched {
        for v in z.iter_mut() {
            *v /= f.temperature;
        }
    } else {
        divide(isa, row, f.temperature, z);
    }
    if filtered {
        filter(isa, z, f, &mut scratch.keys);
    }
    let token = gumbel_argmax(isa, z, d.key, d.position, d.sample).ok_or(NonFinite)?;
    let logprob = norm(isa, z).logprob(z[token as usize]);
    let logprob_raw = raw.logprob(row[token as usize]);
    finite(token, logprob, logprob_raw)
}

/// Finite logits can still lie further apart than f32 reaches, or be pushed over its largest value by a temperature near 0.
fn finite(token: u32, logprob: f32, logprob_raw: f32) -> Result<Drawn, NonFinite> {
    if logprob.is_finite() && logprob_raw.is_finite() { Ok(Drawn { token, logprob, logprob_raw }) } else { Err(NonFinite) }
}

/// Log-probabilities of a token that is already there, at a temperature without filters.
pub(super) fn logprob_of(isa: Isa, row: &[f32], token: u32, temperature: f32, scratch: &mut Scratch) -> Result<Drawn, NonFinite> {
    logprob_and_norm(isa, row, token, temperature, scratch).map(|(drawn, _)| drawn)
}

/// The same, and the norm at the temperature.
pub(super) fn logprob_and_norm(
    isa: Isa,
    row: &[f32],
    token: u32,
    temperature: f32,
    scratch: &mut Scratch,
) -> Result<(Drawn, Norm), NonFinite> {
    if !all_finite(isa, row) {
        return Err(NonFinite);
    }
    let raw = norm(isa, row);
    let logprob_raw = raw.logprob(row[token as usize]);
    if temperature == 1.0 || temperature == 0.0 {
        return Ok((finite(token, logprob_raw, logprob_raw)?, raw));
    }
    scratch.scaled.resize(row.len(), 0.0);
    divide(isa, row, temperature, &mut scratch.scaled);
    let scaled = norm(isa, &scratch.scaled);
    let logprob = scaled.logprob(scratch.scaled[token as usize]);
    Ok((finite(token, logprob, logprob_raw)?, scaled))
}
