//! `adaroll bench train`: how fast this machine trains: whole steps of forward, backward, AdamW and packing the new weights, all in f32.
//!
//! Every token but the first of each sequence is scored, as in plain language-model training; `benches/results` says what PyTorch needs for
//! the same step.

use std::path::Path;
use std::time::Instant;

use super::measure::{median, peak_memory_mib};
use crate::model::backward::{Packed, PackedSequence, Recompute, Slope, Training, TrainingError};
use crate::model::weights::matrix_parameters;
use crate::model::{Checkpoint, ModelConfig, ModelError, Params};
use crate::ops::cpu::limits::{Ceilings, measure};
use crate::ops::cpu::{CpuOps, Isa};
use crate::trainer::optimizer::{Adamw, AdamwSettings};

/// The workload.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Workload {
    /// Tokens of each sequence.
    pub sequence_length: usize,
    /// Sequences of a step.
    pub batch: usize,
    /// Steps that count; one more warms up.
    pub steps: usize,
    /// What is kept between forward and backward.
    pub recompute: Recompute,
}

/// Everything that the command prints.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// Instruction set.
    pub isa: String,
    /// Threads.
    pub threads: usize,
    /// The workload.
    pub workload: Workload,
    /// Parameters of the model.
    pub parameters: usize,
    /// Tokens of a step over the median time of a step.
    pub tokens_per_s: f64,
    /// Median seconds of a step, and of its parts.
    pub step_s: f64,
    /// Forward.
    pub forward_s: f64,
    /// Backward.
    pub backward_s: f64,
    /// AdamW.
    pub optimizer_s: f64,
    /// Packing the new weights.
    pub weights_s: f64,
    /// Seconds of every step.
    pub steps: Vec<f64>,
    /// Most memory that the process ever held.
    pub peak_memory_mib: Option<f64>,
    /// The machine's ceilings.
    pub ceilings: Ceilings,
    /// Operations of the matrix products (6 a parameter and token) per second, over the FMA rate.
    pub flops_fraction: f64,
}

/// Why the bench failed.
#[derive(Debug, thiserror::Error)]
pub enum TrainBenchError {
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The step.
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// Threads.
    #[error("no threads for the operations: {0}; ask for fewer with --threads")]
    Threads(#[from] std::io::Error),
}

/// Runs the bench. `say` is told what is being measured.
pub fn bench(dir: &Path, workload: Workload, threads: usize, isa: Isa, say: impl Fn(&str)) -> Result<Report, TrainBenchError> {
    say("measuring this machine's ceilings");
    let ceilings = measure(isa, threads);
    say("loading the model");
    let config = ModelConfig::from_folder(dir)?;
    let mut params = Params::from_source(&config, &Checkpoint::open(dir, &config)?)?;
    let mut gradients = params.zeros_like();
    let mut training = Training::new(CpuOps::with_isa(threads, isa)?, &config, workload.recompute);
    training.set_weights(&params)?;
    let mut optimizer = Adamw::new(&params, AdamwSettings { betas: (0.9, 0.95), weight_decay: 0.1, ..AdamwSettings::default() });

    let scored = (workload.batch * (workload.sequence_length - 1)) as f32;
    let mut parts: [Vec<f64>; 5] = Default::default();
    for step in 0..=workload.steps {
        say(&format!("step {step} of {}", workload.steps));
        let batch = batch(step, workload, config.vocab_size);
        let mut times = [0.0; 5];
        let start = Instant::now();
        let mut timed = |part: usize, since: Instant| times[part] = since.elapsed().as_secs_f64();
        let scores = training.forward(&batch, 1.0)?;
        timed(1, start);
        let since = Instant::now();
        gradients.clear();
        let slopes = vec![Slope { logprob: -1.0 / scored, entropy: 0.0 }; scores.len()];
        training.backward(&slopes, &mut gradients)?;
        timed(2, since);
        let since = Instant::now();
        optimizer.step(training.ops(), &mut params, &gradients, 1e-5);
        timed(3, since);
        let since = Instant::now();
        training.set_weights(&params)?;
        timed(4, since);
        timed(0, start);
        if step > 0 {
            parts.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
        }
    }
    let steps = parts[0].clone();
    let [step_s, forward_s, backward_s, optimizer_s, weights_s] = parts.map(|mut times| median(&mut times));
    let tokens = workload.batch * workload.sequence_length;
    let operations = 6.0 * matrix_parameters(&config) as f64 * tokens as f64;
    Ok(Report {
        isa: isa.to_string(),
        threads,
        workload,
        parameters: params.num_elements(),
        tokens_per_s: tokens as f64 / step_s,
        step_s,
        forward_s,
        backward_s,
        optimizer_s,
        weights_s,
        steps,
        peak_memory_mib: peak_memory_mib(),
        ceilings,
        flops_fraction: operations / step_s / 1e9 / ceilings.fma_gflop_per_s,
    })
}

/// Made-up token ids, others in every step.
fn batch(step: usize, workload: Workload, vocab: usize) -> Packed {
    let token = |s: usize, t: usize| (((step * 131 + s) * 7919 + t * 104_729) % vocab) as u32;
    let sequence = |s| PackedSequence { token_ids: (0..workload.sequence_length).map(|t| token(s, t)).collect(), from: 1 };
    Packed { sequences: (0..workload.batch).map(sequence).collect() }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let w = &self.workload;
        let kept = if w.recompute == Recompute::None { "activations kept" } else { "layers recomputed" };
        writeln!(f, "{} sequences x {} tokens, {} threads, {}, f32, {kept}", w.batch, w.sequence_length, self.threads, self.isa)?;
        writeln!(f, "ceilings       read {:.1} GB/s, FMA {:.1} GFLOP/s", self.ceilings.read_gb_per_s, self.ceilings.fma_gflop_per_s)?;
        writeln!(f, "training       {:.1} tokens/s ({} parameters, median of {} steps)", self.tokens_per_s, self.parameters, w.steps)?;
        writeln!(
            f,
            "step           {:.4} s: forward {:.4}, backward {:.4}, AdamW {:.4}, packing {:.4}",
            self.step_s, self.forward_s, self.backward_s, self.optimizer_s, self.weights_s
        )?;
        if let Some(mib) = self.peak_memory_mib {
            writeln!(f, "peak memory    {mib:.0} MiB")?;
        }
        write!(f, "arithmetic     {:.0} % of the FMA ceiling (6 operations a parameter and token)", 100.0 * self.flops_fraction)
    }
}
