//! The model in training: where it came from, where it computes, and what a run does with it.
//!
//! The numbers are the [`Learn`]er's, on whichever device; here is what does not depend on that: the folder, the type of the serving weights, the
//! file that is pushed and the folder that is written.

use std::path::{Path, PathBuf};

use super::backend::{Backend, rows_of};
use super::checkpoint::{CheckpointError, Tensors, export, file_bytes};
pub use super::learner::PolicyError;
use super::learner::{Learn, Plan, Score};
use super::settings::Settings;
use crate::model::backward::{Packed, Slope, TokenScore, TrainingError};
use crate::model::params::{Params, Rounded};
use crate::model::{Checkpoint, Dtype, ModelConfig};

/// The model in training.
pub struct Policy {
    learner: Box<dyn Learn>,
    backend: Backend,
    /// Its configuration.
    pub config: ModelConfig,
    dtype: Dtype,
    dir: PathBuf,
    /// Backend and kernels.
    pub numerics_id: String,
}

impl Policy {
    /// Loads the folder that a run starts from.
    pub fn load(settings: &Settings) -> Result<Self, PolicyError> {
        let dir = settings.model.dir.clone();
        let config = ModelConfig::from_folder(&dir)?;
        let checkpoint = Checkpoint::open(&dir, &config)?;
        checkpoint.verify_finite()?;
        let backend = Backend::open(&settings.model).map_err(PolicyError::Setting)?;
        let stored = checkpoint.tensors().next().transpose()?.map_or(Dtype::F32, |tensor| tensor.dtype);
        // A CPU widens f16: weights that are trained are f32 or bf16. A GPU computes with bf16 whatever the folder holds.
        let usual = if stored == Dtype::Bf16 || backend.is_cuda() { Dtype::Bf16 } else { Dtype::F32 };
        let dtype = settings.serving_dtype().unwrap_or(usual);
        if let Some(reason) = backend.refuses(&config, dtype) {
            return Err(PolicyError::Setting(reason));
        }
        if let Some(need) = backend.check_memory(&config, settings, settings.loss.wants_reference()).map_err(PolicyError::Setting)? {
            tracing::info!(
                "training on {} takes {:.2} GiB at its peak ({need})",
                backend.name(),
                need.total() as f64 / (1u64 << 30) as f64
            );
        }
        let base = Params::from_source(&config, &checkpoint)?;
        let plan = Plan {
            config: &config,
            dtype,
            recompute: settings.model.recompute,
            optimizer: settings.optimizer.adamw(),
            clip_norm: settings.optimizer.clip_norm(),
            lora: &settings.lora,
            seed: settings.run.seed,
            // On a CPU memory is taken as batches need it.
            rows: if backend.is_cuda() { rows_of(settings) } else { 0 },
        };
        let (learner, numerics_id) = backend.learner(&base, &plan, settings.model.optimizer_offload)?;
        Ok(Policy { learner, backend, config, dtype, dir, numerics_id })
    }

    /// Where it computes.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// The model that the run started from, on the same device: for the KL penalty.
    pub fn reference(&self) -> Result<Box<dyn Score>, PolicyError> {
        let checkpoint = Checkpoint::open(&self.dir, &self.config)?;
        let params = Params::from_source(&self.config, &checkpoint)?;
        self.backend.scorer(&self.config, &Rounded::new(&params, self.dtype))
    }

    /// Scores a batch's tokens.
    pub fn forward(&mut self, batch: &Packed, temperature: f32) -> Result<Vec<TokenScore>, TrainingError> {
        self.learner.forward(batch, temperature)
    }

    /// Adds the gradients of the last forward pass.
    pub fn backward(&mut self, slopes: &[Slope]) -> Result<(), TrainingError> {
        self.learner.backward(slopes)
    }

    /// Forgets the gradients.
    pub fn zero_gradients(&mut self) {
        self.learner.zero_gradients();
    }

    /// Clips the gradients, takes an optimizer step, and serves the new weights. Gives the norm before the clip; nothing where it is not
    /// finite, and then nothing has changed.
    pub fn update(&mut self, lr: f64) -> Result<Option<f64>, TrainingError> {
        self.learner.update(lr)
    }

    /// The gradients of all parameters as they stand.
    pub fn gradients(&mut self) -> Result<Params, TrainingError> {
        self.learner.gradients()
    }

    /// The forward pass as others use it.
    pub fn scorer(&mut self) -> &mut dyn Score {
        &mut *self.learner
    }

    /// The type of the serving weights.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The serving weights as one safetensors file: what is pushed.
    pub fn weights(&mut self) -> Result<Vec<u8>, TrainingError> {
        Ok(file_bytes(&self.learner.weights()?, self.dtype))
    }

    /// Writes the serving weights as a Hugging Face folder.
    pub fn export(&mut self, to: &Path) -> Result<(), CheckpointError> {
        let weights = self.weights().map_err(|e| CheckpointError::Damaged { path: to.to_owned(), problem: e.to_string() })?;
        export(&self.dir, &weights, to)
    }

    /// Names and shapes of what is trained.
    pub fn shapes(&self) -> Params<()> {
        self.learner.shapes()
    }

    /// What a checkpoint keeps.
    pub fn tensors(&mut self) -> Result<Tensors, TrainingError> {
        self.learner.tensors()
    }

    /// Goes on from a checkpoint.
    pub fn restore(&mut self, tensors: &Tensors, updates: u64) -> Result<(), TrainingError> {
        self.learner.restore(tensors, updates)
    }
}
