//! How the demonstration's model was made: fine-tuning from first parameters on demonstrations, half of them of hard problems with answers that are
//! half noise. It leaves the easy slice solved and the hard one at a few answers in a hundred.
//!
//! [`prepare`] writes the folder of that run: `first/` (a model of first parameters), `warm-up.jsonl`, `held-out.jsonl` and `train.toml`. Then
//! `adaroll train --config DIR/train.toml` makes the model again, to the byte, on any machine.

use std::path::Path;

use serde_json::json;

use super::WriteError;
use super::data::{self, Form, demonstration_line};
use super::init::initial;
use super::model;
use super::task::{Mix, Stream, held_out};
use crate::model::{Dtype, ModelConfig, ModelError, TensorSource};
use crate::trainer::checkpoint::file_bytes;
use crate::trainer::learner::ServingTensor;
use crate::trainer::settings::{EvalKind, Objective, Settings};

/// Seed of the first parameters and of the demonstrations.
pub const SEED: u64 = 0;
/// Updates.
pub const STEPS: u64 = 500;
/// Demonstrations of an update.
pub const BATCH: u64 = 128;

/// Why the warm-up cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum WarmError {
    /// A file.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The configuration.
    #[error("the warm-up's configuration cannot be written: {0}")]
    Setting(#[from] toml::ser::Error),
}

/// The run: AdamW (.9, .95) with weight decay .01, learning rate 2e-3 after 50 linear steps, gradients clipped to norm 1.
pub fn settings(dir: &Path) -> Settings {
    let mut s = Settings::default();
    s.run.objective = Objective::Sft;
    s.run.dir = dir.join("run");
    s.run.name = "warm-up".into();
    (s.run.seed, s.run.steps) = (SEED, STEPS);
    s.model.dir = dir.join("first");
    s.model.serving_dtype = "F32".into();
    // The bytes of the result are the CPU's.
    s.model.device = "cpu".into();
    s.data.path = dir.join("warm-up.jsonl");
    s.data.shuffle = false;
    s.rollout.prompts_per_step = BATCH;
    s.optimizer.lr = 2e-3;
    s.optimizer.betas = (0.9, 0.95);
    s.optimizer.weight_decay = 0.01;
    s.schedule.warmup_steps = 50;
    s.eval.path = dir.join("held-out.jsonl");
    s.eval.every = 50;
    s.eval.kind = EvalKind::Exact;
    s.checkpoint.every = 100;
    s
}

/// Writes the folder of a model with first parameters.
pub fn write_first(dir: &Path) -> Result<(), WarmError> {
    model::write_to(dir)?;
    let config = ModelConfig::from_json(model::CONFIG)?;
    let path = dir.join("model.safetensors");
    let first = initial(&config, SEED);
    let tensor = |(name, shape): (String, Vec<usize>)| -> Result<_, ModelError> {
        let bytes = first.tensor(&name)?.bytes.to_vec();
        Ok(ServingTensor { name, shape, bytes })
    };
    let tensors = config.tensors().into_iter().map(tensor).collect::<Result<Vec<_>, _>>()?;
    std::fs::write(&path, file_bytes(&tensors, Dtype::F32)).map_err(WriteError::at(&path))?;
    Ok(())
}

/// Writes everything that the run needs.
pub fn prepare(dir: &Path) -> Result<(), WarmError> {
    write_first(&dir.join("first"))?;
    let stream = Stream::new(SEED, Mix::WARM_UP);
    let line = |i| demonstration_line(&stream.prompt(i), Form::TokenIds);
    data::write(&dir.join("warm-up.jsonl"), (0..STEPS * BATCH).map(line))?;
    let problem = |problem: super::task::Problem| {
        let mut line = data::prompt_line(&problem, Form::TokenIds);
        line["answer_ids"] = json!(problem.answer_ids);
        line
    };
    data::write(&dir.join("held-out.jsonl"), held_out().into_iter().map(problem))?;
    let path = dir.join("train.toml");
    let text = toml::to_string(&settings(dir))?;
    std::fs::write(&path, text).map_err(WriteError::at(&path))?;
    Ok(())
}
