//! `adaroll model check DIR`: compares a checkpoint with the reference values in the `expected.safetensors` beside it.
//!
//! The file holds, computed elsewhere in f64 from the stored weights: `input_ids [B, T]`, `logits [B, T, V]`, `greedy [B, G]` (the greedy
//! continuation of each row) and `margins [B, G]` (best minus second logit of each of its steps). It may hold a loss, its gradients and five
//! optimizer steps too, see [`gradients`].
//!
//! A reference made from a model that was cast in memory (`model.to(torch.bfloat16).double()`) has rotary frequencies that the cast rounded
//! along with the weights; whoever loads the folder gets f32 frequencies, and so does every other command here. Where the reference does not
//! fit the folder as loaded, the check tries those rounded frequencies too and says which ones fitted.

pub mod gradients;

use std::path::{Path, PathBuf};

use gradients::GradientReport;
use half::{bf16, f16};

use crate::model::forward::{Forward, rope_frequencies};
use crate::model::weights::{Weights, heads};
use crate::model::{Checkpoint, Dtype, ModelConfig, ModelError, SafetensorsFile, TensorSource};
use crate::ops::cpu::{CpuOps, Isa};
use crate::ops::{BLOCK_TOKENS, Batch, Ops, Segment};

/// Largest accepted difference of a logit from the f64 reference.
pub const LOGIT_TOLERANCE: f64 = 5e-5;
/// Greedy tokens must be equal wherever the reference's best logit leads by more than this.
pub const MARGIN: f32 = 1e-3;

/// The rotary frequencies with which the reference was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Frequencies {
    /// f32, as the folder loads and as every other command uses them.
    AsLoaded,
    /// Rounded to the checkpoint's type, as a model has them that was cast in memory.
    CastInMemory,
}

/// What a check found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// The folder.
    pub model: PathBuf,
    /// Sequences compared.
    pub sequences: usize,
    /// Positions per sequence.
    pub positions: usize,
    /// Largest difference of a logit from the reference.
    pub max_abs_logit_error: f64,
    /// Mean difference.
    pub mean_abs_logit_error: f64,
    /// The bound that `max_abs_logit_error` is held to.
    pub logit_tolerance: f64,
    /// Steps of the greedy continuations.
    pub greedy_steps: usize,
    /// Of those, steps whose margin is too small to count.
    pub greedy_close_calls: usize,
    /// Steps with a margin above the bound whose token differs.
    pub greedy_mismatches: usize,
    /// The rotary frequencies that fitted the reference best.
    pub rope_frequencies: Frequencies,
    /// Loss, gradients and AdamW, where the reference has them.
    pub gradients: Option<GradientReport>,
    /// Instruction set used.
    pub isa: String,
    /// Whether everything is within its bound.
    pub ok: bool,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "model     {}", self.model.display())?;
        writeln!(
            f,
            "logits    max error {:.2e}, mean {:.2e} over {} x {} positions (bound {:.0e})",
            self.max_abs_logit_error, self.mean_abs_logit_error, self.sequences, self.positions, self.logit_tolerance
        )?;
        writeln!(
            f,
            "greedy    {} steps, {} mismatches, {} too close to count (margin at most {MARGIN})",
            self.greedy_steps, self.greedy_mismatches, self.greedy_close_calls
        )?;
        if self.rope_frequencies == Frequencies::CastInMemory {
            writeln!(
                f,
                "rope      the reference was computed with rotary frequencies rounded to the checkpoint's type (a model cast in memory),"
            )?;
            writeln!(f, "          and so is this comparison; generate, score and serve use f32 frequencies, as the folder loads")?;
        }
        if let Some(gradients) = &self.gradients {
            write!(f, "{gradients}")?;
        }
        write!(f, "result    {}", if self.ok { "ok" } else { "NOT OK" })
    }
}

/// Compares `dir` with its `expected.safetensors`.
pub fn check(dir: &Path, threads: usize, isa: Isa) -> Result<Report, ModelError> {
    let config = ModelConfig::from_folder(dir)?;
    let checkpoint = Checkpoint::open(dir, &config)?;
    let path = dir.join("expected.safetensors");
    let expected = SafetensorsFile::open(&path)?;
    let ids = integers(&expected, &path, "input_ids")?;
    let (batch, positions) = ids.shape;
    let logits = expected.tensor("logits")?;
    let greedy = integers(&expected, &path, "greedy")?;
    let margins = expected.tensor("margins")?;
    let steps = greedy.shape.1;
    if logits.shape != [batch, positions, config.vocab_size] || greedy.shape.0 != batch || margins.shape != [batch, steps] {
        return Err(ModelError::file(
            &path,
            "holds `logits`, `greedy` or `margins` of shapes that do not fit `input_ids` and config.json; make it again from this checkpoint",
        ));
    }
    let total = positions + steps;
    if total > config.context_length {
        return Err(ModelError::file(
            &path,
            format!("holds sequences of {total} tokens, more than the model's context of {}", config.context_length),
        ));
    }
    let reference = Reference { ids, logits: logits.to_f32(), greedy, margins: margins.to_f32() };
    let mut ops = CpuOps::with_isa(threads, isa).map_err(|e| ModelError::file(dir, format!("cannot be checked: no threads: {e}")))?;
    let weights = Weights::load(&ops, &config, &checkpoint, |_, _| {})?;
    let mut run = |frequencies: &[f32], kind| compare(dir, &config, &mut ops, &weights, frequencies.to_vec(), &reference, kind);

    let plain = rope_frequencies(&config.rope, config.head_dim);
    let cast: Vec<f32> = match checkpoint.tensor("model.embed_tokens.weight")?.dtype {
        Dtype::Bf16 => plain.iter().map(|f| bf16::from_f32(*f).to_f32()).collect(),
        Dtype::F16 => plain.iter().map(|f| f16::from_f32(*f).to_f32()).collect(),
        _ => plain.clone(),
    };
    let mut report = run(&plain, Frequencies::AsLoaded);
    let mut frequencies = plain;
    if !report.ok {
        let rounded = run(&cast, Frequencies::CastInMemory);
        if rounded.ok {
            (report, frequencies) = (rounded, cast);
        }
    }
    let sequences: Vec<&[u32]> = reference.ids.values.chunks(positions).collect();
    report.gradients = gradients::compare(dir, &config, &checkpoint, &expected, &sequences, &frequencies, ops)?;
    report.ok &= report.gradients.as_ref().is_none_or(|g| g.ok);
    Ok(report)
}

/// The values beside a checkpoint.
struct Reference {
    ids: Ids,
    /// `[sequences, positions, vocab]`
    logits: Vec<f32>,
    greedy: Ids,
    /// `[sequences, greedy steps]`
    margins: Vec<f32>,
}

/// Runs the sequences and their continuations and compares.
fn compare(
    dir: &Path,
    config: &ModelConfig,
    ops: &mut CpuOps,
    weights: &Weights<CpuOps>,
    frequencies: Vec<f32>,
    reference: &Reference,
    rope_frequencies: Frequencies,
) -> Report {
    let Reference { ids, logits, greedy, margins } = reference;
    let ((batch, positions), steps) = (ids.shape, greedy.shape.1);
    let mut forward = Forward::with_frequencies(ops, config, frequencies, positions, positions);
    let mut report = Report {
        model: dir.to_owned(),
        sequences: batch,
        positions,
        max_abs_logit_error: 0.0,
        mean_abs_logit_error: 0.0,
        logit_tolerance: LOGIT_TOLERANCE,
        greedy_steps: batch * steps,
        greedy_close_calls: 0,
        greedy_mismatches: 0,
        rope_frequencies,
        gradients: None,
        isa: ops.isa().to_string(),
        ok: false,
    };
    let mut sum = 0.0;
    for b in 0..batch {
        let mut cache = ops.kv_cache(config.num_layers, (positions + steps).div_ceil(BLOCK_TOKENS), heads(config));
        let row = &ids.values[b * positions..][..positions];
        forward.run(ops, weights, &sequence(row, 0), &mut cache);
        let mut next = 0;
        for t in 0..positions {
            let got = ops.read_row(forward.logits(), t);
            let want = &logits[(b * positions + t) * config.vocab_size..][..config.vocab_size];
            for (g, w) in got.iter().zip(want) {
                let error = (f64::from(*g) - f64::from(*w)).abs();
                sum += error;
                // A NaN is an error of any size.
                report.max_abs_logit_error = if error.is_nan() { f64::MAX } else { report.max_abs_logit_error.max(error) };
            }
            next = argmax(&got);
        }
        for s in 0..steps {
            let want = greedy.values[b * steps + s];
            if margins[b * steps + s] <= MARGIN {
                report.greedy_close_calls += 1;
            } else if next != want {
                report.greedy_mismatches += 1;
            }
            // The reference's token goes in, so that one difference does not spread.
            forward.run(ops, weights, &sequence(&[want], positions + s), &mut cache);
            next = argmax(&ops.read_row(forward.logits(), 0));
        }
    }
    report.mean_abs_logit_error = sum / logits.len() as f64;
    report.ok = report.max_abs_logit_error <= LOGIT_TOLERANCE && report.greedy_mismatches == 0;
    report
}

/// A batch of one sequence whose blocks lie in order; every row gives logits.
fn sequence(tokens: &[u32], start: usize) -> Batch {
    let end = start + tokens.len();
    Batch {
        tokens: tokens.to_vec(),
        positions: (start as u32..end as u32).collect(),
        slots: (start as u32..end as u32).collect(),
        segments: vec![Segment { row: 0, rows: tokens.len(), start, table: 0 }],
        tables: (0..end.div_ceil(BLOCK_TOKENS) as u32).collect(),
        logit_rows: (0..tokens.len() as u32).collect(),
    }
}

fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (i, v) in row.iter().enumerate() {
        if *v > row[best] {
            best = i;
        }
    }
    best as u32
}

/// A matrix of token ids.
struct Ids {
    shape: (usize, usize),
    values: Vec<u32>,
}

fn integers(file: &SafetensorsFile, path: &Path, name: &str) -> Result<Ids, ModelError> {
    let tensor = file.tensor(name)?;
    let bad = || ModelError::file(path, format!("holds `{name}` that is not a matrix of token ids; make it again"));
    let values = tensor.to_i64().ok_or_else(bad)?;
    let &[rows, cols] = tensor.shape.as_slice() else { return Err(bad()) };
    let values = values.into_iter().map(|v| u32::try_from(v).map_err(|_| bad())).collect::<Result<Vec<_>, _>>()?;
    Ok(Ids { shape: (rows, cols), values })
}
