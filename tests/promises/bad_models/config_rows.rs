//! Bad folders and bad config.json files.

use std::path::Path;

use adaroll::model::Architecture;
use serde_json::{Value, json};

use super::Row;
use crate::tiny_model::TinyModel;

/// A row that does `spoil` to the folder of a tiny Llama.
fn folder(kind: &'static str, spoil: impl Fn(&Path) + 'static, says: &'static [&'static str]) -> Row {
    Row { kind, model: TinyModel::default(), spoil: Box::new(spoil), says }
}

/// A row that replaces the whole config.json.
fn text(kind: &'static str, bytes: impl Into<Vec<u8>>, says: &'static [&'static str]) -> Row {
    let bytes = bytes.into();
    folder(kind, move |dir| std::fs::write(dir.join("config.json"), &bytes).unwrap(), says)
}

/// A row that sets fields of config.json; the string "(missing)" removes one.
fn fields_of(architecture: Architecture, kind: &'static str, fields: Value, says: &'static [&'static str]) -> Row {
    let model = TinyModel { architecture, ..TinyModel::default() };
    let config = model.config_json();
    let spoil = move |dir: &Path| {
        let mut config = config.clone();
        for (key, value) in fields.as_object().unwrap() {
            let object = config.as_object_mut().unwrap();
            match value == "(missing)" {
                true => object.remove(key),
                false => object.insert(key.clone(), value.clone()),
            };
        }
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    };
    Row { kind, model, spoil: Box::new(spoil), says }
}

fn llama(kind: &'static str, fields: Value, says: &'static [&'static str]) -> Row {
    fields_of(Architecture::Llama, kind, fields, says)
}

fn qwen2(kind: &'static str, fields: Value, says: &'static [&'static str]) -> Row {
    fields_of(Architecture::Qwen2, kind, fields, says)
}

fn qwen3(kind: &'static str, fields: Value, says: &'static [&'static str]) -> Row {
    fields_of(Architecture::Qwen3, kind, fields, says)
}

/// A scaling of kind `llama3` with one field changed.
fn llama3(field: &str, value: Value) -> Value {
    let mut scaling = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    });
    scaling[field] = value;
    scaling
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        // The folder and the file.
        folder("no folder", |dir| std::fs::remove_dir_all(dir).unwrap(), &["model: there is no such folder", "give the folder"]),
        folder(
            "a file for a folder",
            |dir| {
                std::fs::remove_dir_all(dir).unwrap();
                std::fs::write(dir, "x").unwrap();
            },
            &["model: is a file", "give the folder that holds config.json"],
        ),
        folder(
            "no config.json",
            |dir| std::fs::remove_file(dir.join("config.json")).unwrap(),
            &["config.json: there is no such file", "give the folder of a Hugging Face checkpoint"],
        ),
        folder(
            "config.json is a folder",
            |dir| {
                std::fs::remove_file(dir.join("config.json")).unwrap();
                std::fs::create_dir(dir.join("config.json")).unwrap();
            },
            &["config.json: is a directory", "give the folder"],
        ),
        text("empty config.json", "", &["config.json: is not valid JSON", "EOF", "download or export it again"]),
        text("config.json cut short", r#"{"model_type": "llama", "#, &["config.json: is not valid JSON", "column", "again"]),
        text("config.json is a list", "[1, 2]", &["config.json: holds [1,2]", "a JSON object is needed"]),
        text("config.json is not UTF-8", b"{\"a\": \"\xff\"}".as_slice(), &["config.json: is not UTF-8 text (byte 7)", "again"]),
        text("config.json of 2 MiB", " ".repeat(2 << 20), &["config.json: is larger than 1048576 bytes", "check that it is the right one"]),
        text(
            "config.json nested 100000 deep",
            format!("{{\"a\": {}", "[".repeat(100_000)),
            &["config.json: is not valid JSON", "recursion limit"],
        ),
        text("NaN in config.json", r#"{"model_type": "llama", "rope_theta": NaN}"#, &["config.json: is not valid JSON", "column"]),
        // The architecture.
        llama(
            "unknown model type",
            json!({"model_type": "mamba", "architectures": "(missing)"}),
            &["field `model_type` is \"mamba\"", "supported are \"llama\""],
        ),
        qwen3(
            "mixture of experts",
            json!({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}),
            &["`model_type` is \"qwen3_moe\"", "\"qwen3\" (Qwen3ForCausalLM)"],
        ),
        llama(
            "classifier",
            json!({"architectures": ["LlamaForSequenceClassification"]}),
            &["`architectures`", "LlamaForSequenceClassification", "supported are"],
        ),
        llama(
            "two architectures",
            json!({"architectures": ["LlamaForCausalLM", "Qwen2ForCausalLM"]}),
            &["`architectures`", "supported are"],
        ),
        llama(
            "contradicting architecture",
            json!({"architectures": ["Qwen2ForCausalLM"]}),
            &["`architectures` is \"Qwen2ForCausalLM\"", "make them agree"],
        ),
        llama("no architecture", json!({"model_type": "(missing)", "architectures": null}), &["`model_type` is missing", "supported are"]),
        llama("model type is a number", json!({"model_type": 7}), &["`model_type` is 7", "must be a string"]),
        llama("architectures hold numbers", json!({"architectures": [7]}), &["`architectures` is [7]", "must be a list of strings"]),
        // Sizes.
        llama("no hidden_size", json!({"hidden_size": "(missing)"}), &["`hidden_size` is missing", "give a whole number from 1 to"]),
        llama("no vocab_size", json!({"vocab_size": null}), &["`vocab_size` is missing", "give a whole number"]),
        llama("hidden_size is a string", json!({"hidden_size": "32"}), &["`hidden_size` is \"32\"", "must be a whole number"]),
        llama("hidden_size 0", json!({"hidden_size": 0}), &["`hidden_size` is 0", "from 1 to"]),
        llama("negative layers", json!({"num_hidden_layers": -2}), &["`num_hidden_layers` is -2", "from 1 to"]),
        llama("fractional heads", json!({"num_attention_heads": 4.5}), &["`num_attention_heads` is 4.5", "whole number"]),
        llama("a list of widths", json!({"intermediate_size": [96, 96]}), &["`intermediate_size` is [96,96]", "whole number"]),
        llama("huge layers", json!({"num_hidden_layers": u64::MAX}), &["`num_hidden_layers` is 18446744073709551615", "to 1024"]),
        llama("huge vocabulary", json!({"vocab_size": 1u64 << 62}), &["`vocab_size` is 4611686018427387904", "from 1 to"]),
        text(
            "a number beyond 64 bits",
            r#"{"model_type": "llama", "vocab_size": 99999999999999999999999}"#,
            &["`vocab_size` is 1e+23", "whole number from 1 to"],
        ),
        llama("context 0", json!({"max_position_embeddings": 0}), &["`max_position_embeddings` is 0", "from 1 to"]),
        llama(
            "kv heads that do not divide",
            json!({"num_key_value_heads": 3}),
            &["`num_key_value_heads` is 3", "does not divide num_attention_heads 4"],
        ),
        llama("more kv heads than heads", json!({"num_key_value_heads": 8}), &["`num_key_value_heads` is 8", "does not divide"]),
        qwen3("no kv heads in Qwen", json!({"num_key_value_heads": "(missing)"}), &["`num_key_value_heads` is missing", "give the number"]),
        llama("odd head_dim", json!({"head_dim": 7}), &["`head_dim` is 7", "must be even"]),
        llama(
            "head_dim that cannot be guessed",
            json!({"head_dim": null, "hidden_size": 30}),
            &["`head_dim` is missing", "hidden_size 30", "give head_dim"],
        ),
        llama(
            "heads too wide together",
            json!({"num_attention_heads": 4096, "num_key_value_heads": 1, "head_dim": 4096}),
            &["`head_dim` is 4096", "correct it"],
        ),
        llama("epsilon 0", json!({"rms_norm_eps": 0}), &["`rms_norm_eps` is 0", "must be a number from"]),
        llama("epsilon is a string", json!({"rms_norm_eps": "1e-5"}), &["`rms_norm_eps` is \"1e-5\"", "must be a number"]),
        // Rope.
        llama(
            "rope yarn",
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
            &["`rope_scaling.rope_type` is \"yarn\"", "only \"default\" and \"llama3\""],
        ),
        llama(
            "rope dynamic, old key",
            json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
            &["`rope_scaling.type` is \"dynamic\"", "supported"],
        ),
        llama(
            "rope linear",
            json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
            &["`rope_parameters.rope_type` is \"linear\"", "supported"],
        ),
        llama(
            "rope longrope",
            json!({"rope_scaling": {"rope_type": "longrope"}}),
            &["`rope_scaling.rope_type` is \"longrope\"", "supported"],
        ),
        qwen2(
            "rope mrope behind default",
            json!({"rope_scaling": {"rope_type": "default", "type": "mrope"}}),
            &["`rope_scaling.type` is \"mrope\"", "supported"],
        ),
        llama("rope kind is a number", json!({"rope_scaling": {"rope_type": 3}}), &["`rope_scaling.rope_type` is 3", "must be a string"]),
        llama(
            "two rope kinds",
            json!({"rope_scaling": {"rope_type": "default", "type": "llama3"}}),
            &["`rope_scaling.type`", "contradicts", "remove the wrong one"],
        ),
        llama(
            "rope_scaling is a string",
            json!({"rope_scaling": "llama3"}),
            &["`rope_scaling` is \"llama3\"", "must be an object or null"],
        ),
        llama(
            "rope per kind of layer",
            json!({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}),
            &["`rope_parameters.full_attention` is an object", "one for all layers"],
        ),
        llama(
            "rope factor without a kind",
            json!({"rope_scaling": {"factor": 2.0}}),
            &["`rope_scaling.rope_type` is missing", "name the kind"],
        ),
        llama(
            "llama3 without factor",
            json!({"rope_scaling": llama3("factor", Value::Null)}),
            &["`rope_scaling.factor` is missing", "needs it"],
        ),
        llama(
            "llama3 that shrinks",
            json!({"rope_scaling": llama3("factor", json!(0.5))}),
            &["`rope_scaling.factor` is 0.5", "number from 1.0"],
        ),
        llama(
            "llama3 with crossed bands",
            json!({"rope_scaling": llama3("high_freq_factor", json!(1.0))}),
            &["`rope_scaling.high_freq_factor` is 1", "not above low_freq_factor 1"],
        ),
        llama(
            "llama3 without original context",
            json!({"rope_parameters": llama3("original_max_position_embeddings", Value::Null)}),
            &["`rope_parameters.original_max_position_embeddings` is missing", "give a whole number"],
        ),
        llama(
            "two spellings that differ",
            json!({"rope_scaling": llama3("factor", json!(32.0)), "rope_parameters": llama3("factor", json!(8.0))}),
            &["`rope_scaling` says something else", "remove the wrong one"],
        ),
        llama(
            "two thetas",
            json!({"rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
            &["`rope_parameters.rope_theta` is 500000", "10000", "remove the wrong one"],
        ),
        llama("theta 0", json!({"rope_theta": 0}), &["`rope_theta` is 0", "must be a number from 1.0"]),
        llama("partial rotation", json!({"partial_rotary_factor": 0.5}), &["`partial_rotary_factor` is 0.5", "whole head"]),
        llama(
            "partial rotation, new place",
            json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}),
            &["`rope_parameters.partial_rotary_factor` is 0.25", "whole head"],
        ),
        // What the forward pass does not do.
        llama(
            "Llama with attention bias",
            json!({"attention_bias": true}),
            &["`attention_bias` is true", "output projection", "cannot be served"],
        ),
        qwen3("Qwen3 with attention bias", json!({"attention_bias": true}), &["`attention_bias` is true", "cannot be served"]),
        llama("feed-forward bias", json!({"mlp_bias": true}), &["`mlp_bias` is true", "cannot be served"]),
        llama("bias is a string", json!({"mlp_bias": "yes"}), &["`mlp_bias` is \"yes\"", "must be true or false"]),
        llama("another activation", json!({"hidden_act": "gelu"}), &["`hidden_act` is \"gelu\"", "only \"silu\""]),
        llama(
            "quantised",
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}),
            &["`quantization_config` is set", "bf16, f16 or f32"],
        ),
        qwen2(
            "sliding window",
            json!({"use_sliding_window": true, "sliding_window": 64}),
            &["`use_sliding_window` is true", "only full attention"],
        ),
        qwen3(
            "sliding layers",
            json!({"layer_types": ["full_attention", "sliding_attention"]}),
            &["`layer_types` holds \"sliding_attention\"", "only \"full_attention\""],
        ),
        qwen3(
            "layer types for other layers",
            json!({"layer_types": ["full_attention"]}),
            &["`layer_types` has 1 entries for 2 layers", "make them agree"],
        ),
        llama("tie flag is a number", json!({"tie_word_embeddings": 1}), &["`tie_word_embeddings` is 1", "true or false"]),
        // Token ids.
        llama(
            "stop token past the vocabulary",
            json!({"eos_token_id": [2, 64]}),
            &["`eos_token_id` holds 64", "from 0 to 63", "vocab_size is 64"],
        ),
        llama("negative stop token", json!({"eos_token_id": -1}), &["`eos_token_id` holds -1", "or null"]),
        llama("stop token is text", json!({"eos_token_id": "</s>"}), &["`eos_token_id` holds \"</s>\"", "must be a token id"]),
        llama("two first tokens", json!({"bos_token_id": [1, 2]}), &["`bos_token_id` is a list", "give one id"]),
    ]
}
