//! Where the tensors of a checkpoint lie in packed weights: rows of a matrix that holds several one below the other, or a part of joined vectors.

use super::config::ModelConfig;
use super::weights::{Weights, heads};
use crate::ops::Ops;

/// A place in packed weights.
pub enum Place<'a, O: Ops> {
    /// `rows` rows of a matrix, from `first` on.
    Rows {
        /// The matrix.
        matrix: &'a O::Matrix,
        /// First row.
        first: usize,
        /// Rows.
        rows: usize,
    },
    /// `len` values of a vector, from `first` on.
    Part {
        /// The vector.
        vector: &'a O::Vector,
        /// First value.
        first: usize,
        /// Values.
        len: usize,
    },
}

/// A tensor and its place.
pub struct Placed<'a, O: Ops> {
    /// Hugging Face name.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Where it lies.
    pub place: Place<'a, O>,
}

/// Every tensor of [`ModelConfig::tensors`], in the order in which the weights hold them.
pub fn places<'a, O: Ops>(config: &ModelConfig, weights: &'a Weights<O>) -> Vec<Placed<'a, O>> {
    let mut out = Vec::new();
    let heads = heads(config);
    let (hidden, wide) = (config.hidden_size, config.intermediate_size);
    let (q, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
    for (i, layer) in weights.layers.iter().enumerate() {
        let name = |name: &str| format!("model.layers.{i}.{name}");
        let qkv = [("q", q), ("k", kv), ("v", kv)];
        below(&mut out, &layer.qkv, hidden, qkv.map(|(n, rows)| (name(&format!("self_attn.{n}_proj.weight")), rows)));
        if let Some(bias) = &layer.qkv_bias {
            behind(&mut out, bias, qkv.map(|(n, len)| (name(&format!("self_attn.{n}_proj.bias")), len)));
        }
        if let Some((q, k)) = &layer.qk_norm {
            behind(&mut out, q, [(name("self_attn.q_norm.weight"), heads.dim)]);
            behind(&mut out, k, [(name("self_attn.k_norm.weight"), heads.dim)]);
        }
        below(&mut out, &layer.out, q, [(name("self_attn.o_proj.weight"), hidden)]);
        below(&mut out, &layer.gate_up, hidden, ["gate", "up"].map(|n| (name(&format!("mlp.{n}_proj.weight")), wide)));
        below(&mut out, &layer.down, wide, [(name("mlp.down_proj.weight"), hidden)]);
        behind(&mut out, &layer.attention_norm, [(name("input_layernorm.weight"), hidden)]);
        behind(&mut out, &layer.mlp_norm, [(name("post_attention_layernorm.weight"), hidden)]);
    }
    below(&mut out, &weights.embed, hidden, [("model.embed_tokens.weight".to_owned(), config.vocab_size)]);
    behind(&mut out, &weights.norm, [("model.norm.weight".to_owned(), hidden)]);
    if let Some(head) = &weights.head {
        below(&mut out, head, hidden, [("lm_head.weight".to_owned(), config.vocab_size)]);
    }
    out
}

/// Tensors one below the other in a matrix.
fn below<'a, O: Ops, const N: usize>(out: &mut Vec<Placed<'a, O>>, matrix: &'a O::Matrix, inputs: usize, tensors: [(String, usize); N]) {
    let mut first = 0;
    for (name, rows) in tensors {
        out.push(Placed { name, shape: vec![rows, inputs], place: Place::Rows { matrix, first, rows } });
        first += rows;
    }
}

/// Tensors one behind the other in a vector.
fn behind<'a, O: Ops, const N: usize>(out: &mut Vec<Placed<'a, O>>, vector: &'a O::Vector, tensors: [(String, usize); N]) {
    let mut first = 0;
    for (name, len) in tensors {
        out.push(Placed { name, shape: vec![len], place: Place::Part { vector, first, len } });
        first += len;
    }
}
