//! A model's tensors, packed once for a backend.

use super::config::ModelConfig;
use super::error::ModelError;
use super::tensor_view::Dtype;
use super::tensor_view::TensorView;
use crate::ops::backward::Slab;
use crate::ops::{Heads, Ops, TrainOps};

/// One transformer layer.
pub struct Layer<O: Ops> {
    /// RMSNorm before attention, `[hidden]`.
    pub attention_norm: O::Vector,
    /// Query, key and value projections, `[(heads + 2 kv_heads) * head_dim, hidden]`.
    pub qkv: O::Matrix,
    /// Their bias (Qwen2).
    pub qkv_bias: Option<O::Vector>,
    /// Norms of each query and key head, `[head_dim]` (Qwen3).
    pub qk_norm: Option<(O::Vector, O::Vector)>,
    /// Output projection, `[hidden, heads * head_dim]`.
    pub out: O::Matrix,
    /// RMSNorm before the feed-forward part, `[hidden]`.
    pub mlp_norm: O::Vector,
    /// Gate and up projections, `[2 * intermediate, hidden]`.
    pub gate_up: O::Matrix,
    /// Down projection, `[hidden, intermediate]`.
    pub down: O::Matrix,
}

/// All weights of a model.
pub struct Weights<O: Ops> {
    /// Token embedding, `[vocab, hidden]`.
    pub embed: O::Matrix,
    /// Layers, first to last.
    pub layers: Vec<Layer<O>>,
    /// The last RMSNorm, `[hidden]`.
    pub norm: O::Vector,
    /// Output head, `[vocab, hidden]`; `None` where it is the embedding.
    pub head: Option<O::Matrix>,
}

/// Where a model's tensors come from: a checkpoint's files, a push of new weights, or the trainer's memory.
pub trait TensorSource {
    /// The tensor of this Hugging Face name, one of [`ModelConfig::tensors`].
    fn tensor(&self, name: &str) -> Result<TensorView<'_>, ModelError>;
}

/// Heads of a configuration.
pub fn heads(config: &ModelConfig) -> Heads {
    Heads { query: config.num_heads, kv: config.num_kv_heads, dim: config.head_dim }
}

impl<O: Ops> Weights<O> {
    /// Packs verified tensors. `progress` is called with (layers done, layers in all).
    pub fn load(
        ops: &O,
        config: &ModelConfig,
        source: &dyn TensorSource,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Self, ModelError> {
        let mut layers = Vec::with_capacity(config.num_layers);
        for i in 0..config.num_layers {
            let t = |name: &str| source.tensor(&format!("model.layers.{i}.{name}"));
            let vector = |name: &str| -> Result<O::Vector, ModelError> { Ok(ops.vector(&[t(name)?])) };
            let matrix = |names: &[&str]| -> Result<O::Matrix, ModelError> {
                let slabs: Vec<TensorView<'_>> = names.iter().map(|n| t(n)).collect::<Result<_, _>>()?;
                Ok(ops.matrix(&slabs))
            };
            layers.push(Layer {
                attention_norm: vector("input_layernorm.weight")?,
                qkv: matrix(&["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"])?,
                qkv_bias: match config.qkv_bias {
                    true => Some(ops.vector(&[t("self_attn.q_proj.bias")?, t("self_attn.k_proj.bias")?, t("self_attn.v_proj.bias")?])),
                    false => None,
                },
                qk_norm: match config.qk_norm {
                    true => Some((vector("self_attn.q_norm.weight")?, vector("self_attn.k_norm.weight")?)),
                    false => None,
                },
                out: matrix(&["self_attn.o_proj.weight"])?,
                mlp_norm: vector("post_attention_layernorm.weight")?,
                gate_up: matrix(&["mlp.gate_proj.weight", "mlp.up_proj.weight"])?,
                down: matrix(&["mlp.down_proj.weight"])?,
            });
            progress(i + 1, config.num_layers);
        }
        Ok(Weights {
            embed: ops.matrix(&[source.tensor("model.embed_tokens.weight")?]),
            layers,
            norm: ops.vector(&[source.tensor("model.norm.weight")?]),
            head: match config.tie_word_embeddings {
                true => None,
                false => Some(ops.matrix(&[source.tensor("lm_head.weight")?])),
            },
        })
    }
}

impl<O: Ops> Weights<O> {
    /// Puts other weights of the same model in the place of these, where the backend wants them to stay; `staged` is left with what is not
    /// used any more.
    ///
    /// # Panics
    /// If the two are not of one model.
    pub fn adopt(&mut self, ops: &mut O, staged: &mut Weights<O>) {
        assert!(self.layers.len() == staged.layers.len() && self.head.is_some() == staged.head.is_some(), "weights of another model");
        for (live, new) in self.layers.iter_mut().zip(&mut staged.layers) {
            ops.adopt_vector(&mut live.attention_norm, &mut new.attention_norm);
            ops.adopt_matrix(&mut live.qkv, &mut new.qkv);
            if let (Some(live), Some(new)) = (&mut live.qkv_bias, &mut new.qkv_bias) {
                ops.adopt_vector(live, new);
            }
            if let (Some(live), Some(new)) = (&mut live.qk_norm, &mut new.qk_norm) {
                ops.adopt_vector(&mut live.0, &mut new.0);
                ops.adopt_vector(&mut live.1, &mut new.1);
            }
            ops.adopt_matrix(&mut live.out, &mut new.out);
            ops.adopt_vector(&mut live.mlp_norm, &mut new.mlp_norm);
            ops.adopt_matrix(&mut live.gate_up, &mut new.gate_up);
            ops.adopt_matrix(&mut live.down, &mut new.down);
        }
        ops.adopt_matrix(&mut self.embed, &mut staged.embed);
        ops.adopt_vector(&mut self.norm, &mut staged.norm);
        if let (Some(live), Some(new)) = (&mut self.head, &mut staged.head) {
            ops.adopt_matrix(live, new);
        }
    }
}

impl<O: TrainOps> Weights<O> {
    /// Packs other tensors of the same model in the memory of these.
    pub fn update(&mut self, ops: &mut O, source: &dyn TensorSource) -> Result<(), ModelError> {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            let names = |names: &[&str]| -> Result<Vec<TensorView<'_>>, ModelError> {
                names.iter().map(|name| source.tensor(&format!("model.layers.{i}.{name}"))).collect()
            };
            layer.attention_norm = ops.vector(&names(&["input_layernorm.weight"])?);
            ops.repack(&mut layer.qkv, &names(&["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"])?);
            if let Some(bias) = &mut layer.qkv_bias {
                *bias = ops.vector(&names(&["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"])?);
            }
            if let Some((q, k)) = &mut layer.qk_norm {
                *q = ops.vector(&names(&["self_attn.q_norm.weight"])?);
                *k = ops.vector(&names(&["self_attn.k_norm.weight"])?);
            }
            ops.repack(&mut layer.out, &names(&["self_attn.o_proj.weight"])?);
            layer.mlp_norm = ops.vector(&names(&["post_attention_layernorm.weight"])?);
            ops.repack(&mut layer.gate_up, &names(&["mlp.gate_proj.weight", "mlp.up_proj.weight"])?);
            ops.repack(&mut layer.down, &names(&["mlp.down_proj.weight"])?);
        }
        ops.repack(&mut self.embed, &[source.tensor("model.embed_tokens.weight")?]);
        self.norm = ops.vector(&[source.tensor("model.norm.weight")?]);
        if let Some(head) = &mut self.head {
            ops.repack(head, &[source.tensor("lm_head.weight")?]);
        }
        Ok(())
    }
}

impl<O: TrainOps> Weights<O> {
    /// Rounds master parameters once, to `dtype`, into the memory of these. `slab` gives those of a name, one of [`ModelConfig::tensors`].
    pub fn round<'a>(&mut self, ops: &mut O, dtype: Dtype, slab: impl Fn(&str) -> Slab<'a, O::Flat>)
    where
        O::Flat: 'a,
    {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            let t = |name: &str| slab(&format!("model.layers.{i}.{name}"));
            let v = |name: &str| t(name).base;
            ops.round_vector(&[v("input_layernorm.weight")], dtype, &mut layer.attention_norm);
            ops.round_matrix(&["q", "k", "v"].map(|n| t(&format!("self_attn.{n}_proj.weight"))), dtype, &mut layer.qkv);
            if let Some(bias) = &mut layer.qkv_bias {
                ops.round_vector(&["q", "k", "v"].map(|n| v(&format!("self_attn.{n}_proj.bias"))), dtype, bias);
            }
            if let Some((q, k)) = &mut layer.qk_norm {
                ops.round_vector(&[v("self_attn.q_norm.weight")], dtype, q);
                ops.round_vector(&[v("self_attn.k_norm.weight")], dtype, k);
            }
            ops.round_matrix(&[t("self_attn.o_proj.weight")], dtype, &mut layer.out);
            ops.round_vector(&[v("post_attention_layernorm.weight")], dtype, &mut layer.mlp_norm);
            ops.round_matrix(&["gate", "up"].map(|n| t(&format!("mlp.{n}_proj.weight"))), dtype, &mut layer.gate_up);
            ops.round_matrix(&[t("mlp.down_proj.weight")], dtype, &mut layer.down);
        }
        ops.round_matrix(&[slab("model.embed_tokens.weight")], dtype, &mut self.embed);
        ops.round_vector(&[slab("model.norm.weight").base], dtype, &mut self.norm);
        if let Some(head) = &mut self.head {
            ops.round_matrix(&[slab("lm_head.weight")], dtype, head);
        }
    }
}

/// Parameters that take part in matrix products at every token: all projections and the head, the embedding only as a tied head.
pub fn matrix_parameters(config: &ModelConfig) -> usize {
    let h = heads(config);
    let attention = config.hidden_size * (h.qkv_cols() + h.query * h.dim);
    let mlp = 3 * config.hidden_size * config.intermediate_size;
    config.num_layers * (attention + mlp) + config.vocab_size * config.hidden_size
}
