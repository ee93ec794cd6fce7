//! Honest safetensors files with the wrong tensors in them, and indices that lie about their shards.

use std::path::Path;

use adaroll::model::{Architecture, Dtype};
use serde_json::{Value, json};

use super::Row;
use crate::tiny_model::{RawTensor, TinyModel, read_tensors, write_safetensors};

const FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const SHARD_2: &str = "model-00002-of-00002.safetensors";
const NORM: &str = "model.norm.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

fn row(kind: &'static str, model: TinyModel, spoil: impl Fn(&Path) + 'static, says: &'static [&'static str]) -> Row {
    Row { kind, model, spoil: Box::new(spoil), says }
}

/// Changes the tensors of model.safetensors and writes an honest file of them.
fn tensors_of(kind: &'static str, model: TinyModel, spoil: impl Fn(&mut Vec<RawTensor>) + 'static, says: &'static [&'static str]) -> Row {
    let spoil = move |dir: &Path| {
        let mut tensors = read_tensors(&dir.join(FILE));
        spoil(&mut tensors);
        write_safetensors(&dir.join(FILE), &tensors);
    };
    row(kind, model, spoil, says)
}

fn tensors(kind: &'static str, spoil: impl Fn(&mut Vec<RawTensor>) + 'static, says: &'static [&'static str]) -> Row {
    tensors_of(kind, TinyModel::default(), spoil, says)
}

/// Changes the folder of a tiny Llama in two shards.
fn shards(kind: &'static str, spoil: impl Fn(&Path) + 'static, says: &'static [&'static str]) -> Row {
    row(kind, TinyModel { shards: 2, ..TinyModel::default() }, spoil, says)
}

/// Changes the index of a tiny Llama in two shards.
fn index(kind: &'static str, spoil: impl Fn(&mut Value) + 'static, says: &'static [&'static str]) -> Row {
    let spoil = move |dir: &Path| {
        let mut index = serde_json::from_slice(&std::fs::read(dir.join(INDEX)).unwrap()).unwrap();
        spoil(&mut index);
        std::fs::write(dir.join(INDEX), index.to_string()).unwrap();
    };
    shards(kind, spoil, says)
}

fn find<'a>(tensors: &'a mut [RawTensor], name: &str) -> &'a mut RawTensor {
    tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
}

pub(super) fn rows() -> Vec<Row> {
    [contents(), sharded()].into_iter().flatten().collect()
}

/// Honest files with the wrong tensors in them.
fn contents() -> Vec<Row> {
    let tied = || TinyModel { tied: true, ..TinyModel::default() };
    let in_f16 = || TinyModel { dtype: Dtype::F16, ..TinyModel::default() };
    let in_f32 = || TinyModel { dtype: Dtype::F32, ..TinyModel::default() };
    let qwen2 = || TinyModel { architecture: Architecture::Qwen2, ..TinyModel::default() };
    let qwen3 = || TinyModel { architecture: Architecture::Qwen3, ..TinyModel::default() };
    vec![
        tensors(
            "no tensors",
            |tensors| tensors.clear(),
            &["tensor `model.embed_tokens.weight` is missing (21 of 21 tensors are)", "again"],
        ),
        tensors(
            "a tensor missing",
            |tensors| tensors.retain(|t| t.name != NORM),
            &["tensor `model.norm.weight` is missing (1 of 21", "config.json of this checkpoint"],
        ),
        tensors(
            "no head",
            |tensors| tensors.retain(|t| t.name != "lm_head.weight"),
            &["tensor `lm_head.weight` is missing", "set tie_word_embeddings to true"],
        ),
        tensors(
            "names without their prefix",
            |tensors| tensors.iter_mut().for_each(|t| t.name = t.name.replace("model.", "")),
            &["tensor `model.embed_tokens.weight` is missing", "`embed_tokens.weight` is there", "must be those of Hugging Face"],
        ),
        tensors_of(
            "Qwen2 without biases",
            qwen2(),
            |tensors| tensors.retain(|t| !t.name.ends_with("bias")),
            &["tensor `model.layers.0.self_attn.q_proj.bias` is missing (6 of 27"],
        ),
        tensors_of(
            "Qwen3 without norms of heads",
            qwen3(),
            |tensors| tensors.retain(|t| !t.name.ends_with("q_norm.weight")),
            &["tensor `model.layers.0.self_attn.q_norm.weight` is missing (2 of"],
        ),
        tensors(
            "an extra bias",
            |tensors| tensors.push(RawTensor::new("model.layers.1.self_attn.o_proj.bias", Dtype::Bf16, vec![32], &[0.0; 32])),
            &["model.safetensors: tensor `model.layers.1.self_attn.o_proj.bias` is not part of a llama model", "export it without"],
        ),
        tensors(
            "an extra layer",
            |tensors| tensors.push(RawTensor::new("model.layers.2.input_layernorm.weight", Dtype::Bf16, vec![32], &[1.0; 32])),
            &["tensor `model.layers.2.input_layernorm.weight` is not part", "config.json of this checkpoint"],
        ),
        tensors(
            "another width",
            |tensors| *find(tensors, NORM) = RawTensor::new(NORM, Dtype::Bf16, vec![31], &[1.0; 31]),
            &["tensor `model.norm.weight` has shape [31], but config.json asks for [32]"],
        ),
        tensors(
            "a transposed projection",
            |tensors| find(tensors, "model.layers.0.mlp.up_proj.weight").shape.reverse(),
            &["`model.layers.0.mlp.up_proj.weight` has shape [32, 48]", "asks for [48, 32]"],
        ),
        tensors(
            "a flattened embedding",
            |tensors| find(tensors, EMBEDDING).shape = vec![64 * 32],
            &["`model.embed_tokens.weight` has shape [2048]", "asks for [64, 32]"],
        ),
        tensors(
            "integers for weights",
            |tensors| *find(tensors, NORM) = RawTensor { dtype: "I32".into(), bytes: vec![0; 128], ..find(tensors, NORM).clone() },
            &["tensor `model.norm.weight` has dtype I32", "must be BF16, F16 or F32", "convert"],
        ),
        tensors(
            "NaN in bf16",
            |tensors| find(tensors, NORM).bytes[6..8].copy_from_slice(&[0xc0, 0x7f]),
            &["tensor `model.norm.weight` holds NaN at flat index 3", "must be finite"],
        ),
        tensors_of(
            "infinity in f16",
            in_f16(),
            |tensors| find(tensors, EMBEDDING).bytes[..2].copy_from_slice(&[0x00, 0x7c]),
            &["tensor `model.embed_tokens.weight` holds inf at flat index 0", "must be finite"],
        ),
        tensors_of(
            "-infinity in f32, last number",
            in_f32(),
            |tensors| {
                let bytes = &mut find(tensors, "lm_head.weight").bytes;
                let at = bytes.len() - 4;
                bytes[at..].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
            },
            &["tensor `lm_head.weight` holds -inf at flat index 2047", "must be finite"],
        ),
        tensors_of(
            "a head that is not the embedding",
            tied(),
            |tensors| {
                let mut head = RawTensor { name: "lm_head.weight".into(), ..find(tensors, EMBEDDING).clone() };
                head.bytes[100] ^= 1;
                tensors.push(head);
            },
            &["tensor `lm_head.weight` differs from model.embed_tokens.weight", "set it to false"],
        ),
        tensors_of(
            "a head of another size",
            tied(),
            |tensors| tensors.push(RawTensor::new("lm_head.weight", Dtype::Bf16, vec![1, 32], &[0.5; 32])),
            &["tensor `lm_head.weight` differs from model.embed_tokens.weight"],
        ),
    ]
}

/// Lies between an index and its shards.
fn sharded() -> Vec<Row> {
    vec![
        shards(
            "a missing shard",
            |dir| std::fs::remove_file(dir.join(SHARD_2)).unwrap(),
            &["model-00002-of-00002.safetensors: there is no such file", "download this shard too"],
        ),
        shards(
            "a shard that is a folder",
            |dir| {
                std::fs::remove_file(dir.join(SHARD_2)).unwrap();
                std::fs::create_dir(dir.join(SHARD_2)).unwrap();
            },
            &["model-00002-of-00002.safetensors: is a directory"],
        ),
        shards(
            "a shard cut short",
            |dir| {
                let bytes = std::fs::read(dir.join(SHARD_2)).unwrap();
                std::fs::write(dir.join(SHARD_2), &bytes[..bytes.len() - 1]).unwrap();
            },
            &["model-00002-of-00002.safetensors: is cut short", "again"],
        ),
        shards(
            "NaN in the second shard",
            |dir| {
                let mut tensors = read_tensors(&dir.join(SHARD_2));
                find(&mut tensors, NORM).bytes[..2].copy_from_slice(&[0xff, 0xff]);
                write_safetensors(&dir.join(SHARD_2), &tensors);
            },
            &["model-00002-of-00002.safetensors: tensor `model.norm.weight` holds NaN at flat index 0"],
        ),
        shards(
            "one tensor in two shards",
            |dir| {
                let first = dir.join("model-00001-of-00002.safetensors");
                let mut tensors = read_tensors(&first);
                tensors.push(find(&mut read_tensors(&dir.join(SHARD_2)), NORM).clone());
                write_safetensors(&first, &tensors);
            },
            &[
                "model-00001-of-00002.safetensors: tensor `model.norm.weight` is in this shard",
                "does not place it there",
                "download both again",
            ],
        ),
        shards(
            "index is not JSON",
            |dir| std::fs::write(dir.join(INDEX), "{").unwrap(),
            &["index.json: is not a safetensors index", "again"],
        ),
        shards("index is a list", |dir| std::fs::write(dir.join(INDEX), "[]").unwrap(), &["index.json: is not a safetensors index"]),
        shards(
            "one tensor twice in the index",
            |dir| std::fs::write(dir.join(INDEX), r#"{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}"#).unwrap(),
            &["index.json: is not a safetensors index", "tensor `a` stands there twice"],
        ),
        index("index without weight_map", |index| *index = json!({"metadata": {}}), &["index.json", "missing field `weight_map`", "again"]),
        index("empty weight_map", |index| index["weight_map"] = json!({}), &["`model.embed_tokens.weight` is missing (21 of 21"]),
        index(
            "shard is a number",
            |index| index["weight_map"][NORM] = json!(2),
            &["index.json", "tensor `model.norm.weight`: invalid type", "string"],
        ),
        index(
            "shard above the folder",
            |index| index["weight_map"][NORM] = json!("../other.safetensors"),
            &["tensor `model.norm.weight` is placed in \"../other.safetensors\"", "in the same folder"],
        ),
        index(
            "absolute shard",
            |index| index["weight_map"][NORM] = json!("/tmp/x.safetensors"),
            &["`model.norm.weight` is placed in \"/tmp/x.safetensors\"", "without any path"],
        ),
        index(
            "shard in a subfolder",
            |index| index["weight_map"][NORM] = json!("sub/x.safetensors"),
            &["is placed in \"sub/x.safetensors\"", "in the same folder"],
        ),
        index(
            "shard with a backslash",
            |index| index["weight_map"][NORM] = json!("..\\x.safetensors"),
            &["is placed in", "in the same folder"],
        ),
        index(
            "shard with a line break",
            |index| index["weight_map"][NORM] = json!("a\nb.safetensors"),
            &["is placed in", "in the same folder"],
        ),
        index(
            "shard name is empty",
            |index| index["weight_map"][NORM] = json!(""),
            &["`model.norm.weight` is placed in \"\"", "in the same folder"],
        ),
        index(
            "shard is another kind of file",
            |index| index["weight_map"][NORM] = json!("config.json"),
            &["is placed in \"config.json\"", "must be a .safetensors file"],
        ),
        index(
            "tensor in the wrong shard",
            |index| index["weight_map"][NORM] = json!("model-00001-of-00002.safetensors"),
            &["model-00001-of-00002.safetensors: tensor `model.norm.weight` is not in this shard", "download both again"],
        ),
        index(
            "tensor that no shard has",
            |index| index["weight_map"]["model.extra"] = json!(SHARD_2),
            &["tensor `model.extra` is not in this shard"],
        ),
        index(
            "tensor that the index forgot",
            |index| drop(index["weight_map"].as_object_mut().unwrap().remove(NORM)),
            &["tensor `model.norm.weight` is in this shard", "does not place it there"],
        ),
    ]
}
