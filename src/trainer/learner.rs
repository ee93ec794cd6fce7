//! A model in training on one backend: f32 master parameters, the rounded weights that sample, gradients, and the optimizer between them.
//!
//! Invariant: the weights that the forward pass runs on are the master (or base and adapters merged), rounded once, and these very bits are what
//! is pushed to the server. Everything lives where the backend computes; [`Learn`] is what the rest of the trainer sees of any of them.

use super::checkpoint::Tensors;
use super::lora::Lora;
use super::optimizer::{Adamw, AdamwSettings, clip_global_norm};
use super::settings;
use crate::model::backward::{Packed, Recompute, Slope, TokenScore, Training, TrainingError};
use crate::model::params::{Params, Rounded};
use crate::model::{Dtype, ModelConfig, ModelError};
use crate::ops::TrainOps;
use crate::ops::backward::Slab;
use crate::ops::handover::{DeviceId, Exported};

/// Why a model cannot be trained.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Its folder.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A pass over it, or the device.
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// A setting.
    #[error("{0}")]
    Setting(String),
}

/// A serving tensor in the type that is pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingTensor {
    /// Hugging Face name.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Little-endian, row-major.
    pub bytes: Vec<u8>,
}

/// What is trained, and how.
pub struct Plan<'a> {
    /// The model.
    pub config: &'a ModelConfig,
    /// Type of the serving weights.
    pub dtype: Dtype,
    /// What is kept between forward and backward.
    pub recompute: Recompute,
    /// AdamW.
    pub optimizer: AdamwSettings,
    /// Largest global norm of the gradients; infinite for no clip.
    pub clip_norm: f64,
    /// Low-rank adapters; rank 0 trains all parameters.
    pub lora: &'a settings::Lora,
    /// Seed of the adapters' initial values.
    pub seed: u64,
    /// Rows to make room for at once.
    pub rows: usize,
    /// Parts of an update whose gradients are summed apart here and then added.
    pub parts: usize,
}

/// Forward and backward of a model whose weights serve. The scores and slopes are in the order of the batch's scored tokens.
pub trait Score: Send {
    /// Scores a batch's tokens. See [`Training::forward`].
    fn forward(&mut self, batch: &Packed, temperature: f32) -> Result<Vec<TokenScore>, TrainingError>;
}

impl<O: TrainOps> Score for Training<O> {
    fn forward(&mut self, batch: &Packed, temperature: f32) -> Result<Vec<TokenScore>, TrainingError> {
        Training::forward(self, batch, temperature)
    }
}

/// A model in training, on any backend.
pub trait Learn: Score {
    /// Adds the gradients of the last forward pass. See [`Training::backward`].
    fn backward(&mut self, slopes: &[Slope]) -> Result<(), TrainingError>;
    /// Forgets the gradients: an update begins.
    fn zero_gradients(&mut self);
    /// Ends a part of the update: adds its gradients to the sum of the parts before it, and starts from zero again. Nothing, where an update has one
    /// part.
    fn end_part(&mut self);
    /// Clips the gradients (their sum over parts and ranks), takes an optimizer step, and serves the new weights. Gives the norm before the clip; nothing where it is not finite,
    /// and then nothing has changed.
    fn update(&mut self, lr: f64) -> Result<Option<f64>, TrainingError>;
    /// The serving weights: every tensor of the model.
    fn weights(&mut self) -> Result<Vec<ServingTensor>, TrainingError>;
    /// The gradients of all parameters as they stand, on the host: those of the part that runs.
    fn gradients(&mut self) -> Result<Params, TrainingError>;
    /// The GPU in whose memory the serving weights lie in BF16, if they do.
    fn handover_device(&self) -> Option<DeviceId>;
    /// Where they lie there, with their hashes.
    fn export(&self) -> Result<Exported, String>;
    /// Names and shapes of what is trained.
    fn shapes(&self) -> Params<()>;
    /// What a checkpoint keeps.
    fn tensors(&mut self) -> Result<Tensors, TrainingError>;
    /// Goes on from a checkpoint of `updates` updates.
    fn restore(&mut self, tensors: &Tensors, updates: u64) -> Result<(), TrainingError>;
}

/// A model in training on a backend.
pub struct Learner<O: TrainOps> {
    training: Training<O>,
    /// What the optimizer changes: all parameters, or the adapters.
    trained: Params<O::Flat>,
    optimizer: Adamw<O::Flat>,
    clip_norm: f64,
    /// Gradients of all parameters.
    gradients: Params<O::Flat>,
    adapters: Option<Adapters<O::Flat>>,
    parts: Option<Parts<O::Flat>>,
    dtype: Dtype,
}

struct Adapters<F> {
    lora: Lora,
    base: Params<F>,
    gradients: Params<F>,
}

/// What the parts of an update that ended have come to.
struct Parts<F> {
    /// Gradients of what is trained: of adapters, where there are some.
    sum: Params<F>,
    ended: usize,
}

impl<O: TrainOps> Learner<O> {
    /// A learner that starts from `base`.
    pub fn new(ops: O, base: &Params, plan: &Plan<'_>) -> Result<Self, PolicyError> {
        let adapters = match plan.lora.rank {
            0 => None,
            _ => Some(Lora::new(plan.lora, base, plan.seed).map_err(PolicyError::Setting)?),
        };
        let mut training = Training::new(ops, plan.config, plan.recompute);
        training.set_weights(&Rounded::new(base, plan.dtype))?;
        let ops = training.ops();
        let gradients = base.map(|p| ops.zeros(p.len()));
        let up = |ops: &mut O, params: &Params| params.map(|p| ops.flat(&p.values));
        let (trained, adapters) = match adapters {
            None => (up(ops, base), None),
            Some((lora, values)) => {
                let gradients = values.map(|p| ops.zeros(p.len()));
                (up(ops, &values), Some(Adapters { lora, base: up(ops, base), gradients }))
            }
        };
        let parts = (plan.parts > 1).then(|| Parts { sum: trained.map(|p| ops.zeros(p.len())), ended: 0 });
        let moment = |ops: &mut O| trained.map(|p| ops.parked_zeros(p.len()));
        let optimizer = Adamw::resume(plan.optimizer, moment(ops), moment(ops), 0);
        if let Some(failure) = ops.failure() {
            return Err(TrainingError::Device(failure).into());
        }
        training.reserve(plan.rows)?;
        let mut learner =
            Learner { training, trained, optimizer, clip_norm: plan.clip_norm, gradients, adapters, parts, dtype: plan.dtype };
        learner.serve()?;
        Ok(learner)
    }

    /// Rounds the master into the serving weights.
    fn serve(&mut self) -> Result<(), TrainingError> {
        let (places, trained, adapters) = (&self.gradients, &self.trained, &self.adapters);
        self.training.round_weights(self.dtype, |name| slab(places, trained, adapters.as_ref(), name))
    }

    fn clear(&mut self) {
        let ops = self.training.ops();
        self.gradients.entries.iter_mut().for_each(|p| ops.clear_flat(&mut p.values));
    }

    fn ok(&mut self) -> Result<(), TrainingError> {
        self.training.ops().failure().map_or(Ok(()), |failure| Err(TrainingError::Device(failure)))
    }
}

/// The gradients of what is trained, as they follow from those of all parameters.
fn of_trained<'a, O: TrainOps>(
    ops: &mut O,
    trained: &Params<O::Flat>,
    gradients: &'a mut Params<O::Flat>,
    adapters: Option<&'a mut Adapters<O::Flat>>,
) -> &'a mut Params<O::Flat> {
    match adapters {
        None => gradients,
        Some(a) => {
            a.lora.gradients(ops, trained, gradients, &mut a.gradients);
            &mut a.gradients
        }
    }
}

/// What serves under a name.
fn slab<'a, F>(places: &Params<F>, trained: &'a Params<F>, adapters: Option<&'a Adapters<F>>, name: &str) -> Slab<'a, F> {
    let place = places.index(name).unwrap_or_default();
    match adapters {
        None => Slab::plain(&trained.entries[place].values),
        Some(a) => a.lora.slab(&a.base, trained, place),
    }
}

impl<O: TrainOps> Score for Learner<O> {
    fn forward(&mut self, batch: &Packed, temperature: f32) -> Result<Vec<TokenScore>, TrainingError> {
        self.training.forward(batch, temperature)
    }
}

impl<O: TrainOps> Learn for Learner<O> {
    fn backward(&mut self, slopes: &[Slope]) -> Result<(), TrainingError> {
        self.training.backward(slopes, &mut self.gradients)
    }

    fn zero_gradients(&mut self) {
        if let Some(parts) = &mut self.parts {
            parts.ended = 0;
        }
        self.clear();
    }

    fn end_part(&mut self) {
        let Some(parts) = &mut self.parts else { return };
        let ops = self.training.ops();
        let gradients = of_trained(ops, &self.trained, &mut self.gradients, self.adapters.as_mut());
        for (sum, part) in parts.sum.entries.iter_mut().zip(&mut gradients.entries) {
            match parts.ended {
                0 => std::mem::swap(&mut sum.values, &mut part.values),
                _ => ops.add_flat(&mut sum.values, &part.values),
            }
        }
        parts.ended += 1;
        self.clear();
    }

    fn update(&mut self, lr: f64) -> Result<Option<f64>, TrainingError> {
        let ops = self.training.ops();
        let gradients = match &mut self.parts {
            Some(parts) => &mut parts.sum,
            None => of_trained(ops, &self.trained, &mut self.gradients, self.adapters.as_mut()),
        };
        gradients.entries.iter_mut().for_each(|p| ops.sum_over_ranks(&mut p.values));
        let norm = clip_global_norm(ops, gradients, self.clip_norm);
        if let Some(failure) = ops.failure() {
            return Err(TrainingError::Device(failure));
        }
        if !norm.is_finite() {
            return Ok(None);
        }
        self.optimizer.step(ops, &mut self.trained, gradients, lr);
        self.serve()?;
        Ok(Some(norm))
    }

    fn weights(&mut self) -> Result<Vec<ServingTensor>, TrainingError> {
        let ops = self.training.ops();
        let tensor = |p: &crate::model::Param<O::Flat>| {
            let slab = slab(&self.gradients, &self.trained, self.adapters.as_ref(), &p.name);
            ServingTensor { name: p.name.clone(), shape: p.shape.clone(), bytes: ops.rounded(slab, p.row(), self.dtype) }
        };
        let tensors = self.gradients.entries.iter().map(tensor).collect();
        self.ok()?;
        Ok(tensors)
    }

    fn gradients(&mut self) -> Result<Params, TrainingError> {
        let ops = self.training.ops();
        let gradients = self.gradients.map(|p| ops.read_flat(&p.values));
        self.ok()?;
        Ok(gradients)
    }

    fn handover_device(&self) -> Option<DeviceId> {
        self.training.handover_device()
    }

    fn export(&self) -> Result<Exported, String> {
        self.training.export()
    }

    fn shapes(&self) -> Params<()> {
        self.trained.shapes()
    }

    fn tensors(&mut self) -> Result<Tensors, TrainingError> {
        let ops = self.training.ops();
        let down = |params: &Params<O::Flat>| params.map(|p| ops.read_flat(&p.values));
        let tensors = Tensors { master: down(&self.trained), first: down(self.optimizer.m()), second: down(self.optimizer.v()) };
        self.ok()?;
        Ok(tensors)
    }

    fn restore(&mut self, tensors: &Tensors, updates: u64) -> Result<(), TrainingError> {
        let ops = self.training.ops();
        for (to, from) in self.trained.entries.iter_mut().zip(&tensors.master.entries) {
            ops.write_flat(&mut to.values, &from.values);
        }
        self.optimizer.restore(ops, &tensors.first, &tensors.second, updates);
        self.serve()
    }
}
