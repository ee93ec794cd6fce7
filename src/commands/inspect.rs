//! `adaroll model inspect`: what a model folder holds, after the same checks that serving makes (headers only; no weight is read).

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::model::{Architecture, Checkpoint, Dtype, ModelConfig, ModelError, RopeConfig};

/// What a model folder holds.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Inspection {
    /// The family.
    pub architecture: Architecture,
    /// Numbers in all tensors, a tied head counted once.
    pub parameters: usize,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers per head.
    pub head_dim: usize,
    /// Longest sequence in tokens.
    pub context_length: usize,
    /// The head is the embedding.
    pub tied: bool,
    /// Bias on q, k and v.
    pub qkv_bias: bool,
    /// RMS norm on each head of q and k.
    pub qk_norm: bool,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// Tensors and bytes by storage type.
    pub dtypes: BTreeMap<Dtype, Stored>,
    /// The safetensors files, in order of name.
    pub files: Vec<WeightFile>,
    /// Whether the folder has a tokenizer.json.
    pub tokenizer: bool,
    /// Stop tokens that config.json names.
    pub stop_token_ids: Vec<u32>,
}

/// How much is stored in one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stored {
    /// Tensors.
    pub tensors: usize,
    /// Their bytes together.
    pub bytes: usize,
}

/// One safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct WeightFile {
    /// Its name in the folder.
    pub name: String,
    /// Its size.
    pub bytes: usize,
}

/// Reads and checks a model folder.
pub fn inspect(dir: &Path) -> Result<Inspection, ModelError> {
    let config = ModelConfig::from_folder(dir)?;
    let checkpoint = Checkpoint::open(dir, &config)?;
    let mut dtypes: BTreeMap<Dtype, Stored> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let tensor = tensor?;
        let stored = dtypes.entry(tensor.dtype).or_default();
        stored.tensors += 1;
        stored.bytes += tensor.bytes.len();
    }
    let files = checkpoint.files().iter().map(|file| WeightFile {
        name: file.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
        bytes: file.num_bytes(),
    });
    Ok(Inspection {
        architecture: config.architecture,
        parameters: config.num_parameters(),
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        intermediate_size: config.intermediate_size,
        layers: config.num_layers,
        heads: config.num_heads,
        kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        context_length: config.context_length,
        tied: config.tie_word_embeddings,
        qkv_bias: config.qkv_bias,
        qk_norm: config.qk_norm,
        rope: config.rope,
        dtypes,
        files: files.collect(),
        tokenizer: dir.join("tokenizer.json").is_file(),
        stop_token_ids: config.eos_token_ids,
    })
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let yes = |flag: bool| if flag { "yes" } else { "no" };
        writeln!(f, "architecture    {}", self.architecture.model_type())?;
        writeln!(f, "parameters      {}", self.parameters)?;
        writeln!(f, "layers          {}", self.layers)?;
        writeln!(f, "width           {} (feed-forward {})", self.hidden_size, self.intermediate_size)?;
        writeln!(f, "heads           {} of {}, {} for keys and values", self.heads, self.head_dim, self.kv_heads)?;
        writeln!(f, "qkv bias        {}", yes(self.qkv_bias))?;
        writeln!(f, "qk norm         {}", yes(self.qk_norm))?;
        match &self.rope.scaling {
            None => writeln!(f, "rope            theta {}", self.rope.theta)?,
            Some(s) => writeln!(
                f,
                "rope            theta {}, llama3 scaling: factor {}, low {}, high {}, original context {}",
                self.rope.theta, s.factor, s.low_freq_factor, s.high_freq_factor, s.original_context
            )?,
        }
        writeln!(f, "vocabulary      {}, {}", self.vocab_size, if self.tied { "head tied to the embedding" } else { "head of its own" })?;
        writeln!(f, "context         {} tokens", self.context_length)?;
        writeln!(f, "stop tokens     {:?}", self.stop_token_ids)?;
        writeln!(f, "tokenizer       {}", yes(self.tokenizer))?;
        for (dtype, stored) in &self.dtypes {
            writeln!(f, "{:<15} {} tensors, {} bytes", dtype.name(), stored.tensors, stored.bytes)?;
        }
        for (i, file) in self.files.iter().enumerate() {
            let label = if i == 0 { "files" } else { "" };
            write!(f, "{label:<15} {}, {} bytes", file.name, file.bytes)?;
            if i + 1 < self.files.len() {
                writeln!(f)?;
            }
        }
        Ok(())
    }
}
