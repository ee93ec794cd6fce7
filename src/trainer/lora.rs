//! Low-rank adapters on rounded, merged weights.
//!
//! The model that samples and the model that trains are the same: W' = round(W + s B A), with s = alpha / rank. The forward pass runs on W'
//! and gives dW'; the adapters' gradients follow from it, dB = s dW' A^T and dA = s B^T dW'. Names are those of PEFT, so that an adapter
//! can be taken elsewhere.

use super::batch::unit;
use super::settings;
use crate::model::params::{Param, Params};
use crate::ops::TrainOps;
use crate::ops::backward::{Adapter, Slab};

/// The adapters of a model.
#[derive(Clone, Debug)]
pub struct Lora {
    rank: usize,
    scale: f32,
    /// For each adapter, the place of its weight among the model's parameters.
    targets: Vec<usize>,
}

impl Lora {
    /// Adapters for every weight whose projection is a target, and their initial values: A uniform in +-1/sqrt(inputs) (as PEFT), B zero.
    pub fn new(settings: &settings::Lora, base: &Params, seed: u64) -> Result<(Self, Params), String> {
        let mut lora = Lora { rank: settings.rank, scale: settings.alpha / settings.rank as f32, targets: Vec::new() };
        let mut entries = Vec::new();
        for (place, param) in base.entries.iter().enumerate() {
            let Some(module) = param.name.strip_suffix(".weight") else { continue };
            let projection = module.rsplit('.').next().unwrap_or(module);
            if param.shape.len() != 2 || !settings.targets.iter().any(|target| target == projection) {
                continue;
            }
            let (outputs, inputs) = (param.shape[0], param.shape[1]);
            let bound = 1.0 / (inputs as f32).sqrt();
            let stream = lora.targets.len() as u64;
            let a = (0..settings.rank * inputs).map(|i| (2.0 * unit(seed, stream, i as u64) as f32 - 1.0) * bound).collect();
            let name = |which: &str| format!("base_model.model.{module}.lora_{which}.weight");
            entries.push(Param { name: name("A"), shape: vec![settings.rank, inputs], values: a });
            entries.push(Param { name: name("B"), shape: vec![outputs, settings.rank], values: vec![0.0; outputs * settings.rank] });
            lora.targets.push(place);
        }
        let ends = |param: &Param, target: &str| param.name.strip_suffix(".weight").and_then(|m| m.rsplit('.').next()) == Some(target);
        let unknown = |target: &&String| !lora.targets.iter().any(|&place| ends(&base.entries[place], target));
        if let Some(target) = settings.targets.iter().find(unknown) {
            return Err(format!(
                "lora.targets: {target:?} is no projection of this model; use q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"
            ));
        }
        if lora.targets.is_empty() {
            return Err("lora.targets is empty; name the projections that get adapters, such as q_proj and v_proj".into());
        }
        Ok((lora, Params::of(entries)))
    }

    /// What serves of the tensor at `place` of the model's parameters: the base, and its adapter if it has one.
    pub fn slab<'a, F>(&self, base: &'a Params<F>, adapters: &'a Params<F>, place: usize) -> Slab<'a, F> {
        let pair = self.targets.iter().position(|&target| target == place).map(|i| self.pair(adapters, i));
        Slab { base: &base.entries[place].values, adapter: pair }
    }

    fn pair<'a, F>(&self, adapters: &'a Params<F>, i: usize) -> Adapter<'a, F> {
        let (a, b) = (&adapters.entries[2 * i].values, &adapters.entries[2 * i + 1].values);
        Adapter { a, b, rank: self.rank, scale: self.scale }
    }

    /// Gradients of the adapters from those of the merged weights.
    pub fn gradients<F>(&self, ops: &mut impl TrainOps<Flat = F>, adapters: &Params<F>, dense: &Params<F>, into: &mut Params<F>) {
        for ((i, out), &place) in into.entries.chunks_exact_mut(2).enumerate().zip(&self.targets) {
            let [da, db] = out else { continue };
            let dw = &dense.entries[place];
            ops.adapter_backward(self.pair(adapters, i), dw.row(), &dw.values, &mut da.values, &mut db.values);
        }
    }
}
