//! Low-rank adapters on rounded, merged weights.
//!
//! The model that samples and the model that trains are the same: W' = round(W + s B A), with s = alpha / rank. The forward pass runs on W'
//! and gives dW'; the adapters' gradients follow from it, dB = s dW' A^T and dA = s B^T dW'. Names are those of PEFT, so that an adapter
//! can be taken elsewhere. Sums run over ascending indices on one thread: the same bytes everywhere.

use super::batch::unit;
use super::settings;
use crate::model::params::{Param, Params};

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

    /// `into` becomes `base + s B A`; `into` has the shapes of `base`.
    pub fn merge(&self, base: &Params, adapters: &Params, into: &mut Params) {
        for (pair, &place) in adapters.entries.chunks_exact(2).zip(&self.targets) {
            let (a, b) = (&pair[0].values, &pair[1].values);
            let inputs = pair[0].shape[1];
            let mut sum = vec![0f32; inputs];
            let (from, to) = (&base.entries[place].values, &mut into.entries[place].values);
            for (o, (from, to)) in from.chunks_exact(inputs).zip(to.chunks_exact_mut(inputs)).enumerate() {
                sum.fill(0.0);
                for r in 0..self.rank {
                    let weight = b[o * self.rank + r];
                    sum.iter_mut().zip(&a[r * inputs..][..inputs]).for_each(|(s, a)| *s += weight * a);
                }
                for ((to, from), s) in to.iter_mut().zip(from).zip(&sum) {
                    *to = from + self.scale * s;
                }
            }
        }
    }

    /// Gradients of the adapters from those of the merged weights.
    pub fn gradients(&self, adapters: &Params, dense: &Params, into: &mut Params) {
        for ((pair, out), &place) in adapters.entries.chunks_exact(2).zip(into.entries.chunks_exact_mut(2)).zip(&self.targets) {
            let (a, b) = (&pair[0].values, &pair[1].values);
            let inputs = pair[0].shape[1];
            let [da, db] = out else { continue };
            da.values.fill(0.0);
            for (o, dw) in dense.entries[place].values.chunks_exact(inputs).enumerate() {
                for r in 0..self.rank {
                    let (row, weight) = (&a[r * inputs..][..inputs], b[o * self.rank + r]);
                    // Sixteen lanes, so that it is vector code; their order is fixed.
                    let mut lanes = [0f32; 16];
                    for (dw, a) in dw.chunks(16).zip(row.chunks(16)) {
                        lanes.iter_mut().zip(dw.iter().zip(a)).for_each(|(lane, (dw, a))| *lane += dw * a);
                    }
                    db.values[o * self.rank + r] = self.scale * lanes.iter().sum::<f32>();
                    da.values[r * inputs..][..inputs].iter_mut().zip(dw).for_each(|(da, dw)| *da += weight * dw);
                }
            }
            da.values.iter_mut().for_each(|v| *v *= self.scale);
        }
    }
}
