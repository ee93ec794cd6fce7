//! The model in training: f32 master parameters, the rounded weights that sample, and the optimizer between them.
//!
//! Invariant: `serving` is the master (or base and adapters merged), rounded once, and the forward pass runs on exactly these bits: what is
//! pushed to the server is what the trainer computes with.

use std::path::{Path, PathBuf};

use super::checkpoint::{CheckpointError, Tensors, export, model_bytes};
use super::lora::Lora;
use super::optimizer::{Adamw, clip_global_norm};
use super::settings::Settings;
use crate::model::backward::Training;
use crate::model::params::{Params, Rounded};
use crate::model::{Checkpoint, Dtype, ModelConfig, ModelError};
use crate::ops::Ops;
use crate::ops::cpu::CpuOps;

/// Why a model cannot be trained.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Its folder.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The machine has no threads to give.
    #[error("the threads of the trainer cannot be started: {0}; lower model.threads")]
    Threads(std::io::Error),
    /// A setting.
    #[error("{0}")]
    Setting(String),
}

/// The model in training.
pub struct Policy {
    /// Forward and backward.
    pub training: Training<CpuOps>,
    /// Its configuration.
    pub config: ModelConfig,
    /// What the optimizer changes: all parameters, or the adapters.
    pub trained: Params,
    /// AdamW.
    pub optimizer: Adamw,
    /// Largest global norm of the gradients; infinite for no clip.
    clip_norm: f64,
    /// Gradients of all parameters.
    gradients: Params,
    adapters: Option<Adapters>,
    serving: Rounded,
    dir: PathBuf,
    /// Backend and kernels.
    pub numerics_id: String,
    /// Threads.
    pub threads: usize,
}

struct Adapters {
    lora: Lora,
    base: Params,
    merged: Params,
    gradients: Params,
}

impl Policy {
    /// Loads the folder that a run starts from.
    pub fn load(settings: &Settings) -> Result<Self, PolicyError> {
        let dir = settings.model.dir.clone();
        let config = ModelConfig::from_folder(&dir)?;
        let checkpoint = Checkpoint::open(&dir, &config)?;
        checkpoint.verify_finite()?;
        let stored = checkpoint.tensors().next().transpose()?.map_or(Dtype::F32, |tensor| tensor.dtype);
        // f16 is widened by every backend: weights that are trained are f32 or bf16.
        let dtype = settings.serving_dtype().unwrap_or(if stored == Dtype::Bf16 { Dtype::Bf16 } else { Dtype::F32 });
        let base = Params::from_source(&config, &checkpoint)?;
        let threads = if settings.model.threads == 0 { crate::commands::open::default_threads() } else { settings.model.threads };
        let ops = CpuOps::new(threads).map_err(PolicyError::Threads)?;
        let numerics_id = ops.numerics_id();
        let training = Training::new(ops, &config, settings.model.recompute);
        let (trained, adapters) = if settings.lora.rank == 0 {
            (base.clone(), None)
        } else {
            let (lora, adapters) = Lora::new(&settings.lora, &base, settings.run.seed).map_err(PolicyError::Setting)?;
            let (merged, gradients) = (base.clone(), adapters.zeros_like());
            (adapters, Some(Adapters { lora, base: base.clone(), merged, gradients }))
        };
        let optimizer = Adamw::new(&trained, settings.optimizer.adamw());
        let mut policy = Policy {
            training,
            trained,
            optimizer,
            clip_norm: settings.optimizer.clip_norm(),
            gradients: base.zeros_like(),
            adapters,
            serving: Rounded::new(&base, dtype),
            dir,
            config,
            numerics_id,
            threads,
        };
        policy.serve()?;
        Ok(policy)
    }

    /// Rounds the master into the serving weights and gives them to the forward pass.
    pub fn serve(&mut self) -> Result<(), ModelError> {
        let whole = match &mut self.adapters {
            None => &self.trained,
            Some(a) => {
                a.lora.merge(&a.base, &self.trained, &mut a.merged);
                &a.merged
            }
        };
        self.serving.update(whole);
        self.training.set_weights(&self.serving)
    }

    /// Forgets the gradients.
    pub fn zero_gradients(&mut self) {
        self.gradients.clear();
    }

    /// The training pass and the gradients that it adds to.
    pub fn parts(&mut self) -> (&mut Training<CpuOps>, &mut Params) {
        (&mut self.training, &mut self.gradients)
    }

    /// Clips the gradients, takes an optimizer step, and serves the new weights. Gives the norm before the clip; nothing where it is not
    /// finite, and then nothing has changed.
    pub fn update(&mut self, lr: f64) -> Result<Option<f64>, ModelError> {
        let gradients = match &mut self.adapters {
            None => &mut self.gradients,
            Some(a) => {
                a.lora.gradients(&self.trained, &self.gradients, &mut a.gradients);
                &mut a.gradients
            }
        };
        let norm = clip_global_norm(self.training.ops(), gradients, self.clip_norm);
        if !norm.is_finite() {
            return Ok(None);
        }
        self.optimizer.step(self.training.ops(), &mut self.trained, gradients, lr);
        self.serve()?;
        Ok(Some(norm))
    }

    /// The type of the serving weights.
    pub fn dtype(&self) -> Dtype {
        self.serving.dtype()
    }

    /// The serving weights as one safetensors file: what is pushed.
    pub fn weights(&self) -> Result<Vec<u8>, ModelError> {
        model_bytes(&self.config.tensors(), &self.serving)
    }

    /// Writes the serving weights as a Hugging Face folder.
    pub fn export(&self, to: &Path) -> Result<(), CheckpointError> {
        let weights = self.weights().map_err(|e| CheckpointError::Damaged { path: to.to_owned(), problem: e.to_string() })?;
        export(&self.dir, &weights, to)
    }

    /// What a checkpoint keeps.
    pub fn tensors(&self) -> Tensors {
        Tensors { master: self.trained.clone(), first: self.optimizer.m().clone(), second: self.optimizer.v().clone() }
    }

    /// Goes on from a checkpoint.
    pub fn restore(&mut self, tensors: Tensors, updates: u64) -> Result<(), ModelError> {
        self.trained = tensors.master;
        self.optimizer = Adamw::resume(self.optimizer.settings, tensors.first, tensors.second, updates);
        self.serve()
    }
}
