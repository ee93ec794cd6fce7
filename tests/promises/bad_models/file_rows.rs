//! Damaged and lying safetensors files.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::Row;
use crate::tiny_model::{TinyModel, split_safetensors, write_with_header};

const FILE: &str = "model.safetensors";
const NORM: &str = "model.norm.weight";

/// Changes the folder of a tiny Llama.
fn folder(kind: &'static str, spoil: impl Fn(&Path) + 'static, says: &'static [&'static str]) -> Row {
    Row { kind, model: TinyModel::default(), spoil: Box::new(spoil), says }
}

/// Changes the bytes of model.safetensors.
fn bytes(kind: &'static str, spoil: impl Fn(&mut Vec<u8>) + 'static, says: &'static [&'static str]) -> Row {
    let spoil = move |dir: &Path| {
        let mut bytes = std::fs::read(dir.join(FILE)).unwrap();
        spoil(&mut bytes);
        std::fs::write(dir.join(FILE), bytes).unwrap();
    };
    folder(kind, spoil, says)
}

/// Changes the header of model.safetensors; its length stays true and the data stays.
fn header(kind: &'static str, spoil: impl Fn(&mut Map<String, Value>) + 'static, says: &'static [&'static str]) -> Row {
    let spoil = move |dir: &Path| {
        let (mut header, data) = split_safetensors(&dir.join(FILE));
        spoil(&mut header);
        write_with_header(&dir.join(FILE), Value::Object(header).to_string().as_bytes(), &data);
    };
    folder(kind, spoil, says)
}

/// Replaces the header of model.safetensors by a text; its length stays true.
fn header_text(kind: &'static str, text: impl Into<Vec<u8>>, says: &'static [&'static str]) -> Row {
    let text = text.into();
    folder(kind, move |dir| write_with_header(&dir.join(FILE), &text, &[0; 64]), says)
}

fn replace_weights(dir: &Path, name: &str) {
    std::fs::rename(dir.join(FILE), dir.join(name)).unwrap();
}

pub(super) fn rows() -> Vec<Row> {
    [files(), headers()].into_iter().flatten().collect()
}

/// The file as a whole.
fn files() -> Vec<Row> {
    vec![
        folder(
            "no weights",
            |dir| std::fs::remove_file(dir.join(FILE)).unwrap(),
            &["holds neither model.safetensors nor", "download or export the weights"],
        ),
        folder(
            "PyTorch weights only",
            |dir| replace_weights(dir, "pytorch_model.bin"),
            &["holds neither", "save its PyTorch weights as safetensors"],
        ),
        folder("GGUF only", |dir| replace_weights(dir, "model.gguf"), &["holds neither", "convert its GGUF file"]),
        folder("adapter only", |dir| replace_weights(dir, "adapter_model.safetensors"), &["holds neither", "merge it into its base model"]),
        folder(
            "model.safetensors is a folder",
            |dir| {
                std::fs::remove_file(dir.join(FILE)).unwrap();
                std::fs::create_dir(dir.join(FILE)).unwrap();
            },
            &["model.safetensors: is a directory", "put the weights themselves there"],
        ),
        #[cfg(unix)]
        folder(
            "model.safetensors links to nothing",
            |dir| {
                std::fs::remove_file(dir.join(FILE)).unwrap();
                std::os::unix::fs::symlink("gone", dir.join(FILE)).unwrap();
            },
            &["model.safetensors: is a link to nothing", "put the weights themselves there"],
        ),
        #[cfg(unix)]
        folder(
            "model.safetensors is a socket",
            |dir| {
                std::fs::remove_file(dir.join(FILE)).unwrap();
                std::os::unix::net::UnixListener::bind(dir.join(FILE)).unwrap();
            },
            &["model.safetensors: is not a regular file", "put the weights themselves there"],
        ),
        bytes("empty file", |bytes| bytes.clear(), &["model.safetensors: holds 0 bytes", "download or export it again"]),
        bytes("four bytes", |bytes| bytes.truncate(4), &["model.safetensors: holds 4 bytes", "too few"]),
        bytes(
            "Git LFS pointer",
            |bytes| *bytes = b"version https://git-lfs.example/spec/v1\noid sha256:0\nsize 1\n".to_vec(),
            &["model.safetensors: is a Git LFS pointer", "fetch the file's contents"],
        ),
        bytes(
            "a web page",
            |bytes| *bytes = b"<!DOCTYPE html><html></html>".to_vec(),
            &["model.safetensors: says that its header has", "no safetensors file"],
        ),
        bytes("header length of 2^64 - 1", |bytes| bytes[..8].fill(0xff), &["header has 18446744073709551615 bytes", "limit", "again"]),
        bytes(
            "header longer than the file",
            |bytes| bytes[2] = 0x40,
            &["model.safetensors: says that its header has", "cut short", "again"],
        ),
        bytes(
            "header cut by its length",
            |bytes| bytes[0] = bytes[0].wrapping_sub(9),
            &["model.safetensors: has a header that cannot be read", "again"],
        ),
        bytes("header length 0", |bytes| bytes[..8].fill(0), &["has a header that cannot be read", "EOF"]),
        bytes("data cut short", |bytes| bytes.truncate(bytes.len() - 100), &["model.safetensors: is cut short", "promises", "again"]),
        bytes("bytes after the data", |bytes| bytes.extend([0; 3]), &["model.safetensors: has 3 bytes after its last tensor", "again"]),
    ]
}

/// The header and what it says of one tensor.
fn headers() -> Vec<Row> {
    vec![
        header_text("header is not JSON", "{model}", &["model.safetensors: has a header that cannot be read", "column", "again"]),
        header_text("header is a list", "[]", &["header that cannot be read", "an object that maps tensor names"]),
        header_text("header is not UTF-8", b"{\"\xff\": 1}".as_slice(), &["header that is not UTF-8 text (byte 2", "again"]),
        header(
            "metadata that is not text",
            |header| header["__metadata__"] = json!({"format": 3}),
            &["header that cannot be read", "invalid type: integer `3`, expected a string"],
        ),
        header_text(
            "header nested 100000 deep",
            format!("{{\"a\": {}", "[".repeat(100_000)),
            &["header that cannot be read", "tensor `a`"],
        ),
        header_text(
            "a name of 600 letters",
            format!("{{\"{}\": 1}}", "x".repeat(600)),
            &["a tensor has a name of 600 bytes", "too long", "again"],
        ),
        header_text("a name with a line break", r#"{"a\nb": 1}"#, &["a tensor has a name of 3 bytes", "control characters", "again"]),
        header_text(
            "a very long complaint",
            format!("{{\"a\": \"{}\"}}", "x".repeat(100_000)),
            &["tensor `a`: invalid type: string", "...); download"],
        ),
        header_text(
            "one tensor twice",
            r#"{"a": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}, "a": {"dtype": "F32", "shape": [8], "data_offsets": [32, 64]}}"#,
            &["header that cannot be read", "tensor `a` stands there twice"],
        ),
        header("entry is a number", |header| header[NORM] = json!(3), &["tensor `model.norm.weight`: invalid type", "again"]),
        header(
            "entry without offsets",
            |header| drop(header[NORM].as_object_mut().unwrap().remove("data_offsets")),
            &["`model.norm.weight`: missing field `data_offsets`"],
        ),
        header("dtype is a number", |header| header[NORM]["dtype"] = json!(16), &["`model.norm.weight`: invalid type", "string"]),
        header(
            "float8 weights",
            |header| header[NORM]["dtype"] = json!("F8_E4M3"),
            &["tensor `model.norm.weight` has dtype \"F8_E4M3\"", "convert the checkpoint to BF16"],
        ),
        header(
            "dtype of another size",
            |header| header[NORM]["dtype"] = json!("F32"),
            &["tensor `model.norm.weight` of shape [32] and dtype F32 needs 128 bytes", "offsets"],
        ),
        header("negative dimension", |header| header[NORM]["shape"] = json!([-32]), &["`model.norm.weight`: invalid value: integer `-32`"]),
        header(
            "fractional dimension",
            |header| header[NORM]["shape"] = json!([32.0]),
            &["`model.norm.weight`: invalid type: floating point"],
        ),
        header(
            "shape beyond 64 bits",
            |header| header[NORM]["shape"] = json!([1u64 << 63, 4]),
            &["tensor `model.norm.weight` of shape", "more bytes than can be addressed"],
        ),
        header(
            "nine dimensions",
            |header| header[NORM]["shape"] = json!([32, 1, 1, 1, 1, 1, 1, 1, 1]),
            &["tensor `model.norm.weight` has 9 dimensions", "again"],
        ),
        header("three offsets", |header| header[NORM]["data_offsets"] = json!([0, 1, 2]), &["`model.norm.weight`"]),
        header(
            "offsets swapped",
            |header| header[NORM]["data_offsets"].as_array_mut().unwrap().reverse(),
            &["tensor `model.norm.weight` of shape [32]", "its offsets in the header are"],
        ),
        header(
            "offsets beyond 64 bits",
            |header| header[NORM]["data_offsets"] = json!([u64::MAX - 64, u64::MAX]),
            &["tensor `model.norm.weight` has offsets", "beyond any file"],
        ),
        header(
            "offsets beyond the file",
            |header| header[NORM]["data_offsets"] = json!([1u64 << 40, (1u64 << 40) + 64]),
            &["leaves a gap after"],
        ),
        header(
            "overlapping tensors",
            |header| {
                let q = "model.layers.0.self_attn.q_proj.weight";
                header["model.layers.0.self_attn.o_proj.weight"]["data_offsets"] = header[q]["data_offsets"].clone();
            },
            &["overlaps tensor `model.layers.0.self_attn.", "offsets in the header are wrong"],
        ),
        header(
            "a gap between tensors",
            |header| drop(header.remove(NORM)),
            &["leaves a gap after tensor `model.layers.1.post_attention_layernorm.weight`"],
        ),
    ]
}
