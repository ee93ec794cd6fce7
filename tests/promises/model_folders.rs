//! Promise: a Hugging Face folder of a supported model is read as transformers reads it: every spelling, every default, every number.

use std::collections::BTreeSet;
use std::path::Path;

use adaroll::commands::inspect::{Stored, inspect};
use adaroll::model::{Architecture, Checkpoint, Dtype, Llama3Scaling, ModelConfig, RopeConfig, SafetensorsFile, TensorSource, TensorView};
use half::{bf16, f16};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::tiny_model::{RawTensor, TinyModel, read_tensors, tiny_model, write_safetensors};

fn parse(config: &Value) -> ModelConfig {
    ModelConfig::from_json(&config.to_string()).unwrap()
}

/// The tiny Llama's config.json with other fields.
fn llama_with(fields: Value) -> ModelConfig {
    let mut config = TinyModel::default().config_json();
    for (key, value) in fields.as_object().unwrap() {
        match value == "(missing)" {
            true => config.as_object_mut().unwrap().remove(key),
            false => config.as_object_mut().unwrap().insert(key.clone(), value.clone()),
        };
    }
    parse(&config)
}

#[test]
fn golden_folders_hold_exactly_the_tensors_of_their_configuration() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden");
    let mut seen = BTreeSet::new();
    for entry in std::fs::read_dir(&golden).expect("tests/data/golden holds the golden folders") {
        let dir = entry.unwrap().path();
        if !dir.join("config.json").exists() {
            continue;
        }
        let config = ModelConfig::from_folder(&dir).unwrap();
        let checkpoint = Checkpoint::open(&dir, &config).unwrap();
        checkpoint.verify_finite().unwrap();
        let elements: usize = checkpoint.tensors().map(|tensor| tensor.unwrap().num_elements()).sum();
        assert_eq!(elements, config.num_parameters(), "{}", dir.display());
        let expected = SafetensorsFile::open(&dir.join("expected.safetensors")).unwrap();
        assert_eq!(expected.tensor("logits").unwrap().shape, [2, 64, config.vocab_size]);
        let ids = expected.tensor("input_ids").unwrap().to_i64().unwrap();
        assert!(ids.len() == 128 && ids.iter().all(|&id| (0..config.vocab_size as i64).contains(&id)));
        seen.insert(config.architecture.model_type());
    }
    assert_eq!(seen, BTreeSet::from(["llama", "qwen2", "qwen3"]), "every architecture has a golden folder");
}

/// Published configurations, and the parameter counts that their model cards and files give.
#[test]
fn published_configurations_have_their_published_size() {
    let llama_3_2_1b = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false, "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
        "max_position_embeddings": 131072, "mlp_bias": false, "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": true, "vocab_size": 128256,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    });
    let config = parse(&llama_3_2_1b);
    assert_eq!(config.num_parameters(), 1_235_814_400);
    assert_eq!(config.eos_token_ids, [128001, 128008, 128009]);
    assert_eq!((config.bos_token_id, config.context_length, config.head_dim), (Some(128000), 131072, 64));
    let scaling = Llama3Scaling { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192 };
    assert_eq!(config.rope, RopeConfig { theta: 500000.0, scaling: Some(scaling) });

    let smollm2_135m = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576,
        "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "num_attention_heads": 9, "num_hidden_layers": 30,
        "num_key_value_heads": 3, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
        "tie_word_embeddings": true, "vocab_size": 49152,
    });
    assert_eq!(parse(&smollm2_135m).num_parameters(), 134_515_008);

    let qwen2_5_0_5b = json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu",
        "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21, "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
        "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936,
    });
    let config = parse(&qwen2_5_0_5b);
    assert_eq!(config.num_parameters(), 494_032_768);
    assert!(config.qkv_bias && !config.qk_norm && config.rms_norm_eps == 1e-6);

    let qwen3_0_6b = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false, "bos_token_id": 151643, "eos_token_id": 151645,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
        "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936,
    });
    let config = parse(&qwen3_0_6b);
    assert_eq!(config.num_parameters(), 596_049_920);
    assert!(config.qk_norm && !config.qkv_bias && config.head_dim == 128);
}

#[test]
fn every_spelling_of_llama3_scaling_means_the_same() {
    let scaling = |key: &str| {
        let mut scaling = json!({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
        scaling[key] = json!("llama3");
        scaling
    };
    let mut parameters = scaling("rope_type");
    parameters["rope_theta"] = json!(500000);
    let spellings = [
        json!({"rope_theta": 500000.0, "rope_scaling": scaling("rope_type")}),
        json!({"rope_theta": 500000, "rope_scaling": scaling("type")}),
        json!({"rope_theta": "(missing)", "rope_parameters": parameters.clone()}),
        json!({"rope_theta": "(missing)", "rope_scaling": parameters.clone()}),
        json!({"rope_theta": 5e5, "rope_scaling": scaling("type"), "rope_parameters": parameters}),
    ];
    let expected = Llama3Scaling { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 64 };
    for spelling in spellings {
        let config = llama_with(spelling);
        assert_eq!(config.rope, RopeConfig { theta: 500000.0, scaling: Some(expected.clone()) });
        assert_eq!(config, llama_with(json!({"rope_theta": 500000.0, "rope_scaling": scaling("rope_type")})));
    }
    // The twin: a configuration without scaling differs.
    for plain in [json!(null), json!({}), json!({"rope_type": "default"}), json!({"type": "default"})] {
        assert_eq!(llama_with(json!({"rope_theta": 500000, "rope_scaling": plain})).rope, RopeConfig { theta: 500000.0, scaling: None });
    }
}

#[test]
fn missing_fields_mean_what_they_mean_to_transformers() {
    let gone = json!({
        "num_key_value_heads": "(missing)", "head_dim": "(missing)", "rms_norm_eps": "(missing)", "rope_theta": "(missing)", "hidden_act": "(missing)",
        "tie_word_embeddings": "(missing)", "max_position_embeddings": "(missing)", "bos_token_id": "(missing)", "eos_token_id": "(missing)",
        "architectures": "(missing)",
    });
    let config = llama_with(gone.clone());
    assert_eq!((config.num_kv_heads, config.head_dim, config.rms_norm_eps), (4, 8, 1e-6));
    assert_eq!((config.rope.theta, config.tie_word_embeddings, config.context_length), (10000.0, false, 2048));
    assert_eq!((config.bos_token_id, config.eos_token_ids), (Some(1), vec![2]));

    let mut qwen3 = gone;
    qwen3["model_type"] = json!("qwen3");
    qwen3["num_key_value_heads"] = json!(null);
    let config = llama_with(qwen3);
    assert_eq!((config.architecture, config.num_kv_heads, config.head_dim), (Architecture::Qwen3, 4, 128));
    assert_eq!((config.context_length, config.bos_token_id, config.eos_token_ids), (32768, None, vec![]));

    // Null says "none" where a default would say otherwise.
    let config = llama_with(json!({"bos_token_id": null, "eos_token_id": null, "model_type": "(missing)"}));
    assert_eq!((config.bos_token_id, config.eos_token_ids), (None, vec![]));
}

#[test]
fn checkpoints_of_every_kind_open_and_give_their_numbers_back() {
    for architecture in [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3] {
        for (tied, dtype, shards) in [(false, Dtype::Bf16, 1), (true, Dtype::F16, 3), (false, Dtype::F32, 2)] {
            let dir = tempfile::tempdir().unwrap();
            let config = tiny_model(dir.path(), &TinyModel { architecture, tied, dtype, shards, ..TinyModel::default() });
            let checkpoint = Checkpoint::open(dir.path(), &config).unwrap();
            checkpoint.verify_finite().unwrap();
            assert_eq!(checkpoint.files().len(), shards);
            let written: Vec<RawTensor> = checkpoint.files().iter().flat_map(|file| read_tensors(file.path())).collect();
            assert_eq!(written.len(), config.tensors().len());
            assert_eq!(written.iter().any(|tensor| tensor.name == "lm_head.weight"), !tied);
            for tensor in &written {
                let view = checkpoint.tensor(&tensor.name).unwrap();
                assert_eq!((view.dtype, &view.shape, view.bytes), (dtype, &tensor.shape, tensor.bytes.as_slice()));
                assert_eq!(view.bf16_bits().is_some(), dtype == Dtype::Bf16);
            }
            assert!(checkpoint.tensor("model.layers.9.mlp.up_proj.weight").unwrap_err().to_string().contains("not part of this model"));
        }
    }
}

#[test]
fn harmless_extras_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let config = tiny_model(dir.path(), &TinyModel { tied: true, ..TinyModel::default() });
    let path = dir.path().join("model.safetensors");
    let mut tensors = read_tensors(&path);
    tensors.push(RawTensor::new("model.layers.0.self_attn.rotary_emb.inv_freq", Dtype::F32, vec![4], &[1.0, 0.1, 0.01, 0.001]));
    let embedding = tensors.iter().find(|tensor| tensor.name == "model.embed_tokens.weight").unwrap();
    tensors.push(RawTensor { name: "lm_head.weight".into(), ..embedding.clone() });
    write_safetensors(&path, &tensors);
    let checkpoint = Checkpoint::open(dir.path(), &config).unwrap();
    assert_eq!(checkpoint.tensors().count(), config.tensors().len());
    assert!(checkpoint.tensor("lm_head.weight").is_err(), "a tied model has no head of its own");
}

#[test]
fn files_of_the_safetensors_crate_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let (a, b, empty): (Vec<u8>, Vec<u8>, [u8; 0]) = ((0..24).collect(), (0..16).rev().collect(), []);
    let view = |dtype, shape: &[usize], bytes| safetensors::tensor::TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
    let tensors = [
        ("a", view(safetensors::Dtype::F32, &[3, 2], &a)),
        ("b", view(safetensors::Dtype::I64, &[2], &b)),
        ("none", view(safetensors::Dtype::F32, &[0, 5], &empty)),
        ("scalar", view(safetensors::Dtype::F64, &[], &b[..8])),
    ];
    safetensors::serialize_to_file(tensors, None, &path).unwrap();
    let file = SafetensorsFile::open(&path).unwrap();
    assert_eq!(file.tensors().count(), 4);
    assert_eq!(file.tensor("a").unwrap().bytes, a);
    let expected: Vec<i64> = b.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect();
    assert_eq!(file.tensor("b").unwrap().to_i64().unwrap(), expected);
    assert!(file.tensor("none").unwrap().to_f32().is_empty());
    let scalar = file.tensor("scalar").unwrap();
    assert_eq!((scalar.num_elements(), scalar.shape.len()), (1, 0));
    assert!(file.tensor("c").unwrap_err().to_string().contains("tensor `c` is not among the 4 tensors"));
}

/// A view that begins at an odd address, as tensors in a file may.
fn unaligned<R>(dtype: Dtype, bytes: &[u8], read: impl Fn(TensorView<'_>) -> R) -> R {
    let shifted = [&[0], bytes].concat();
    let view = TensorView { name: "x", dtype, shape: vec![bytes.len() / dtype.size()], bytes: &shifted[1..] };
    read(view)
}

#[test]
fn every_sixteen_bit_number_is_converted_exactly() {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let from_bf16 = unaligned(Dtype::Bf16, &bytes, |view| view.to_f32());
    assert!(bits.iter().zip(&from_bf16).all(|(&bits, &x)| same(x, bf16::from_bits(bits).to_f32())));
    let from_f16 = unaligned(Dtype::F16, &bytes, |view| view.to_f32());
    assert!(bits.iter().zip(&from_f16).all(|(&bits, &x)| same(x, f16::from_bits(bits).to_f32())));
    assert_eq!(unaligned(Dtype::Bf16, &bytes, |view| view.bf16_bits()).unwrap(), bits);
    assert_eq!(unaligned(Dtype::F16, &bytes, |view| view.bf16_bits()), None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The quick search for NaN and infinity finds what a plain one finds, also across its blocks.
    #[test]
    fn the_first_non_finite_number_is_found(
        len in 1usize..6000,
        bad in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX])), 0..4),
    ) {
        let mut numbers = vec![1.5f32; len];
        for (index, value) in &bad {
            numbers[index.index(len)] = *value;
        }
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::F64] {
            let bytes = match dtype {
                Dtype::F64 => numbers.iter().flat_map(|&x| f64::from(x).to_le_bytes()).collect(),
                _ => RawTensor::new("x", dtype, vec![len], &numbers).bytes,
            };
            let stored = unaligned(dtype, &bytes, |view| view.to_f32());
            let expected = stored.iter().position(|x| !x.is_finite());
            prop_assert_eq!(unaligned(dtype, &bytes, |view| view.first_non_finite()), expected);
            if let Some(index) = expected {
                prop_assert!(!unaligned(dtype, &bytes, |view| view.value(index)).unwrap().is_finite());
            }
            prop_assert_eq!(unaligned(dtype, &bytes, |view| view.value(len)), None);
        }
    }
}

#[test]
fn inspect_says_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let config = tiny_model(dir.path(), &TinyModel { shards: 2, ..TinyModel::default() });
    std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    let inspection = inspect(dir.path()).unwrap();
    let stored = Stored { tensors: 21, bytes: 2 * config.num_parameters() };
    assert_eq!(inspection.dtypes.into_iter().collect::<Vec<_>>(), [(Dtype::Bf16, stored)]);
    let inspection = inspect(dir.path()).unwrap();
    assert_eq!(inspection.files.len(), 2);
    let json = serde_json::to_value(&inspection).unwrap();
    assert_eq!(json["architecture"], "llama");
    assert_eq!(json["parameters"], config.num_parameters());
    assert_eq!((&json["tokenizer"], &json["tied"], &json["dtypes"]["BF16"]["tensors"]), (&json!(true), &json!(false), &json!(21)));
    assert_eq!(json["stop_token_ids"], json!([2]));
    let text = inspection.to_string();
    for part in ["architecture    llama", "heads           4 of 8, 2 for keys", "theta 10000", "BF16", "model-00002-of-00002.safetensors"] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}
