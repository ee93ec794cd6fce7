//! Where each gradient goes: places of the model's tensors among the entries of [`Params`].

use std::collections::HashMap;
use std::ops::Range;

use super::TrainingError;
use crate::model::{ModelConfig, Param, Params};
use crate::ops::Heads;

/// Indices into [`Params::entries`].
pub(super) struct Places {
    pub(super) embed: usize,
    pub(super) norm: usize,
    /// `None` where the head is the embedding.
    pub(super) head: Option<usize>,
    pub(super) layers: Vec<LayerPlaces>,
    /// Name and number of elements of every entry.
    wanted: Vec<(String, usize)>,
}

/// The tensors of one layer.
pub(super) struct LayerPlaces {
    pub(super) attention_norm: usize,
    /// Query, key and value projections, and their biases.
    weights: [usize; 3],
    biases: [Option<usize>; 3],
    norms: Option<[usize; 2]>,
    pub(super) out: usize,
    pub(super) mlp_norm: usize,
    pub(super) gate: usize,
    pub(super) up: usize,
    pub(super) down: usize,
}

impl Places {
    pub(super) fn of(config: &ModelConfig) -> Places {
        let wanted: Vec<(String, usize)> = config.tensors().into_iter().map(|(name, shape)| (name, shape.iter().product())).collect();
        let by_name: HashMap<&str, usize> = wanted.iter().enumerate().map(|(i, (name, _))| (name.as_str(), i)).collect();
        let find = |name: &str| by_name.get(name).copied();
        let layer = |i: usize| {
            let find = |name: &str| find(&format!("model.layers.{i}.{name}"));
            let place = |name: &str| find(&format!("{name}.weight")).unwrap_or_default();
            LayerPlaces {
                attention_norm: place("input_layernorm"),
                weights: ["q", "k", "v"].map(|n| place(&format!("self_attn.{n}_proj"))),
                biases: ["q", "k", "v"].map(|n| find(&format!("self_attn.{n}_proj.bias"))),
                norms: find("self_attn.q_norm.weight").zip(find("self_attn.k_norm.weight")).map(|(q, k)| [q, k]),
                out: place("self_attn.o_proj"),
                mlp_norm: place("post_attention_layernorm"),
                gate: place("mlp.gate_proj"),
                up: place("mlp.up_proj"),
                down: place("mlp.down_proj"),
            }
        };
        Places {
            embed: find("model.embed_tokens.weight").unwrap_or_default(),
            norm: find("model.norm.weight").unwrap_or_default(),
            head: find("lm_head.weight"),
            layers: (0..config.num_layers).map(layer).collect(),
            wanted,
        }
    }

    /// Refuses gradients of another model.
    pub(super) fn check<F>(&self, gradients: &Params<F>) -> Result<(), TrainingError> {
        let given = gradients.entries.iter().map(|p| (p.name.as_str(), p.len()));
        let mut pairs = self.wanted.iter().map(|(name, len)| (name.as_str(), *len)).zip(given);
        if let Some((wanted, given)) = pairs.find(|(wanted, given)| wanted != given) {
            let problem = format!("`{}` of {} numbers stands where `{}` of {} belongs", given.0, given.1, wanted.0, wanted.1);
            return Err(TrainingError::Gradients(problem));
        }
        match (gradients.entries.len(), self.wanted.len()) {
            (given, wanted) if given != wanted => Err(TrainingError::Gradients(format!("they are {given} tensors and not {wanted}"))),
            _ => Ok(()),
        }
    }
}

impl LayerPlaces {
    /// Columns of the fused projection, and where their weights' and biases' gradients go.
    pub(super) fn projections(&self, heads: Heads) -> [(Range<usize>, usize, Option<usize>); 3] {
        let (q, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        let columns = [0..q, q..q + kv, q + kv..q + 2 * kv];
        let mut i = 0;
        columns.map(|columns| {
            i += 1;
            (columns, self.weights[i - 1], self.biases[i - 1])
        })
    }

    /// Gradients of the norms of query and key heads, in models that have them.
    pub(super) fn qk_norm<'a, F>(&self, grads: &'a mut [Param<F>]) -> Option<(&'a mut F, &'a mut F)> {
        let [q, k] = grads.get_disjoint_mut(self.norms?).ok()?;
        Some((&mut q.values, &mut k.values))
    }
}
