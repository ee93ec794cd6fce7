//! Whole training steps on random weights: forward, backward, the norm of the gradient, AdamW and the rounding of new weights.

use std::time::Instant;

use crate::model::backward::{Packed, PackedSequence, Recompute, Slope, Training};
use crate::model::params::{Param, Params};
use crate::model::weights::matrix_parameters;
use crate::ops::cuda::{CudaOps, Flat, GemmChoice};
use crate::ops::{Ops, TrainOps};
use crate::trainer::backend::training_products;
use crate::trainer::optimizer::{Adamw, AdamwSettings, clip_global_norm};

use super::super::measure::median;
use super::limits::Limits;
use super::rig::{check, weights};
use super::shapes::{Shape, attention_flops};
use super::{GpuBenchError, rig::tokens};

/// A training step.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TrainFigure {
    /// Sequences.
    pub sequences: usize,
    /// Tokens of each.
    pub length: usize,
    /// What is kept between forward and backward.
    pub recompute: Recompute,
    /// Time of a step, of its forward and backward pass, and of everything behind them.
    pub step_us: f64,
    /// Forward pass, with the scores of all tokens.
    pub forward_us: f64,
    /// Backward pass.
    pub backward_us: f64,
    /// Norm and clip of the gradients.
    pub norm_us: f64,
    /// AdamW.
    pub adamw_us: f64,
    /// New weights, rounded and in place.
    pub weights_us: f64,
    /// Tokens per second of whole steps.
    pub tokens_per_s: f64,
    /// Operations that the model needs: three passes over its products, three and a half over causal attention. What is computed twice counts once.
    pub flops: f64,
    /// Share of the matrix rate.
    pub matrix_share: f64,
    /// What it is to reach.
    pub target: Option<f64>,
    /// Share of the copy bandwidth that AdamW reaches with its 28 bytes a parameter.
    pub adamw_share: f64,
    /// What it is to reach.
    pub adamw_target: Option<f64>,
}

/// Share of the matrix rate that a step is to reach, and of the copy bandwidth AdamW.
const TARGETS: (f64, f64) = (0.4, 0.7);
/// Bytes that AdamW reads and writes for each parameter.
const ADAMW_BYTES: f64 = 28.0;
/// Steps that are measured; the median counts.
const STEPS: usize = 5;

/// Bytes of a parameter: weights, master, gradient and two moments.
const PARAMETER_BYTES: u64 = 2 + 4 + 4 + 8;

/// Measures steps of `sequences` of `length` tokens. `None` where the model or its activations have no room.
pub(super) fn measure(
    base: &CudaOps,
    gemm: GemmChoice,
    shape: Shape,
    limits: &Limits,
    sequences: usize,
    length: usize,
    recompute: Recompute,
) -> Result<Option<TrainFigure>, GpuBenchError> {
    let config = shape.config()?;
    let mut ops = base.another()?;
    let logits = ops.chunk_logits();
    ops.prepare_products(gemm, &training_products(&config, logits))?;
    let rows = sequences * length.next_multiple_of(ops.row_group());
    let need = PARAMETER_BYTES * config.num_parameters() as u64
        + Training::<CudaOps>::activation_bytes(&ops, &config, recompute, rows)
        + ops.training_scratch_bytes(&config, rows, false);
    if ops.free_memory().is_some_and(|free| need > free) {
        return Ok(None);
    }
    let mut noise = ops.noise(0.04);
    let weights = weights(&ops, &config, &mut noise);
    let zeros = |(name, shape): (String, Vec<usize>)| Param { values: ops.zeros(shape.iter().product()), name, shape };
    let flats = || Params::of(config.tensors().into_iter().map(zeros).collect::<Vec<Param<Flat>>>());
    let (mut master, mut gradients) = (flats(), flats());
    let settings = AdamwSettings { betas: (0.9, 0.95), weight_decay: 0.1, ..AdamwSettings::default() };
    let mut optimizer = Adamw::resume(settings, flats(), flats(), 0);
    check(&ops)?;
    let mut training = Training::new(ops, &config, recompute);
    training.adopt_weights(weights);
    let card = |e: crate::model::backward::TrainingError| GpuBenchError::Card(e.to_string());
    training.reserve(rows).map_err(card)?;
    let all = tokens(sequences * length, config.vocab_size, 1);
    let batch = Packed { sequences: all.chunks(length).map(|ids| PackedSequence { token_ids: ids.to_vec(), from: 1 }).collect() };
    let slopes = vec![Slope { logprob: -1.0 / (sequences * length) as f32, entropy: 0.0 }; sequences * (length - 1)];
    let steps = if shape.is_tiny() { 1 } else { STEPS };
    let mut times: [Vec<f64>; 6] = Default::default();
    for step in 0..=steps {
        // The masters are zeros, so the second step would train a model of nothing: its numbers differ, and its time does not.
        let mut marks = vec![Instant::now()];
        let mut mark = |training: &mut Training<CudaOps>| {
            training.ops().settle();
            marks.push(Instant::now());
        };
        training.forward(&batch, 1.0).map_err(card)?;
        mark(&mut training);
        gradients.entries.iter_mut().for_each(|p| training.ops().clear_flat(&mut p.values));
        training.backward(&slopes, &mut gradients).map_err(card)?;
        mark(&mut training);
        clip_global_norm(training.ops(), &mut gradients, 1.0);
        mark(&mut training);
        optimizer.step(training.ops(), &mut master, &gradients, 1e-5);
        mark(&mut training);
        if step == steps {
            let place = |name: &str| master.index(name).unwrap_or_default();
            training
                .round_weights(crate::model::Dtype::Bf16, |name| crate::ops::backward::Slab::plain(&master.entries[place(name)].values))
                .map_err(card)?;
        }
        mark(&mut training);
        if step > 0 {
            times[0].push((marks[4] - marks[0]).as_secs_f64());
            marks.windows(2).zip(&mut times[1..]).for_each(|(pair, times)| times.push((pair[1] - pair[0]).as_secs_f64()));
        }
    }
    check(training.ops())?;
    let weights_s = times[5].last().copied().unwrap_or_default();
    let [step_s, forward, backward, norm, adamw, _] = times.map(|mut t| median(&mut t));
    let step_s = step_s + weights_s;
    let tokens = (sequences * length) as f64;
    let attention = config.num_layers as f64 * attention_flops(&config, sequences, length);
    let flops = 6.0 * matrix_parameters(&config) as f64 * tokens + 3.5 * attention;
    let has_targets = !shape.is_tiny();
    Ok(Some(TrainFigure {
        sequences,
        length,
        recompute,
        step_us: step_s * 1e6,
        forward_us: forward * 1e6,
        backward_us: backward * 1e6,
        norm_us: norm * 1e6,
        adamw_us: adamw * 1e6,
        weights_us: weights_s * 1e6,
        tokens_per_s: tokens / step_s,
        flops,
        matrix_share: flops / step_s / (limits.matrix_tflop_per_s * 1e12),
        target: has_targets.then_some(TARGETS.0),
        adamw_share: ADAMW_BYTES * config.num_parameters() as f64 / adamw / (limits.copy_gb_per_s * 1e9),
        adamw_target: has_targets.then_some(TARGETS.1),
    }))
}
