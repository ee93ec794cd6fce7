//! Promise: a bad model folder is refused with one sentence that says where, what and what to do, and never with a panic.
//!
//! Each row spoils one thing in a folder that loads; the folder is loaded once before and must not load after.

mod checkpoint_rows;
mod config_rows;
mod file_rows;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use adaroll::commands::inspect::inspect;
use adaroll::model::{Checkpoint, ModelConfig, ModelError, SafetensorsFile};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::tiny_model::{TinyModel, split_safetensors, tiny_model, write_with_header};

/// One kind of bad folder.
struct Row {
    kind: &'static str,
    /// The good folder it starts from.
    model: TinyModel,
    spoil: Box<dyn Fn(&Path)>,
    /// What the sentence must contain: the file, field or tensor, and the advice.
    says: &'static [&'static str],
}

/// Everything that happens before a model serves.
fn load(dir: &Path) -> Result<(), ModelError> {
    let config = ModelConfig::from_folder(dir)?;
    Checkpoint::open(dir, &config)?.verify_finite()
}

/// Spoils a good folder and returns the sentence, or what went wrong with the row.
fn run(row: &Row) -> Result<String, String> {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("model");
    std::fs::create_dir(&dir).unwrap();
    tiny_model(&dir, &row.model);
    load(&dir).map_err(|error| format!("does not load unspoiled: {error}"))?;
    (row.spoil)(&dir);
    let outcome = catch_unwind(AssertUnwindSafe(|| load(&dir))).map_err(|_| "panicked".to_owned())?;
    let sentence = outcome.err().ok_or("was accepted")?.to_string();
    if sentence.contains('\n') || sentence.len() > 1000 {
        return Err(format!("is no single sentence: {sentence}"));
    }
    match row.says.iter().find(|part| !sentence.contains(**part)) {
        Some(part) => Err(format!("should say {part:?}, but says: {sentence}")),
        None => Ok(sentence),
    }
}

#[test]
fn every_kind_of_bad_folder_gets_its_sentence() {
    let rows: Vec<Row> = [config_rows::rows(), file_rows::rows(), checkpoint_rows::rows()].into_iter().flatten().collect();
    assert!(rows.len() >= 40, "only {} kinds", rows.len());
    let kinds: std::collections::HashSet<_> = rows.iter().map(|row| row.kind).collect();
    assert_eq!(kinds.len(), rows.len(), "two rows have the same name");
    let mut failures = Vec::new();
    for row in &rows {
        match run(row) {
            // Shown by `cargo test -- --nocapture`, to be read as a user would.
            Ok(sentence) => println!("{}: {sentence}", row.kind),
            Err(failure) => failures.push(format!("{}: {failure}", row.kind)),
        }
    }
    assert!(failures.is_empty(), "{} of {} rows:\n{}", failures.len(), rows.len(), failures.join("\n"));
}

#[test]
fn inspect_refuses_what_loading_refuses() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), &TinyModel::default());
    inspect(dir.path()).unwrap();
    std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    assert!(inspect(dir.path()).unwrap_err().to_string().contains("holds neither model.safetensors"));
}

/// A folder whose safetensors file a property damages again and again.
struct Victim {
    dir: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Victim {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        tiny_model(dir.path(), &TinyModel { layers: 1, ..TinyModel::default() });
        let path = dir.path().join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        let (header, data) = split_safetensors(&path);
        Victim { dir, path, bytes, header, data }
    }
}

/// A sentence is one line of a readable length, whatever is in the file.
fn is_readable(error: &ModelError) -> bool {
    let sentence = error.to_string();
    !sentence.contains(char::is_control) && sentence.len() < 1200
}

/// More cases: set PROPTEST_CASES.
fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

/// The `safetensors` crate is the judge: what this reader accepts of a damaged header, the crate accepts too, and reads the same.
#[test]
fn a_damaged_header_never_panics_and_is_never_misread() {
    let victim = Victim::new();
    let header_end = victim.bytes.len() - victim.data.len();
    let printable = prop_oneof![any::<u8>(), prop::sample::select(b"0123456789[]{},:\"BF16".to_vec())];
    let flips = prop::collection::vec((any::<prop::sample::Index>(), printable), 1..4);
    proptest!(cases(), |(flips in flips)| {
        let mut bytes = victim.bytes.clone();
        for (index, byte) in &flips {
            bytes[index.index(header_end)] = *byte;
        }
        std::fs::write(&victim.path, &bytes).unwrap();
        if let Err(error) = load(victim.dir.path()) {
            prop_assert!(is_readable(&error), "{}", error);
        }
        if let Ok(file) = SafetensorsFile::open(&victim.path) {
            let judge = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            prop_assert_eq!(file.tensors().count(), judge.len());
            for tensor in file.tensors() {
                let theirs = judge.tensor(tensor.name).unwrap();
                prop_assert_eq!(tensor.bytes, theirs.data());
                prop_assert_eq!(&tensor.shape, theirs.shape());
                prop_assert_eq!(tensor.dtype.name(), theirs.dtype().to_string());
            }
        }
    });
}

/// Numbers in the header are what an attacker would change first: a folder loads only if the number is the true one.
#[test]
fn lying_numbers_in_the_header_are_refused() {
    let victim = Victim::new();
    let number = prop_oneof![any::<u64>(), 0u64..20_000, Just(u64::MAX), Just(32)];
    proptest!(cases(), |(tensor in 0usize..12, place in 0usize..4, number in number)| {
        let mut header = victim.header.clone();
        let entry = header.values_mut().filter(|entry| entry.get("dtype").is_some()).nth(tensor).unwrap();
        let slot = match place {
            0 | 1 => &mut entry["data_offsets"][place],
            _ => {
                let last = entry["shape"].as_array().unwrap().len() - 1;
                &mut entry["shape"][(place - 2).min(last)]
            }
        };
        let is_true = *slot == json!(number);
        *slot = json!(number);
        write_with_header(&victim.path, Value::Object(header).to_string().as_bytes(), &victim.data);
        let outcome = load(victim.dir.path());
        prop_assert_eq!(outcome.is_ok(), is_true);
        prop_assert!(outcome.is_ok() || is_readable(&outcome.unwrap_err()));
    });
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let victim = Victim::new();
    proptest!(cases(), |(cut: prop::sample::Index)| {
        std::fs::write(&victim.path, &victim.bytes[..cut.index(victim.bytes.len())]).unwrap();
        prop_assert!(is_readable(&load(victim.dir.path()).unwrap_err()));
    });
}

proptest! {
    #![proptest_config(cases())]

    /// Any value in any field: refused, or read into sizes that hold together.
    #[test]
    fn any_value_in_any_field_of_the_configuration(field in any::<prop::sample::Index>(), value in values()) {
        let mut config = TinyModel::default().config_json();
        let object = config.as_object_mut().unwrap();
        for key in ["rope_scaling", "rope_parameters", "layer_types", "attention_bias", "quantization_config"] {
            object.insert(key.into(), Value::Null);
        }
        let key = object.keys().nth(field.index(object.len())).unwrap().clone();
        object.insert(key.clone(), value);
        match ModelConfig::from_json(&config.to_string()) {
            Err(error) => {
                prop_assert!(error.to_string().contains("config.json: field `"), "{}: {}", key, error);
                prop_assert!(is_readable(&error), "{}", error);
            }
            Ok(config) => {
                prop_assert!(config.num_heads.is_multiple_of(config.num_kv_heads) && config.head_dim.is_multiple_of(2));
                prop_assert!(config.num_parameters() > 0 && config.num_parameters() < 1 << 62);
                prop_assert!(config.rms_norm_eps > 0.0 && config.rope.theta >= 1.0);
                prop_assert!(config.eos_token_ids.iter().all(|&id| (id as usize) < config.vocab_size));
            }
        }
    }
}

/// JSON values of every type, with numbers at the edges.
fn values() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u64..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,80}".prop_map(Value::from),
        prop::collection::vec(any::<u32>(), 0..4).prop_map(Value::from),
        Just(json!({})),
        Just(json!({"rope_type": "llama3"})),
        Just(json!([["full_attention"]])),
        Just(json!(["full_attention", "full_attention"])),
    ]
}
