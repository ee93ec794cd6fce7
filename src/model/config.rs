//! A model's configuration, read from Hugging Face's config.json.
//!
//! Llama 3.x, Qwen2 / Qwen2.5 and Qwen3 (dense) are one forward pass that this configuration drives. Missing fields mean what they mean
//! to transformers; a field that asks for anything the forward pass does not do is refused by name, never ignored.

mod fields;
mod rope;

use std::path::Path;

use serde_json::Value;

use super::error::ModelError;
use super::files;
use fields::{Fields, quote, show};
pub use rope::{Llama3Scaling, RopeConfig};

/// Largest config.json that is read, in bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

// Bounds of the sizes. They are far beyond any dense model, and small enough that no product of them that this project forms can
// overflow 64 bits: the largest is about 2^10 layers of 3 * 2^20 * 2^20 numbers of 8 bytes, below 2^56.
const MAX_VOCAB: usize = 1 << 24;
const MAX_WIDTH: usize = 1 << 20;
const MAX_LAYERS: usize = 1 << 10;
const MAX_HEADS: usize = 1 << 12;
const MAX_HEAD_DIM: usize = 1 << 12;
pub(crate) const MAX_CONTEXT: usize = 1 << 30;

/// Which family a model belongs to. They differ by what the other fields of [`ModelConfig`] say; the forward pass looks only at those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// Llama 3.x, and models of the same shape such as SmolLM2.
    Llama,
    /// Qwen2 and Qwen2.5: bias on q, k and v.
    Qwen2,
    /// Qwen3, dense: RMS norm on each head of q and k.
    Qwen3,
}

impl Architecture {
    const ALL: [Architecture; 3] = [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3];

    /// `model_type` in config.json.
    pub fn model_type(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
        }
    }

    /// The name in `architectures` in config.json.
    pub fn class_name(self) -> &'static str {
        match self {
            Architecture::Llama => "LlamaForCausalLM",
            Architecture::Qwen2 => "Qwen2ForCausalLM",
            Architecture::Qwen3 => "Qwen3ForCausalLM",
        }
    }
}

/// Everything the forward pass needs to know of a model, checked: sizes are positive and bounded, `num_heads` is a multiple of
/// `num_kv_heads`, `head_dim` is even, token ids are below `vocab_size`.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Rows of the embedding, the number of token ids.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated feed-forward layer.
    pub intermediate_size: usize,
    /// Number of transformer layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; each serves `num_heads / num_kv_heads` query heads.
    pub num_kv_heads: usize,
    /// Numbers per head, even; not always `hidden_size / num_heads`.
    pub head_dim: usize,
    /// Added to the mean square in every RMS norm.
    pub rms_norm_eps: f32,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// The head is the embedding; there is no `lm_head.weight`.
    pub tie_word_embeddings: bool,
    /// The q, k and v projections have a bias.
    pub qkv_bias: bool,
    /// Each head of q and k passes an RMS norm of its own before the rotation.
    pub qk_norm: bool,
    /// Longest sequence in tokens (`max_position_embeddings`).
    pub context_length: usize,
    /// Token ids that end a text, as config.json names them; generation_config.json may name more.
    pub eos_token_ids: Vec<u32>,
    /// Token id that begins a text.
    pub bos_token_id: Option<u32>,
}

impl ModelConfig {
    /// Reads `dir/config.json`.
    pub fn from_folder(dir: &Path) -> Result<Self, ModelError> {
        files::require_folder(dir)?;
        let path = dir.join("config.json");
        let advice = "give the folder of a Hugging Face checkpoint, which holds config.json beside the safetensors files";
        let text = files::read_text(&path, MAX_CONFIG_BYTES, advice)?;
        Self::parse(&path, &text)
    }

    /// Reads the text of a config.json. Errors call the file `config.json`.
    pub fn from_json(text: &str) -> Result<Self, ModelError> {
        Self::parse(Path::new("config.json"), text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ModelError> {
        if text.len() as u64 > MAX_CONFIG_BYTES {
            return Err(ModelError::file(path, format!("is larger than {MAX_CONFIG_BYTES} bytes; check that it is a model's config.json")));
        }
        let value: Value = serde_json::from_str(text).map_err(|error| {
            ModelError::file(path, format!("is not valid JSON ({}); download or export it again", files::brief(&error)))
        })?;
        let Value::Object(object) = &value else {
            return Err(ModelError::file(
                path,
                format!("holds {}, and a JSON object is needed; download or export it again", show(&value)),
            ));
        };
        Self::read(&Fields::root(path, object))
    }

    fn read(config: &Fields<'_>) -> Result<Self, ModelError> {
        let architecture = read_architecture(config)?;
        refuse_unsupported(config, architecture)?;

        let vocab_size = config.required_size("vocab_size", 1, MAX_VOCAB)?;
        let hidden_size = config.required_size("hidden_size", 1, MAX_WIDTH)?;
        let intermediate_size = config.required_size("intermediate_size", 1, MAX_WIDTH)?;
        let num_layers = config.required_size("num_hidden_layers", 1, MAX_LAYERS)?;
        let num_heads = config.required_size("num_attention_heads", 1, MAX_HEADS)?;
        let num_kv_heads = read_kv_heads(config, architecture, num_heads)?;
        let head_dim = read_head_dim(config, architecture, hidden_size, num_heads)?;
        let layer_types = config.texts("layer_types")?;
        if let Some(types) = &layer_types {
            if let Some(other) = types.iter().find(|&&kind| kind != "full_attention") {
                return Err(
                    config.error("layer_types", format!("holds {}; only \"full_attention\" is supported in every layer", quote(other)))
                );
            }
            if types.len() != num_layers {
                let n = types.len();
                return Err(
                    config.error("layer_types", format!("has {n} entries for {num_layers} layers (num_hidden_layers); make them agree"))
                );
            }
        }

        let (default_context, default_bos, default_eos) = match architecture {
            Architecture::Llama => (2048, Some(1), vec![2]),
            Architecture::Qwen2 | Architecture::Qwen3 => (32768, None, Vec::new()),
        };
        let in_vocab = |id: &u32| (*id as usize) < vocab_size;
        let eos_token_ids = match config.contains("eos_token_id") {
            true => config.token_ids("eos_token_id", vocab_size)?,
            false => default_eos.into_iter().filter(in_vocab).collect(),
        };
        let bos_token_id = match config.contains("bos_token_id") {
            true => match config.token_ids("bos_token_id", vocab_size)?.as_slice() {
                [] => None,
                [one] => Some(*one),
                _ => return Err(config.error("bos_token_id", "is a list of several ids; give one id or null")),
            },
            false => default_bos.filter(in_vocab),
        };

        Ok(ModelConfig {
            architecture,
            vocab_size,
            hidden_size,
            intermediate_size,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            rms_norm_eps: config.number("rms_norm_eps", 1e-12, 0.1)?.unwrap_or(1e-6) as f32,
            rope: rope::read(config)?,
            tie_word_embeddings: config.flag("tie_word_embeddings")?,
            qkv_bias: architecture == Architecture::Qwen2,
            qk_norm: architecture == Architecture::Qwen3,
            context_length: config.size("max_position_embeddings", 1, MAX_CONTEXT)?.unwrap_or(default_context),
            eos_token_ids,
            bos_token_id,
        })
    }

    /// Every tensor of the checkpoint with its shape, named as Hugging Face names them and in the order of transformers' modules.
    /// A projection is stored as `[outputs, inputs]`. `lm_head.weight` is there only if the head is not tied.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, wide) = (self.hidden_size, self.intermediate_size);
        let q = self.num_heads.saturating_mul(self.head_dim);
        let kv = self.num_kv_heads.saturating_mul(self.head_dim);
        let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, hidden])];
        for layer in 0..self.num_layers {
            let mut add = |name: &str, shape: Vec<usize>| tensors.push((format!("model.layers.{layer}.{name}"), shape));
            for (name, width) in [("q", q), ("k", kv), ("v", kv)] {
                add(&format!("self_attn.{name}_proj.weight"), vec![width, hidden]);
                if self.qkv_bias {
                    add(&format!("self_attn.{name}_proj.bias"), vec![width]);
                }
            }
            add("self_attn.o_proj.weight", vec![hidden, q]);
            if self.qk_norm {
                add("self_attn.q_norm.weight", vec![self.head_dim]);
                add("self_attn.k_norm.weight", vec![self.head_dim]);
            }
            add("mlp.gate_proj.weight", vec![wide, hidden]);
            add("mlp.up_proj.weight", vec![wide, hidden]);
            add("mlp.down_proj.weight", vec![hidden, wide]);
            add("input_layernorm.weight", vec![hidden]);
            add("post_attention_layernorm.weight", vec![hidden]);
        }
        tensors.push(("model.norm.weight".to_owned(), vec![hidden]));
        if !self.tie_word_embeddings {
            tensors.push(("lm_head.weight".to_owned(), vec![self.vocab_size, hidden]));
        }
        tensors
    }

    /// Numbers in all tensors together; a tied head counts once.
    pub fn num_parameters(&self) -> usize {
        let elements = |shape: &[usize]| shape.iter().fold(1, |product: usize, &n| product.saturating_mul(n));
        self.tensors().iter().fold(0, |sum, (_, shape)| sum.saturating_add(elements(shape)))
    }
}

/// `model_type` and `architectures` say the same thing twice; either may be missing, but what is there must be supported and agree.
fn read_architecture(config: &Fields<'_>) -> Result<Architecture, ModelError> {
    let supported = || {
        let names = Architecture::ALL.map(|a| format!("{:?} ({})", a.model_type(), a.class_name()));
        format!("supported are {}", names.join(", "))
    };
    let by_type = match config.text("model_type")? {
        None => None,
        Some(name) => match Architecture::ALL.into_iter().find(|a| a.model_type() == name) {
            Some(architecture) => Some(architecture),
            None => return Err(config.error("model_type", format!("is {}; {}", quote(name), supported()))),
        },
    };
    let by_class = match config.texts("architectures")?.as_deref() {
        None | Some([]) => None,
        Some(names) => match Architecture::ALL.into_iter().find(|a| names == [a.class_name()]) {
            Some(architecture) => Some(architecture),
            None => return Err(config.error("architectures", format!("is {}; {}", show(&Value::from(names)), supported()))),
        },
    };
    match (by_type, by_class) {
        (Some(a), Some(b)) if a != b => {
            Err(config.error("architectures", format!("is {:?}, but model_type is {:?}; make them agree", b.class_name(), a.model_type())))
        }
        (Some(architecture), _) | (None, Some(architecture)) => Ok(architecture),
        (None, None) => Err(config.error("model_type", format!("is missing; {}", supported()))),
    }
}

/// Fields that would change what the model computes in a way that the forward pass does not do.
fn refuse_unsupported(config: &Fields<'_>, architecture: Architecture) -> Result<(), ModelError> {
    for key in ["quantization_config", "compression_config"] {
        if config.get(key).is_some() {
            return Err(config.error(key, "is set; quantised checkpoints are not supported, so give one in bf16, f16 or f32"));
        }
    }
    match config.text("hidden_act")? {
        None | Some("silu") => {}
        Some(other) => return Err(config.error("hidden_act", format!("is {}; only \"silu\" is supported", quote(other)))),
    }
    // Qwen2 has a bias on q, k and v always, and no such key; in the other two it would mean q, k, v and o.
    if architecture != Architecture::Qwen2 && config.flag("attention_bias")? {
        return Err(
            config.error("attention_bias", "is true; a bias on the output projection is not supported, so this model cannot be served")
        );
    }
    if architecture == Architecture::Llama && config.flag("mlp_bias")? {
        return Err(config.error("mlp_bias", "is true; a bias in the feed-forward layers is not supported, so this model cannot be served"));
    }
    if architecture != Architecture::Llama && config.flag("use_sliding_window")? {
        return Err(
            config.error("use_sliding_window", "is true; only full attention is supported (if no layer uses the window, set it to false)")
        );
    }
    Ok(())
}

fn read_kv_heads(config: &Fields<'_>, architecture: Architecture, num_heads: usize) -> Result<usize, ModelError> {
    let key = "num_key_value_heads";
    // transformers would assume 32 for a Qwen model that does not say; a null means "as many as query heads" everywhere.
    if architecture != Architecture::Llama && !config.contains(key) {
        return Err(config.error(key, "is missing; give the number of key and value heads"));
    }
    let num_kv_heads = config.size(key, 1, MAX_HEADS)?.unwrap_or(num_heads);
    if !num_heads.is_multiple_of(num_kv_heads) {
        return Err(
            config.error(key, format!("is {num_kv_heads}, which does not divide num_attention_heads {num_heads}; correct one of them"))
        );
    }
    Ok(num_kv_heads)
}

fn read_head_dim(config: &Fields<'_>, architecture: Architecture, hidden_size: usize, num_heads: usize) -> Result<usize, ModelError> {
    let head_dim = match config.size("head_dim", 1, MAX_HEAD_DIM)? {
        Some(head_dim) => head_dim,
        None if architecture == Architecture::Qwen3 => 128,
        None if !hidden_size.is_multiple_of(num_heads) => {
            let problem =
                format!("is missing, and hidden_size {hidden_size} is no multiple of num_attention_heads {num_heads}; give head_dim");
            return Err(config.error("head_dim", problem));
        }
        None => hidden_size / num_heads,
    };
    if !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
        return Err(
            config.error("head_dim", format!("is {head_dim}; it must be even (rotary embedding turns pairs) and at most {MAX_HEAD_DIM}"))
        );
    }
    // q_proj is [num_heads * head_dim, hidden_size].
    if num_heads * head_dim > MAX_WIDTH {
        return Err(config.error(
            "head_dim",
            format!("is {head_dim}, which with {num_heads} heads is more than {MAX_WIDTH} numbers a token; correct it"),
        ));
    }
    Ok(head_dim)
}
