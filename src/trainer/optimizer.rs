//! AdamW on f32 master weights, and clipping by the global norm. Both give the same bytes on any machine with any number of threads.

use crate::model::Params;
use crate::ops::TrainOps;
use crate::ops::backward::AdamwStep;

/// Settings of AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamwSettings {
    /// Decay of the first and the second moment.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay; every parameter decays.
    pub weight_decay: f64,
}

impl Default for AdamwSettings {
    fn default() -> Self {
        AdamwSettings { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 }
    }
}

/// The optimizer's state: what a checkpoint must hold beside the parameters. Its numbers are where the backend computes ([`TrainOps::Flat`]).
#[derive(Clone, Debug)]
pub struct Adamw<F = Vec<f32>> {
    /// Settings; they may change between steps.
    pub settings: AdamwSettings,
    m: Params<F>,
    v: Params<F>,
    steps: u64,
}

impl Adamw {
    /// No step taken yet.
    pub fn new(params: &Params, settings: AdamwSettings) -> Adamw {
        Adamw { settings, m: params.zeros_like(), v: params.zeros_like(), steps: 0 }
    }
}

impl<F> Adamw<F> {
    /// Goes on from a checkpoint: both moments and the number of steps taken.
    ///
    /// # Panics
    /// If the moments are not of one model.
    pub fn resume(settings: AdamwSettings, m: Params<F>, v: Params<F>, steps: u64) -> Adamw<F> {
        let same =
            m.entries.len() == v.entries.len() && m.entries.iter().zip(&v.entries).all(|(m, v)| (&m.name, &m.shape) == (&v.name, &v.shape));
        assert!(same, "moments of different models");
        Adamw { settings, m, v, steps }
    }

    /// Goes on from both moments, which are on the host, and the number of steps taken.
    ///
    /// # Panics
    /// If the moments are of another model.
    pub fn restore(&mut self, ops: &mut impl TrainOps<Flat = F>, m: &Params, v: &Params, steps: u64) {
        for (to, from) in [(&mut self.m, m), (&mut self.v, v)] {
            assert!(to.entries.len() == from.entries.len(), "moments of another model");
            to.entries.iter_mut().zip(&from.entries).for_each(|(to, from)| ops.write_flat(&mut to.values, &from.values));
        }
        self.steps = steps;
    }

    /// First moments.
    pub fn m(&self) -> &Params<F> {
        &self.m
    }

    /// Second moments.
    pub fn v(&self) -> &Params<F> {
        &self.v
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// One step with learning rate `lr`. See [`TrainOps::adamw`].
    ///
    /// # Panics
    /// If the parameters are not those that the state belongs to.
    pub fn step(&mut self, ops: &mut impl TrainOps<Flat = F>, params: &mut Params<F>, gradients: &Params<F>, lr: f64) {
        assert!(
            params.entries.len() == self.m.entries.len() && gradients.entries.len() == params.entries.len(),
            "parameters of another model"
        );
        self.steps += 1;
        let AdamwSettings { betas: (beta1, beta2), eps, weight_decay } = self.settings;
        let step = AdamwStep { lr, beta1, beta2, eps, weight_decay, step: self.steps };
        for (i, param) in params.entries.iter_mut().enumerate() {
            let (m, v) = (&mut self.m.entries[i].values, &mut self.v.entries[i].values);
            ops.adamw(&step, &mut param.values, &gradients.entries[i].values, m, v);
        }
    }
}

/// The norm of all gradients together: the squares of each tensor in f64 by [`TrainOps::sum_of_squares`], the tensors in order.
pub fn global_norm<F>(ops: &mut impl TrainOps<Flat = F>, gradients: &Params<F>) -> f64 {
    let all: Vec<&F> = gradients.entries.iter().map(|p| &p.values).collect();
    ops.sums_of_squares(&all).iter().sum::<f64>().sqrt()
}

/// Scales the gradients down to `max_norm` where their norm is larger, as PyTorch's `clip_grad_norm_` does, and returns the norm before.
/// A norm that is not finite leaves them alone: the caller decides.
pub fn clip_global_norm<F>(ops: &mut impl TrainOps<Flat = F>, gradients: &mut Params<F>, max_norm: f64) -> f64 {
    let norm = global_norm(ops, gradients);
    let factor = max_norm / (norm + 1e-6);
    if norm.is_finite() && factor < 1.0 {
        for entry in &mut gradients.entries {
            ops.scale(&mut entry.values, factor as f32);
        }
    }
    norm
}
