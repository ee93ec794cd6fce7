//! What it costs that bits do not depend on the batch.
//!
//! Whoever lets bits vary may take the library's fastest kernel for every product and number of rows, and may split long sums over more blocks: the
//! inputs of a product (split-K), the keys of attention. Our own kernels tell how fast splitting would be: a product split in s parts has the bytes
//! and blocks of one with s times the outputs and 1/s of the inputs; attention over b sequences of c keys, split in s, has those of s b sequences of
//! c / s. Joining the parts is not counted, so that the figure of the engine that may vary is a lower bound of its time, and the cost an upper one.
//! A step of that engine is ours with the fastest way in each place.

use crate::ops::cuda::Matrix;

use super::GpuBenchError;
use super::kernels::{Product, decode_attention_seconds, operands, product_of, product_seconds};
use super::rig::{Rig, check};
use super::steps::{DecodeFigure, PrefillFigure};
use super::stopwatch::{Deadline, Stopwatch};

/// The cost in one kind of step.
#[derive(Clone, Debug, serde::Serialize)]
pub struct CostFigure {
    /// `decode` or `prefill`.
    pub step: &'static str,
    /// Sequences.
    pub sequences: usize,
    /// Positions of each.
    pub length: usize,
    /// Microseconds of our step.
    pub step_us: f64,
    /// Microseconds that it would take with the fastest way in each place, whatever its bits.
    pub varying_us: f64,
    /// The first over the second, less 1.
    pub cost: f64,
    /// What the cost is to stay below.
    pub target: Option<f64>,
    /// Where another way than ours is the fastest, and which.
    pub faster: Vec<String>,
}

/// Most that invariance may cost.
const TARGET: f64 = 0.2;
/// Parts that are tried.
const PARTS: [usize; 3] = [2, 4, 8];
/// Inputs of a part, and keys of one, are a multiple of this.
const PART_MULTIPLE: usize = 16;
/// Bytes of matrices that are used in turn, so that none is found in the L2 cache.
const TURN_BYTES: usize = 256 << 20;

/// Measures the cost beside each step; `true` says that time was up before the end.
pub(super) fn measure(
    rig: &mut Rig,
    decode: &[DecodeFigure],
    prefill: &[PrefillFigure],
    found: &mut Vec<CostFigure>,
    effort: f64,
    deadline: Deadline,
) -> Result<bool, GpuBenchError> {
    let target = rig.has_targets.then_some(TARGET);
    let mut batches: Vec<usize> = decode.iter().map(|d| d.batch).collect();
    batches.sort_unstable();
    batches.dedup();
    for batch in batches {
        if deadline.is_over() {
            return Ok(true);
        }
        // Products do not depend on the context.
        let mut products = Saved::default();
        for product in Product::ALL {
            products.note(product.name(), product.times(rig), &product_ways(rig, product, batch, &PARTS, effort)?);
        }
        for step in decode.iter().filter(|d| d.batch == batch) {
            let mut saved = products.clone();
            saved.note("attention", rig.config.num_layers, &attention_ways(rig, batch, step.context, effort)?);
            found.push(saved.of("decode", batch, step.context, step.step_us, target));
        }
    }
    for step in prefill {
        if deadline.is_over() {
            return Ok(true);
        }
        // So many rows fill the card without splitting; of the head only a row a prompt is computed.
        let mut saved = Saved::default();
        for product in Product::ALL.into_iter().filter(|p| *p != Product::Head) {
            saved.note(product.name(), product.times(rig), &product_ways(rig, product, step.prompts * step.length, &[], effort)?);
        }
        found.push(saved.of("prefill", step.prompts, step.length, step.step_us, target));
    }
    Ok(false)
}

/// Ways to do the same, ours first, in words, and their seconds.
type Ways = Vec<(String, f64)>;

/// What the fastest ways save in a step.
#[derive(Clone, Default)]
struct Saved {
    seconds: f64,
    faster: Vec<String>,
}

impl Saved {
    /// Notes a place that a step passes so many times.
    fn note(&mut self, place: &str, times: usize, ways: &Ways) {
        let Some((_, ours)) = ways.first() else { return };
        if let Some((way, fastest)) = ways.iter().min_by(|a, b| a.1.total_cmp(&b.1))
            && fastest < ours
        {
            self.seconds += times as f64 * (ours - fastest);
            self.faster.push(format!("{place}: {way}"));
        }
    }

    fn of(self, step: &'static str, sequences: usize, length: usize, step_us: f64, target: Option<f64>) -> CostFigure {
        let varying_us = (step_us - 1e6 * self.seconds).max(step_us / 100.0);
        CostFigure { step, sequences, length, step_us, varying_us, cost: step_us / varying_us - 1.0, target, faster: self.faster }
    }
}

fn product_ways(rig: &mut Rig, product: Product, rows: usize, parts: &[usize], effort: f64) -> Result<Ways, GpuBenchError> {
    let (outputs, inputs) = product.shape(rig);
    let times = product_of(rig, product, rows, effort)?;
    let mut ways: Ways = times.ours.map(|s| ("ours".into(), s)).into_iter().collect();
    ways.extend(times.library.map(|s| ("cuBLASLt".into(), s)));
    for &parts in parts.iter().filter(|p| inputs.is_multiple_of(*p * PART_MULTIPLE)) {
        let (outputs, inputs) = (outputs * parts, inputs / parts);
        let Rig { ops, noise, heads, .. } = rig;
        let count = (TURN_BYTES / (outputs * inputs * 2)).clamp(1, rig.config.num_layers);
        let matrices: Vec<Matrix> = (0..count).map(|_| ops.random_matrix(noise, outputs, inputs)).collect();
        // As wide as ours: parts would be f32, which is not counted either.
        let (x, mut out) = operands(ops, noise, rows, outputs, inputs, product == Product::Head);
        check(ops)?;
        let matrices: Vec<&Matrix> = matrices.iter().collect();
        let seconds = product_seconds(&mut Stopwatch::new(ops, *heads, effort), &matrices, &x, &mut out, rows);
        check(ops)?;
        ways.extend(seconds.map(|s| (format!("in {parts} parts"), s)));
    }
    Ok(ways)
}

fn attention_ways(rig: &mut Rig, batch: usize, context: usize, effort: f64) -> Result<Ways, GpuBenchError> {
    let mut ways = Ways::new();
    ways.extend(decode_attention_seconds(rig, batch, context, effort)?.map(|s| ("ours".into(), s)));
    for parts in PARTS.into_iter().filter(|p| context.is_multiple_of(p * PART_MULTIPLE)) {
        let seconds = decode_attention_seconds(rig, batch * parts, context / parts, effort)?;
        ways.extend(seconds.map(|s| (format!("in {parts} parts"), s)));
    }
    Ok(ways)
}
