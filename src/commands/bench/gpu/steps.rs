//! Whole steps, as the engine makes them but for its scheduler: forward pass, draws, and answers that are read a step later.

use std::time::Instant;

use crate::engine::StreamKey;
use crate::model::ModelConfig;
use crate::ops::cuda::CudaOps;
use crate::ops::{Ask, Batch, Draw, Filters, Late, Ops, PROMISED};

use super::limits::Limits;
use super::rig::{Rig, check, decode_batch, prefill_batch};
use super::stopwatch::{Stopwatch, repetitions};
use super::{GpuBenchError, shapes};

/// Decode at one batch size and context.
#[derive(Clone, Debug, serde::Serialize)]
pub struct DecodeFigure {
    /// Sequences.
    pub batch: usize,
    /// Positions of each, the new one included.
    pub context: usize,
    /// A step that is replayed as a graph, in microseconds.
    pub step_us: f64,
    /// The same call by call.
    pub step_without_graphs_us: f64,
    /// Tokens per second, with graphs.
    pub tokens_per_s: f64,
    /// Bytes of weights and of keys and values that a step reads.
    pub bytes: f64,
    /// Those bytes per second over the copy bandwidth.
    pub bandwidth_share: f64,
    /// What the share is to reach, where the project has set it: 0.6 from batch 16 up, and for one sequence from 4B up.
    pub target: Option<f64>,
}

/// Prefill of whole prompts in one step.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PrefillFigure {
    /// Prompts.
    pub prompts: usize,
    /// Tokens of each.
    pub length: usize,
    /// Microseconds of the step.
    pub step_us: f64,
    /// Tokens per second.
    pub tokens_per_s: f64,
    /// Operations of the step.
    pub flops: f64,
    /// Those operations per second over the matrix rate.
    pub matrix_share: f64,
    /// What the share is to reach.
    pub target: Option<f64>,
}

/// Share of the copy bandwidth that decode is to reach.
const DECODE_TARGET: f64 = 0.6;
/// Parameters (of projections and head) from which a single sequence is to reach it too: 4B has 4.0e9, 1.7B 1.7e9.
const ALONE_FROM: f64 = 3e9;
/// Share of the matrix rate that prefill is to reach.
const PREFILL_TARGET: f64 = 0.5;

/// Measures decode steps. `None` where the cache has no room.
pub(super) fn decode(
    rig: &mut Rig,
    limits: &Limits,
    batch: usize,
    context: usize,
    effort: f64,
) -> Result<Option<DecodeFigure>, GpuBenchError> {
    if !rig.fits(batch, context) {
        return Ok(None);
    }
    let made = decode_batch(batch, context, rig.config.vocab_size);
    let replayed = steps(rig, true, made.clone(), effort)?;
    let plain = steps(rig, false, made, effort)?;
    let bytes = decode_bytes(&rig.config, batch, context);
    Ok(Some(DecodeFigure {
        batch,
        context,
        step_us: replayed * 1e6,
        step_without_graphs_us: plain * 1e6,
        tokens_per_s: batch as f64 / replayed,
        bytes,
        bandwidth_share: bytes / replayed / (limits.copy_gb_per_s * 1e9),
        target: decode_target(rig, batch),
    }))
}

/// Bytes of weights and of keys and values that a step reads.
pub(super) fn decode_bytes(config: &ModelConfig, batch: usize, context: usize) -> f64 {
    shapes::weight_bytes(config) + (batch * context) as f64 * shapes::kv_bytes(config)
}

/// The share of the copy bandwidth that decode is to reach, where the project has set one.
pub(super) fn decode_target(rig: &Rig, batch: usize) -> Option<f64> {
    let large = shapes::weight_bytes(&rig.config) / 2.0 >= ALONE_FROM;
    (rig.has_targets && (batch >= 16 || batch == 1 && large)).then_some(DECODE_TARGET)
}

/// Seconds of a step, by the host's clock over many of them: what the host does between two launches is part of a step.
fn steps(rig: &mut Rig, graphs: bool, mut batch: Batch, effort: f64) -> Result<f64, GpuBenchError> {
    let Rig { ops, weights, forward, cache, .. } = rig;
    ops.replay_steps(graphs);
    let rows = batch.rows();
    let key = StreamKey::new(0, "bench").0;
    let mut position = 0;
    let mut open = 0;
    let mut drawn = Vec::new();
    let mut failed = None;
    let mut step = |ops: &mut CudaOps| {
        let asks: Vec<Ask<'_>> =
            (0..rows).map(|row| Ask::Draw(Draw { row, filters: Filters::plain(1.0), key, position, sample: row as u32 })).collect();
        let logits = forward.run(ops, weights, &batch, cache);
        ops.start(logits, &asks);
        // From now on each row takes what it drew a step before.
        batch.tokens.iter_mut().enumerate().for_each(|(row, token)| *token = PROMISED | row as u32);
        position += 1;
        open += 1;
        if open == 2 {
            ops.finish(&mut drawn);
            open -= 1;
            if drawn.iter().any(Result::is_err) {
                failed = Some("the logits of random weights are not finite");
            }
        }
    };
    // Made, recorded, replayed.
    (0..3).for_each(|_| step(ops));
    ops.settle();
    let start = Instant::now();
    step(ops);
    ops.settle();
    let once = start.elapsed().as_secs_f64();
    let times = repetitions(effort, once);
    let start = Instant::now();
    (0..times).for_each(|_| step(ops));
    ops.settle();
    let seconds = start.elapsed().as_secs_f64() / times as f64;
    if open > 0 {
        ops.finish(&mut drawn);
    }
    ops.replay_steps(true);
    check(ops)?;
    match failed {
        Some(reason) => Err(GpuBenchError::Card(reason.into())),
        None => Ok(seconds),
    }
}

/// Measures a prefill step. `None` where the cache has no room.
pub(super) fn prefill(
    rig: &mut Rig,
    limits: &Limits,
    prompts: usize,
    length: usize,
    effort: f64,
) -> Result<Option<PrefillFigure>, GpuBenchError> {
    if !rig.fits(prompts, length) {
        return Ok(None);
    }
    let flops = shapes::prefill_flops(&rig.config, prompts, length);
    let batch = prefill_batch(prompts, length, rig.config.vocab_size);
    let Rig { ops, heads, weights, forward, cache, has_targets, .. } = rig;
    let seconds = Stopwatch::new(ops, *heads, effort).repeat(&mut |ops| {
        forward.run(ops, weights, &batch, cache);
    });
    check(ops)?;
    Ok(seconds.map(|seconds| PrefillFigure {
        prompts,
        length,
        step_us: seconds * 1e6,
        tokens_per_s: (prompts * length) as f64 / seconds,
        flops,
        matrix_share: flops / seconds / (limits.matrix_tflop_per_s * 1e12),
        target: has_targets.then_some(PREFILL_TARGET),
    }))
}
