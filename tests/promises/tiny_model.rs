//! Tiny random Hugging Face folders for tests, written by code of their own: the header, the bytes and the random numbers here share nothing
//! with the reader under test.

use std::path::Path;

use adaroll::model::{Architecture, Dtype, ModelConfig};
use half::{bf16, f16};
use serde_json::{Map, Value, json};

/// What a tiny model is like. `TinyModel::default()` is an untied Llama in bf16 in one file.
#[derive(Clone, Debug)]
pub struct TinyModel {
    pub architecture: Architecture,
    pub tied: bool,
    /// Bf16, F16 or F32.
    pub dtype: Dtype,
    /// 1 writes model.safetensors; more write that many shards and an index.
    pub shards: usize,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub context_length: usize,
    /// Another seed gives other weights.
    pub seed: u64,
}

impl Default for TinyModel {
    fn default() -> Self {
        TinyModel {
            architecture: Architecture::Llama,
            tied: false,
            dtype: Dtype::Bf16,
            shards: 1,
            vocab_size: 64,
            hidden_size: 32,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            context_length: 128,
            seed: 1,
        }
    }
}

/// Writes config.json and the weights into `dir`, which must be there, and returns the configuration as the product reads it.
pub fn tiny_model(dir: &Path, model: &TinyModel) -> ModelConfig {
    std::fs::write(dir.join("config.json"), model.config_json().to_string()).unwrap();
    let config = ModelConfig::from_folder(dir).unwrap();
    let tensors = model.random_tensors(&config);
    if model.shards == 1 {
        write_safetensors(&dir.join("model.safetensors"), &tensors);
        return config;
    }
    let mut weight_map = Map::new();
    for (i, part) in tensors.chunks(tensors.len().div_ceil(model.shards)).enumerate() {
        let shard = format!("model-{:05}-of-{:05}.safetensors", i + 1, model.shards);
        write_safetensors(&dir.join(&shard), part);
        weight_map.extend(part.iter().map(|tensor| (tensor.name.clone(), json!(shard))));
    }
    let index = json!({"metadata": {"total_size": 0}, "weight_map": weight_map});
    std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    config
}

impl TinyModel {
    /// The text of config.json as an object.
    pub fn config_json(&self) -> Value {
        json!({
            "architectures": [self.architecture.class_name()],
            "model_type": self.architecture.model_type(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.hidden_size + self.hidden_size / 2,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.context_length,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
        })
    }

    /// Norms near 1, everything else of a size that keeps activations near 1.
    fn random_tensors(&self, config: &ModelConfig) -> Vec<RawTensor> {
        let mut random = SplitMix(self.seed);
        let tensor = |(name, shape): (String, Vec<usize>)| {
            let (mean, spread) = match name.as_str() {
                n if n.ends_with("norm.weight") => (1.0, 0.3),
                n if n.ends_with("bias") => (0.0, 0.5),
                n if n.contains("embed_tokens") => (0.0, 0.7),
                _ => (0.0, 1.3 / (*shape.last().unwrap() as f32).sqrt()),
            };
            let count: usize = shape.iter().product();
            let numbers: Vec<f32> = (0..count).map(|_| mean + spread * random.unit_variance()).collect();
            RawTensor::new(name, self.dtype, shape, &numbers)
        };
        config.tensors().into_iter().map(tensor).collect()
    }
}

/// A tensor to be written, or to be lied about.
#[derive(Clone, Debug)]
pub struct RawTensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl RawTensor {
    /// Rounds `numbers` to `dtype` (Bf16, F16 or F32).
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: Vec<usize>, numbers: &[f32]) -> Self {
        let bytes = match dtype {
            Dtype::Bf16 => numbers.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
            Dtype::F16 => numbers.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            Dtype::F32 => numbers.iter().flat_map(|&x| x.to_le_bytes()).collect(),
            other => panic!("tiny models are not stored as {other}"),
        };
        RawTensor { name: name.into(), dtype: dtype.name().to_owned(), shape, bytes }
    }
}

/// Writes a safetensors file, tensors in the order given.
pub fn write_safetensors(path: &Path, tensors: &[RawTensor]) {
    let mut header = Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
    let mut data = Vec::new();
    for tensor in tensors {
        let begin = data.len();
        data.extend_from_slice(&tensor.bytes);
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, data.len()]});
        header.insert(tensor.name.clone(), entry);
    }
    write_with_header(path, Value::Object(header).to_string().as_bytes(), &data);
}

/// Writes the header's true length, then `header` and `data` as they are.
pub fn write_with_header(path: &Path, header: &[u8], data: &[u8]) {
    let bytes = [&(header.len() as u64).to_le_bytes(), header, data].concat();
    std::fs::write(path, bytes).unwrap();
}

/// Header and data of a file that [`write_safetensors`] wrote.
pub fn split_safetensors(path: &Path) -> (Map<String, Value>, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let data_start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..data_start]).unwrap(), bytes[data_start..].to_vec())
}

/// Reads the tensors back, to be changed and written again.
pub fn read_tensors(path: &Path) -> Vec<RawTensor> {
    let (header, data) = split_safetensors(path);
    let tensor = |(name, entry): (&String, &Value)| {
        let at = |i: usize| entry["data_offsets"][i].as_u64().unwrap() as usize;
        RawTensor {
            name: name.clone(),
            dtype: entry["dtype"].as_str().unwrap().to_owned(),
            shape: entry["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect(),
            bytes: data[at(0)..at(1)].to_vec(),
        }
    };
    header.iter().filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

/// The SplitMix64 generator (Steele, Lea and Flood 2014).
struct SplitMix(u64);

impl SplitMix {
    /// Uniform with mean 0 and variance 1.
    fn unit_variance(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32;
        (unit - 0.5) * 12f32.sqrt()
    }
}
