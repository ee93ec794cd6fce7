//! The model in training: where it came from, where it computes, and what a run does with it.
//!
//! The numbers are the [`Learn`]er's, on whichever device; here is what does not depend on that: the folder, the type of the serving weights, the
//! file that is pushed and the folder that is written. And which part of an update is computed where: all parts here, one after the other, or each
//! by a rank of its own ([`Ranks`]). The bits are the same.

use std::path::{Path, PathBuf};

use super::backend::{Backend, rows_of};
use super::batch;
use super::checkpoint::{CheckpointError, Tensors, export, file_bytes};
pub use super::learner::PolicyError;
use super::learner::{Learn, Plan, Score};
use super::loss::Sums;
use super::part::{self, Objective, Part, Sample};
use super::ranks::Ranks;
use super::server::Weights;
use super::settings::Settings;
use crate::model::backward::{PackedSequence, TokenScore, TrainingError};
use crate::model::params::{Params, Rounded};
use crate::model::{Checkpoint, Dtype, ModelConfig};
use crate::ops::handover::{DeviceId, Exported};

/// A model that scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    /// The one in training.
    Trained,
    /// The one that the run started from, for the KL penalty.
    Reference,
}

/// What an update came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The loss and its companions over all rows.
    pub sums: Sums,
    /// Scores of each row's tokens, by the weights before the step.
    pub scores: Vec<Vec<TokenScore>>,
    /// Norm of the gradient before the clip; nothing where it is not finite, and then nothing has changed.
    pub norm: Option<f64>,
}

/// The model in training.
pub struct Policy {
    learner: Box<dyn Learn>,
    backend: Backend,
    /// Its configuration.
    pub config: ModelConfig,
    /// Type of the weights that serve, and of the file that is pushed.
    dtype: Dtype,
    pushed: Dtype,
    dir: PathBuf,
    /// Backend and kernels.
    pub numerics_id: String,
    /// The model that the run started from, where the loss wants it.
    reference: Option<Box<dyn Score>>,
    parts: usize,
    micro_batch_tokens: usize,
    /// The other ranks, where this is rank 0 of several.
    ranks: Option<Ranks>,
}

impl Policy {
    /// Loads the folder that a run starts from, and starts the run's other ranks.
    pub fn load(settings: &Settings) -> Result<Self, PolicyError> {
        // A folder that is no model is told before anything is started.
        ModelConfig::from_folder(&settings.model.dir)?;
        let own = settings.of_rank(0);
        let mut backend = Backend::open(&own.model).map_err(PolicyError::Setting)?;
        let ranks = match settings.parallel.is_on() {
            true => Some(Ranks::start(settings, &mut backend)?),
            false => None,
        };
        let mut policy = Policy::on(backend, &own)?;
        if let Some(ranks) = ranks {
            ranks.ready(&policy.numerics_id)?;
            policy.ranks = Some(ranks);
        }
        Ok(policy)
    }

    /// Loads the folder onto a device, for one rank.
    pub(super) fn on(backend: Backend, settings: &Settings) -> Result<Self, PolicyError> {
        let dir = settings.model.dir.clone();
        let config = ModelConfig::from_folder(&dir)?;
        let checkpoint = Checkpoint::open(&dir, &config)?;
        checkpoint.verify_finite()?;
        let stored = checkpoint.tensors().next().transpose()?.map_or(Dtype::F32, |tensor| tensor.dtype);
        // A CPU widens f16: weights that are trained are f32 or bf16. A GPU computes with bf16 whatever the folder holds, and an f32 file then holds
        // these numbers.
        let usual = if stored == Dtype::Bf16 { Dtype::Bf16 } else { Dtype::F32 };
        let pushed = settings.serving_dtype().unwrap_or(usual);
        let dtype = if backend.is_cuda() { Dtype::Bf16 } else { pushed };
        if let Some(reason) = backend.refuses(&config) {
            return Err(PolicyError::Setting(reason));
        }
        if let Some(need) = backend.check_memory(&config, settings, settings.wants_reference()).map_err(PolicyError::Setting)? {
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
            parts: settings.parts_here(),
        };
        let (learner, numerics_id) = backend.learner(&base, &plan, settings.model.optimizer_offload)?;
        let reference = match settings.wants_reference() {
            true => Some(backend.scorer(&config, &Rounded::new(&base, dtype))?),
            false => None,
        };
        let (parts, micro_batch_tokens) = (settings.update.parts, settings.update.micro_batch_tokens);
        Ok(Policy { learner, backend, config, dtype, pushed, dir, numerics_id, reference, parts, micro_batch_tokens, ranks: None })
    }

    /// Where it computes.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Scores the tokens of sequences; ranks share the work, which no score depends on.
    pub fn score(&mut self, sequences: &[PackedSequence], temperature: f32, of: Of) -> Result<Vec<Vec<TokenScore>>, TrainingError> {
        let lengths: Vec<usize> = sequences.iter().map(|sequence| sequence.token_ids.len()).collect();
        let cuts = batch::parts(&lengths, self.ranks.as_ref().map_or(1, Ranks::count));
        if let Some(ranks) = &mut self.ranks {
            for (rank, cut) in cuts.iter().enumerate().skip(1) {
                ranks.ask_scores(rank, &sequences[cut.clone()], temperature, of)?;
            }
        }
        let scorer: &mut dyn Score = match (of, &mut self.reference) {
            (Of::Trained, _) => &mut *self.learner,
            (Of::Reference, Some(reference)) => &mut **reference,
            (Of::Reference, None) => return Err(TrainingError::NoWeights),
        };
        let mut scores = part::score(scorer, &sequences[cuts[0].clone()], temperature, self.micro_batch_tokens)?;
        if let Some(ranks) = &self.ranks {
            for rank in 1..cuts.len() {
                scores.extend(ranks.scores(rank)?);
            }
        }
        Ok(scores)
    }

    /// One update: the gradient of the objective over these rows, part by part, and the optimizer's step.
    pub fn step(&mut self, rows: &[Sample], objective: &Objective, temperature: f32, lr: f64) -> Result<Step, TrainingError> {
        let cuts = batch::parts(&part::lengths(rows), self.parts);
        let mut parts = Vec::with_capacity(cuts.len());
        match &mut self.ranks {
            None => {
                self.learner.zero_gradients();
                for cut in cuts {
                    parts.push(part::train(&mut *self.learner, &rows[cut], objective, temperature, self.micro_batch_tokens)?);
                    self.learner.end_part();
                }
            }
            Some(ranks) => {
                for (rank, cut) in cuts.iter().enumerate().skip(1) {
                    ranks.ask_part(rank, &rows[cut.clone()], objective, temperature)?;
                }
                self.learner.zero_gradients();
                parts.push(part::train(&mut *self.learner, &rows[cuts[0].clone()], objective, temperature, self.micro_batch_tokens)?);
                for rank in 1..cuts.len() {
                    parts.push(ranks.part(rank)?);
                }
                ranks.ask_update(lr)?;
            }
        }
        let norm = self.learner.update(lr);
        let norm = match &self.ranks {
            None => norm?,
            Some(ranks) => {
                let norm = norm.map_err(|error| ranks.blame(error))?;
                ranks.agree(norm)?;
                norm
            }
        };
        let mut step = Step { sums: Sums::default(), scores: Vec::with_capacity(rows.len()), norm };
        for part in parts {
            step.sums.add(&part.sums);
            step.scores.extend(part.scores);
        }
        Ok(step)
    }

    /// A rank's part of an update, whose gradient waits for [`Policy::update`].
    pub(super) fn part(&mut self, rows: &[Sample], objective: &Objective, temperature: f32) -> Result<Part, TrainingError> {
        self.learner.zero_gradients();
        part::train(&mut *self.learner, rows, objective, temperature, self.micro_batch_tokens)
    }

    /// A rank's optimizer step, on the sum of all ranks' gradients.
    pub(super) fn update(&mut self, lr: f64) -> Result<Option<f64>, TrainingError> {
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
        let mut tensors = self.learner.weights()?;
        if self.pushed == Dtype::F32 && self.dtype == Dtype::Bf16 {
            // Widening is exact: the high half of an f32.
            tensors
                .iter_mut()
                .for_each(|t| t.bytes = t.bytes.as_chunks::<2>().0.iter().flat_map(|[low, high]| [0, 0, *low, *high]).collect());
        }
        Ok(file_bytes(&tensors, self.pushed))
    }

    /// First digits of a digest of the serving weights: of their hashes where they are on a GPU, else of the file. It does not depend on how they get
    /// to a server.
    pub fn digest(&mut self) -> Result<String, TrainingError> {
        let whole = match self.learner.handover_device().map(|_| self.learner.export()) {
            Some(Ok(exported)) => blake3::hash(exported.digest().as_bytes()),
            _ => blake3::hash(&self.weights()?),
        };
        Ok(whole.to_hex()[..12].to_owned())
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

    /// Goes on from a checkpoint: its folder, and what was read from there.
    pub fn restore(&mut self, checkpoint: &Path, tensors: &Tensors, updates: u64) -> Result<(), TrainingError> {
        self.learner.restore(tensors, updates)?;
        self.ranks.as_mut().map_or(Ok(()), |ranks| ranks.restore(checkpoint, updates))
    }
}

/// The serving weights on their way to a server.
impl Weights for Policy {
    fn device(&self) -> Option<DeviceId> {
        self.learner.handover_device()
    }

    fn export(&mut self) -> Result<Exported, String> {
        self.learner.export()
    }

    fn file(&mut self) -> Result<Vec<u8>, String> {
        self.weights().map_err(|e| e.to_string())
    }
}
