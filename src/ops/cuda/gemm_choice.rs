//! Which kernels multiply by which weights: ours, or those of cuBLASLt. What was asked for, what is measured, and what follows. No card is needed
//! here.
//!
//! Products are `out[rows, outputs] = x[rows, inputs] w[outputs, inputs]^T`, and `dx[rows, inputs] = dy[rows, outputs] w` on the way back. Our kernels
//! give a row the same bits whatever the number of rows. (Gradients of weights are sums over rows: they stay with our kernels, whose bits do not
//! depend on how a batch is cut.)
//! cuBLASLt promises nothing of the kind; one of its algorithms may be used for a weight shape if a sweep at start-up finds that its rows keep their
//! bits. What is used is part of the backend's numerics: the two add in different orders.

use std::fmt;
use std::str::FromStr;

use half::bf16;

use super::tensor::stride_of;

/// `--gemm`: what was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GemmChoice {
    /// cuBLASLt for the weight shapes for which it is exact and faster, our own kernels for the others.
    #[default]
    Auto,
    /// Our own kernels; cuBLASLt is not even looked for.
    Own,
    /// cuBLASLt for all weight shapes for which it is exact; an error where it is missing.
    Cublaslt,
}

impl FromStr for GemmChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(GemmChoice::Auto),
            "own" => Ok(GemmChoice::Own),
            "cublaslt" => Ok(GemmChoice::Cublaslt),
            _ => Err("give auto, own or cublaslt".into()),
        }
    }
}

impl fmt::Display for GemmChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GemmChoice::Auto => "auto",
            GemmChoice::Own => "own",
            GemmChoice::Cublaslt => "cublaslt",
        })
    }
}

/// What one algorithm is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WeightShape {
    /// Rows of the weights.
    pub outputs: usize,
    /// Columns of the weights.
    pub inputs: usize,
    /// The outputs are f32, not bf16. Their gradients are bf16 all the same, in rows as far apart as the outputs'.
    pub wide: bool,
    /// `dx = dy w`, the way back, and not `out = x w^T`.
    pub back: bool,
}

impl WeightShape {
    /// The same weights on the way back.
    pub fn backwards(self) -> WeightShape {
        WeightShape { back: true, ..self }
    }

    /// Numbers in a sum.
    pub(super) fn reduced(self) -> usize {
        if self.back { self.outputs } else { self.inputs }
    }

    /// Columns of the product.
    pub(super) fn width(self) -> usize {
        if self.back { self.inputs } else { self.outputs }
    }

    /// From a row of what is multiplied to the next, in its bf16 values.
    pub(super) fn x_stride(self) -> usize {
        stride_of(self.reduced()) * if self.back && self.wide { 2 } else { 1 }
    }

    /// Whether the product is f32.
    pub(super) fn gives_wide(self) -> bool {
        self.wide && !self.back
    }

    /// Bytes of a value of the product.
    pub(super) fn out_bytes(self) -> usize {
        if self.gives_wide() { 4 } else { 2 }
    }
}

impl fmt::Display for WeightShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype = if self.wide { "f32" } else { "bf16" };
        write!(f, "[{}, {}] {} {dtype}", self.outputs, self.inputs, if self.back { "back from" } else { "to" })
    }
}

/// Products that a model will ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Products {
    /// Their weights.
    pub shape: WeightShape,
    /// Most rows of one of them.
    pub most_rows: usize,
}

/// One entry for each weight shape, in the order of first use: several weights may have the same.
pub fn merged(products: &[Products]) -> Vec<Products> {
    let mut all: Vec<Products> = Vec::new();
    for one in products {
        match all.iter_mut().find(|known| known.shape == one.shape) {
            Some(known) => known.most_rows = known.most_rows.max(one.most_rows),
            None => all.push(*one),
        }
    }
    all
}

/// Rows of the products that the sweep compares, ascending; the last is the most there can be.
pub fn row_counts(most_rows: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = [1, 2, 17, 64, 257, 1024].into_iter().filter(|n| *n < most_rows).collect();
    counts.push(most_rows.max(1));
    counts
}

/// Rows of the product that stands for decoding.
pub const FEW_ROWS: usize = 16;

/// Milliseconds of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Of [`FEW_ROWS`] rows.
    pub few: f32,
    /// Of the most rows.
    pub many: f32,
}

/// What multiplies by one weight shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This one of cuBLASLt's candidates.
    Fast(usize),
    /// Our own kernels, because they were asked for.
    Asked,
    /// Our own kernels, because no candidate was exact.
    Inexact,
    /// Our own kernels, because no exact candidate was enough faster.
    Slower,
}

/// Faster by more than this, at the most rows, counts as faster. Less is within the noise of a measurement.
const GAIN: f32 = 1.05;

/// A candidate may be this much slower at few rows.
const LOSS: f32 = 1.25;

/// Decides for one weight shape. Candidates are in cuBLASLt's order, its favourite first; those that are not exact have no times.
///
/// Of candidates that are about as fast the first is taken, so that starts of one machine seldom choose differently.
pub fn decide(choice: GemmChoice, own: Times, candidates: &[Option<Times>]) -> Verdict {
    let sound = |t: &Times| t.few.is_finite() && t.many.is_finite() && t.few > 0.0 && t.many > 0.0;
    let pays = |t: &Times| sound(&own) && t.many * GAIN < own.many && t.few <= own.few * LOSS;
    let exact = || candidates.iter().enumerate().filter_map(|(i, times)| Some((i, (*times)?)));
    let eligible: Vec<(usize, Times)> = match choice {
        GemmChoice::Own => return Verdict::Asked,
        GemmChoice::Auto => exact().filter(|(_, t)| sound(t) && pays(t)).collect(),
        GemmChoice::Cublaslt => exact().collect(),
    };
    if exact().next().is_none() {
        return Verdict::Inexact;
    }
    let best = eligible.iter().map(|(_, t)| t.many).fold(f32::INFINITY, f32::min);
    let about_best = eligible.iter().find(|(_, t)| t.many <= best * GAIN).or(eligible.first());
    about_best.map_or(Verdict::Slower, |(i, _)| Verdict::Fast(*i))
}

/// Rows after which the sweep's activations repeat, for products of at most so many: prime, so that equal rows come to stand at every place of a tile,
/// and at most half of the rows, so that every row has a twin.
pub fn period(most_rows: usize) -> usize {
    [257, 127, 61, 31, 13, 7, 3].into_iter().find(|period| 2 * period <= most_rows).unwrap_or(1)
}

/// The first row whose bits are not those of the reference row of its number, modulo the reference's rows. `rows` are consecutive ones of a product,
/// from row `first` on; `row_bytes` of every `stride_bytes` are values.
pub fn first_unlike(reference: &[u8], rows: &[u8], first: usize, stride_bytes: usize, row_bytes: usize) -> Option<usize> {
    let period = reference.len() / stride_bytes;
    let like = |at: usize| &reference[at % period * stride_bytes..][..row_bytes];
    rows.chunks(stride_bytes)
        .enumerate()
        .map(|(i, row)| (first + i, row))
        .find(|(at, row)| row[..row_bytes] != *like(*at))
        .map(|(at, _)| at)
}

/// The first value that is too far from ours to be the same product of [`probe`]s: equal bits for equal rows say nothing of what was computed.
pub fn first_far(own: &[f32], other: &[f32], inputs: usize) -> Option<usize> {
    // A product of two such values has a variance of 1/9, so sums are of the size of sqrt(inputs) / 3: a wrong one is seen within a few values.
    let slack = 0.01 * (inputs as f32).sqrt();
    let near = |a: f32, b: f32| (a - b).abs() <= slack + a.abs() / 64.0;
    // A NaN is near nothing.
    own.iter().zip(other).position(|(a, b)| !near(*a, *b))
}

/// Values `[rows, cols]` as the card holds them, between -1 and 1, with the second half of the mirrored rows equal to `sign` times the first.
///
/// A product of a row mirrored with -1 and one mirrored with 1 is 0, so what remains of its sum is the rounding on the way: another order
/// of adding gives most of these sums other bits, even in bf16, which hides the last bits of ordinary sums.
pub fn probe(seed: u64, rows: usize, cols: usize, mirrored: impl Fn(usize) -> bool, sign: f32) -> Vec<u8> {
    let (stride, half) = (stride_of(cols), cols / 2);
    let mut state = seed;
    let mut out = Vec::with_capacity(rows * stride * 2);
    let mut row = vec![bf16::ZERO; stride];
    for r in 0..rows {
        // What lies beyond the width is filled too: nothing may read it as a value.
        row.iter_mut().for_each(|to| *to = bf16::from_f32((splitmix(&mut state) >> 40) as f32 / (1u64 << 23) as f32 - 1.0));
        if mirrored(r) {
            let (first, second) = row.split_at_mut(half);
            first.iter().zip(second).for_each(|(from, to)| *to = bf16::from_f32(from.to_f32() * sign));
            // A value that nothing cancels would hide the rounding of all others.
            if sign < 0.0 && cols % 2 == 1 {
                row[cols - 1] = bf16::ZERO;
            }
        }
        row.iter().for_each(|v| out.extend(v.to_le_bytes()));
    }
    out
}

/// The next 64 bits of a SplitMix64 stream.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
