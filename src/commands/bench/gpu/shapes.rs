//! The models that are measured: shapes of Qwen3 as their config.json gives them, and what a step of them must read and compute.

use std::str::FromStr;

use crate::model::weights::{heads, matrix_parameters};
use crate::model::{ModelConfig, ModelError};

/// A shape by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// `0.6b`, `1.7b`, `4b`, `8b` or `tiny`.
    pub name: &'static str,
    hidden: usize,
    layers: usize,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    intermediate: usize,
    vocab: usize,
    tied: bool,
}

/// Qwen3 0.6B to 8B, and one that an emulated card can run in seconds.
pub const SHAPES: [Shape; 5] = [
    Shape {
        name: "0.6b",
        hidden: 1024,
        layers: 28,
        query_heads: 16,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 3072,
        vocab: 151_936,
        tied: true,
    },
    Shape {
        name: "1.7b",
        hidden: 2048,
        layers: 28,
        query_heads: 16,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 6144,
        vocab: 151_936,
        tied: true,
    },
    Shape {
        name: "4b",
        hidden: 2560,
        layers: 36,
        query_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 9728,
        vocab: 151_936,
        tied: true,
    },
    Shape {
        name: "8b",
        hidden: 4096,
        layers: 36,
        query_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 12_288,
        vocab: 151_936,
        tied: false,
    },
    Shape { name: "tiny", hidden: 64, layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16, intermediate: 128, vocab: 320, tied: true },
];

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        SHAPES.into_iter().find(|s| s.name == text).ok_or_else(|| {
            let names: Vec<&str> = SHAPES.iter().map(|s| s.name).collect();
            format!("give some of {}, with commas between them", names.join(", "))
        })
    }
}

impl Shape {
    /// Whether it is made for emulated cards: nothing is repeated, and step sizes are small.
    pub fn is_tiny(self) -> bool {
        self.name == "tiny"
    }

    /// As a config.json would give it.
    pub fn config(self) -> Result<ModelConfig, ModelError> {
        ModelConfig::from_json(
            &serde_json::json!({
                "model_type": "qwen3",
                "architectures": ["Qwen3ForCausalLM"],
                "vocab_size": self.vocab,
                "hidden_size": self.hidden,
                "intermediate_size": self.intermediate,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.query_heads,
                "num_key_value_heads": self.kv_heads,
                "head_dim": self.head_dim,
                "rms_norm_eps": 1e-6,
                "rope_theta": 1e6,
                "max_position_embeddings": 40_960,
                "tie_word_embeddings": self.tied,
            })
            .to_string(),
        )
    }
}

/// Bytes of weights that a step reads: every projection and the head, in bf16.
pub(super) fn weight_bytes(config: &ModelConfig) -> f64 {
    2.0 * matrix_parameters(config) as f64
}

/// Bytes of keys and values that one position takes in all layers.
pub(super) fn kv_bytes(config: &ModelConfig) -> f64 {
    let h = heads(config);
    (config.num_layers * 2 * h.kv * h.dim * 2) as f64
}

/// Operations of a prefill of `sequences` prompts of `length` tokens: two for each weight of a projection and token, the head for the last token
/// alone, and causal attention, which sees half of all pairs.
pub(super) fn prefill_flops(config: &ModelConfig, sequences: usize, length: usize) -> f64 {
    let head = config.vocab_size * config.hidden_size;
    let projections = matrix_parameters(config) - head;
    let tokens = (sequences * length) as f64;
    2.0 * projections as f64 * tokens
        + 2.0 * head as f64 * sequences as f64
        + config.num_layers as f64 * attention_flops(config, sequences, length)
}

/// Operations of one layer's causal attention over whole prompts.
pub(super) fn attention_flops(config: &ModelConfig, sequences: usize, length: usize) -> f64 {
    let h = heads(config);
    4.0 * (h.query * h.dim) as f64 * sequences as f64 * (length as f64 * (length as f64 + 1.0) / 2.0)
}
