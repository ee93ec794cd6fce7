//! Small tokenizers of the kinds that models use, made where a test needs to know every piece.

use std::sync::Arc;

use adaroll::model::special_tokens::SpecialTokens;
use adaroll::model::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// How Llama 3 and Qwen cut a text before they merge.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The byte-level alphabet's spelling of some bytes.
pub fn spelled(bytes: &[u8]) -> String {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let others: Vec<u8> = (0..=255).filter(|&byte| !printable(byte)).collect();
    let spell = |&byte: &u8| match others.iter().position(|&other| other == byte) {
        Some(at) => char::from_u32(0x100 + at as u32).unwrap(),
        None => char::from(byte),
    };
    bytes.iter().map(spell).collect()
}

/// A byte-level tokenizer: `words` are whole pieces with their ids, `special` are special tokens with theirs (ids from 1000 are
/// free), every single byte has a piece too (ids from 500000). The first special token is put before plain texts.
pub fn byte_level(words: &[(&str, u32)], special: &[(&str, u32)]) -> Arc<Tokenizer> {
    let mut vocab: Map<String, Value> = (0..=255u8).map(|byte| (spelled(&[byte]), json!(500_000 + u32::from(byte)))).collect();
    vocab.extend(words.iter().map(|(word, id)| (spelled(word.as_bytes()), json!(id))));
    vocab.extend(special.iter().map(|(text, id)| ((*text).to_owned(), json!(id))));
    let added: Vec<Value> = special.iter().map(|&(text, id)| added_token(text, id, true)).collect();
    let before = special.first().map(|(text, id)| {
        json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {*text: {"id": text, "ids": [id], "tokens": [text]}},
        })
    });
    from_json(&json!({
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}, "padding": null,
        "added_tokens": added, "normalizer": null, "post_processor": before,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "ignore_merges": true, "vocab": vocab, "merges": []},
    }))
}

/// A byte-level tokenizer whose piece `i` has these bytes, and a special token `<end>` after them.
pub fn of_bytes(pieces: &[&[u8]]) -> Arc<Tokenizer> {
    let vocab: Map<String, Value> = pieces.iter().enumerate().map(|(id, bytes)| (spelled(bytes), json!(id))).collect();
    assert_eq!(vocab.len(), pieces.len(), "each piece once");
    plain_bpe(vocab, json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}))
}

/// A tokenizer with these pieces as they are and this decoder.
pub fn of_pieces(pieces: &[&str], decoder: Value) -> Arc<Tokenizer> {
    plain_bpe(pieces.iter().enumerate().map(|(id, piece)| ((*piece).to_owned(), json!(id))).collect(), decoder)
}

/// The decoder of Llama 2, Mistral and Gemma tokenizers.
pub fn byte_fallback_decoder() -> Value {
    json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]})
}

/// As Llama 2's: spaces are `▁`, one is put before a text, bytes without a piece are spelled `<0x..>`.
pub fn llama2_like(pieces: &[&str]) -> Arc<Tokenizer> {
    let bytes: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let all = ["<unk>"].into_iter().chain(bytes.iter().map(String::as_str)).chain(pieces.iter().copied());
    let vocab: Map<String, Value> = all.enumerate().map(|(id, piece)| (piece.to_owned(), json!(id))).collect();
    from_json(&json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [added_token("<unk>", 0, true)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null, "post_processor": null, "decoder": byte_fallback_decoder(),
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": true, "byte_fallback": true, "ignore_merges": false, "vocab": vocab, "merges": []},
    }))
}

pub fn added_token(text: &str, id: u32, special: bool) -> Value {
    json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": special})
}

fn plain_bpe(mut vocab: Map<String, Value>, decoder: Value) -> Arc<Tokenizer> {
    let end = vocab.len() as u32;
    vocab.insert("<end>".into(), json!(end));
    from_json(&json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [added_token("<end>", end, true)],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    }))
}

/// A tokenizer from the contents of a tokenizer.json.
pub fn from_json(tokenizer: &Value) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_parts(tokenizer.to_string().parse().unwrap(), SpecialTokens::default()).unwrap())
}
