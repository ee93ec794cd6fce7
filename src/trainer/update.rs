//! From a step's groups to new weights: rows, mini-batches, forward, loss, backward, AdamW.
//!
//! Only groups with contrast become rows, and only they count in the loss's denominator. `logprob_old` is the policy at the start of the
//! step, by the trainer's own forward pass; where a step is one update it is the very pass that the gradient goes through, so the ratio is 1
//! exactly. `logprob_sampler` is what the server said; on samples of the current version the two are equal to the bit, and the difference
//! is among the step's numbers.

use super::batch::{self, BatchError};
use super::journal::Numbers;
use super::loss::{self, LossSettings, Row};
use super::policy::{Policy, PolicyError};
use super::rollout::Rollout;
use super::schedule::Schedule;
use super::settings::Settings;
use crate::model::backward::{Packed, PackedSequence, Recompute, Slope, Training, TrainingError};
use crate::model::params::Params;
use crate::model::{Checkpoint, ModelConfig, ModelError};
use crate::ops::cpu::CpuOps;

/// Why an update failed.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// Forward or backward.
    #[error("the update of step {step}: {error}")]
    Training {
        /// Steps done before.
        step: u64,
        /// What.
        error: TrainingError,
    },
    /// The weights.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The rows do not fit.
    #[error("the update of step {step}: {error}")]
    Batch {
        /// Steps done before.
        step: u64,
        /// What.
        error: BatchError,
    },
    /// The gradients are not finite.
    #[error("the gradient of step {0} is not finite; the weights are as they were. Lower optimizer.lr and go on from an earlier checkpoint")]
    NonFinite(u64),
}

/// What an update came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Optimizer updates.
    pub updates: u64,
    /// Rows trained on, each once however many epochs.
    pub rows: u64,
    /// Tokens that went through forward and backward, prompts included.
    pub tokens: u64,
    numbers: Vec<(String, f64)>,
}

impl Report {
    /// Puts the numbers of the update.
    pub fn put(&self, numbers: &mut Numbers) {
        for (name, value) in &self.numbers {
            numbers.put(name, *value);
        }
    }
}

/// What updates need beside the policy.
pub struct Updater {
    loss: LossSettings,
    schedule: Schedule,
    lr: f64,
    seed: u64,
    epochs: u64,
    mini_batch_groups: usize,
    micro_batch_tokens: usize,
    temperature: f32,
    /// The model that the run started from, for the KL penalty.
    reference: Option<Training<CpuOps>>,
    /// Updates that the schedule spans.
    total: u64,
}

/// A kept sample on its way through the update.
struct Sample {
    sequence: PackedSequence,
    row: Row,
}

impl Updater {
    /// An updater for a run.
    pub fn new(settings: &Settings, policy: &Policy) -> Result<Self, PolicyError> {
        let reference = match settings.loss.wants_reference() {
            false => None,
            true => {
                let config = ModelConfig::from_folder(&settings.model.dir)?;
                let checkpoint = Checkpoint::open(&settings.model.dir, &config)?;
                let ops = CpuOps::new(policy.threads).map_err(PolicyError::Threads)?;
                let mut reference = Training::new(ops, &config, Recompute::Layer);
                let params = Params::from_source(&config, &checkpoint)?;
                reference.set_weights(&crate::model::params::Rounded::new(&params, policy.dtype()))?;
                Some(reference)
            }
        };
        Ok(Updater {
            loss: settings.loss.clone(),
            schedule: settings.schedule.clone(),
            lr: settings.optimizer.lr,
            seed: settings.run.seed,
            epochs: settings.update.epochs,
            mini_batch_groups: settings.update.mini_batch_groups,
            micro_batch_tokens: settings.update.micro_batch_tokens,
            temperature: settings.temperature(),
            reference,
            total: settings.run.steps,
        })
    }
}
