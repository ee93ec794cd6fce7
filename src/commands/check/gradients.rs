//! The second half of `adaroll model check`: the loss of the reference, its gradients, and five AdamW steps on it.
//!
//! `expected.safetensors` may hold `loss_weights [B, T - 1]` (w), `loss [1]` = sum(w nll) / sum(|w|) over next-token positions, `grad.NAME` for
//! every parameter, and `adamw5.NAME`: the parameters after five AdamW steps on that loss (lr 1e-3, betas .9 and .999, eps 1e-8, weight decay .01).
//! Everything here starts from the stored weights widened to f32.

use std::path::Path;

use crate::model::backward::{Packed, PackedSequence, Recompute, Slope, Training, TrainingError};
use crate::model::{Checkpoint, ModelConfig, ModelError, Params, SafetensorsFile};
use crate::ops::cpu::CpuOps;
use crate::trainer::optimizer::{Adamw, AdamwSettings};

/// Largest accepted norm of a gradient's error over the norm of the reference, for every parameter.
pub const GRADIENT_TOLERANCE: f64 = 5e-5;
/// Largest accepted difference of a parameter after five AdamW steps.
pub const ADAMW_TOLERANCE: f64 = 1e-5;
/// A number whose gradient is smaller than this share of the root mean square of its tensor's gradient is not compared after AdamW (its steps
/// divide the gradient by its own size, so only its sign is left). One whose gradient is exactly zero is.
pub const TINY: f64 = 1e-3;
/// Largest accepted difference of the loss.
const LOSS_TOLERANCE: f64 = 1e-5;

/// What the comparison found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct GradientReport {
    /// Difference of the loss from the reference.
    pub loss_error: f64,
    /// Parameter tensors compared.
    pub parameters: usize,
    /// Largest `||g - ref|| / ||ref||` of a tensor.
    pub max_gradient_error: f64,
    /// Its name.
    pub worst_gradient: String,
    /// The bound that it is held to.
    pub gradient_tolerance: f64,
    /// Five AdamW steps, where the reference has them.
    pub adamw: Option<AdamwReport>,
    /// Whether everything is within its bound.
    pub ok: bool,
}

/// Five AdamW steps.
#[derive(Clone, Debug, serde::Serialize)]
pub struct AdamwReport {
    /// Largest difference of a number whose gradient is not tiny.
    pub max_error: f64,
    /// The tensor that holds it.
    pub worst: String,
    /// Numbers compared.
    pub compared: usize,
    /// Numbers whose gradient is too small to count.
    pub tiny: usize,
    /// The bound that `max_error` is held to.
    pub tolerance: f64,
}

impl std::fmt::Display for GradientReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "loss      error {:.2e} (bound {LOSS_TOLERANCE:.0e})", self.loss_error)?;
        writeln!(
            f,
            "gradients max error {:.2e} of the norm over {} tensors, in {} (bound {:.0e})",
            self.max_gradient_error, self.parameters, self.worst_gradient, self.gradient_tolerance
        )?;
        if let Some(a) = &self.adamw {
            writeln!(
                f,
                "adamw     max error {:.2e} after five steps over {} numbers, in {} (bound {:.0e}; {} with tiny gradients left out)",
                a.max_error, a.compared, a.worst, a.tolerance, a.tiny
            )?;
        }
        Ok(())
    }
}

/// Compares, if the file holds gradients. `sequences` are the reference's.
pub(super) fn compare(
    dir: &Path,
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    expected: &SafetensorsFile,
    sequences: &[&[u32]],
    frequencies: &[f32],
    ops: CpuOps,
) -> Result<Option<GradientReport>, ModelError> {
    if !expected.contains("loss_weights") {
        return Ok(None);
    }
    let weights = expected.tensor("loss_weights")?.to_f32();
    let reference_loss = f64::from(expected.tensor("loss")?.to_f32().first().copied().unwrap_or(f32::NAN));
    let batch = Packed { sequences: sequences.iter().map(|ids| PackedSequence { token_ids: ids.to_vec(), from: 1 }).collect() };
    let scored: usize = sequences.iter().map(|ids| ids.len() - 1).sum();
    if weights.len() != scored {
        return Err(ModelError::file(
            expected.path(),
            format!("holds {} `loss_weights` for {scored} next-token positions; make it again from this checkpoint", weights.len()),
        ));
    }
    let norm: f64 = weights.iter().map(|w| f64::from(w.abs())).sum();
    let slopes: Vec<Slope> = weights.iter().map(|w| Slope { logprob: (-f64::from(*w) / norm) as f32, entropy: 0.0 }).collect();
    let failed = |error: TrainingError| ModelError::file(dir, format!("cannot be trained: {error}"));

    let mut params = Params::from_source(config, checkpoint)?;
    let mut training = Training::with_frequencies(ops, config, frequencies.to_vec(), Recompute::None);
    let mut gradients = params.zeros_like();
    training.set_weights(&params)?;
    let scores = training.forward(&batch, 1.0).map_err(failed)?;
    let loss = scores.iter().zip(&weights).map(|(s, w)| -f64::from(s.logprob) * f64::from(*w)).sum::<f64>() / norm;
    training.backward(&slopes, &mut gradients).map_err(failed)?;

    let mut report = GradientReport {
        loss_error: (loss - reference_loss).abs(),
        parameters: params.entries.len(),
        max_gradient_error: 0.0,
        worst_gradient: String::new(),
        gradient_tolerance: GRADIENT_TOLERANCE,
        adamw: None,
        ok: false,
    };
    let mut references = Vec::new();
    for gradient in &gradients.entries {
        let reference = same_size(expected, &format!("grad.{}", gradient.name), gradient.values.len())?;
        let error = square(gradient.values.iter().zip(&reference).map(|(g, r)| f64::from(*g) - f64::from(*r))).sqrt();
        let size = square(reference.iter().map(|r| f64::from(*r))).sqrt();
        let relative = if error == 0.0 { 0.0 } else { error / size };
        if relative.is_nan() || relative > report.max_gradient_error || report.worst_gradient.is_empty() {
            (report.max_gradient_error, report.worst_gradient) =
                (if relative.is_nan() { f64::MAX } else { relative }, gradient.name.clone());
        }
        references.push(reference);
    }

    if params.entries.iter().all(|p| expected.contains(&format!("adamw5.{}", p.name))) {
        let settings = AdamwSettings { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 };
        let mut optimizer = Adamw::new(&params, settings);
        // The first step takes the reference's gradients, which have just been compared. It moves every number by the learning rate in the
        // direction of its gradient's sign, and where a gradient is nothing but rounding, another sign would pull the others with it.
        for (gradient, reference) in gradients.entries.iter_mut().zip(&references) {
            gradient.values.copy_from_slice(reference);
        }
        for step in 0..5 {
            if step > 0 {
                gradients.clear();
                training.set_weights(&params)?;
                training.forward(&batch, 1.0).map_err(failed)?;
                training.backward(&slopes, &mut gradients).map_err(failed)?;
            }
            optimizer.step(training.ops(), &mut params, &gradients, 1e-3);
        }
        report.adamw = Some(compare_steps(&params, expected, &references)?);
    }
    report.ok = report.loss_error <= LOSS_TOLERANCE
        && report.max_gradient_error <= GRADIENT_TOLERANCE
        && report.adamw.as_ref().is_none_or(|a| a.max_error <= ADAMW_TOLERANCE);
    Ok(Some(report))
}

/// Parameters after five steps against the reference's, where the gradient of the first is not tiny.
fn compare_steps(params: &Params, expected: &SafetensorsFile, gradients: &[Vec<f32>]) -> Result<AdamwReport, ModelError> {
    let mut report = AdamwReport { max_error: 0.0, worst: String::new(), compared: 0, tiny: 0, tolerance: ADAMW_TOLERANCE };
    for (param, gradient) in params.entries.iter().zip(gradients) {
        let reference = same_size(expected, &format!("adamw5.{}", param.name), param.values.len())?;
        let least = TINY * (square(gradient.iter().map(|g| f64::from(*g))) / gradient.len().max(1) as f64).sqrt();
        for ((value, want), gradient) in param.values.iter().zip(&reference).zip(gradient) {
            if *gradient != 0.0 && f64::from(gradient.abs()) < least {
                report.tiny += 1;
                continue;
            }
            report.compared += 1;
            let error = (f64::from(*value) - f64::from(*want)).abs();
            if error.is_nan() || error > report.max_error || report.worst.is_empty() {
                report.max_error = if error.is_nan() { f64::MAX } else { error };
                report.worst.clone_from(&param.name);
            }
        }
    }
    Ok(report)
}

fn square(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum()
}

fn same_size(expected: &SafetensorsFile, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
    let values = expected.tensor(name)?.to_f32();
    if values.len() == len {
        return Ok(values);
    }
    Err(ModelError::file(
        expected.path(),
        format!("holds `{name}` of {} numbers, not {len}; make it again from this checkpoint", values.len()),
    ))
}
