//! Weights that another process holds in the card's memory: they serve as if they had been loaded from a file, and what is wrong with them is said
//! and changes nothing. The other process is this test's binary, started again.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use adaroll::engine::{Engine, StageError};
use adaroll::model::places::{Place, places};
use adaroll::model::weights::Weights;
use adaroll::model::{Checkpoint, ModelConfig, ModelError, TensorSource};
use adaroll::ops::Ops;
use adaroll::ops::cuda::CudaSettings;
use adaroll::ops::handover::{Exported, Handover, Hex, ImportError};
use half::bf16;
use libtest_mimic::Trial;

use crate::assets::data;
use crate::engine::{engine_on, params, prompts};
use crate::kit::{Numbers, assert_well, bf16_bytes, cuda, cuda_with, trial, view};
use crate::sampling_runs::{assert_same, differ, run};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("transfer::every_tensor_has_its_place", all_placed),
        trial("transfer::hashes_are_those_of_the_values_alone", hashes),
        trial("transfer::another_processs_weights_serve_llama", || served("llama-gqa1")),
        trial("transfer::another_processs_weights_serve_qwen2", || served("qwen2-gqa7-bias")),
        trial("transfer::another_processs_weights_serve_qwen3", || served("qwen3-gqa3-qknorm")),
        trial("transfer::rows_at_another_stride_are_copied_one_by_one", strided),
        trial("transfer::what_is_wrong_is_named_and_changes_nothing", refused),
        trial("transfer::numbers_that_are_not_finite_are_named", not_finite),
    ]
}

/// Folder whose weights a process exports that was started for nothing else.
const EXPORTER: &str = "ADAROLL_TEST_EXPORTER";

/// Exports the weights, says where they are, and keeps them until nobody listens any more.
pub fn is_exporter() -> bool {
    let Some(dir) = std::env::var_os(EXPORTER) else { return false };
    let dir = Path::new(&dir);
    let ops = cuda_with(CudaSettings::default());
    let config = ModelConfig::from_folder(dir).unwrap();
    let weights = Weights::load(&ops, &config, &Checkpoint::open(dir, &config).unwrap(), |_, _| {}).unwrap();
    let exported = Handover::export(&ops, &places(&config, &weights)).unwrap();
    println!("{}", serde_json::to_string(&exported).unwrap());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    true
}

/// Another process with weights on the card.
struct Exporter {
    child: Child,
    stdin: Option<ChildStdin>,
    exported: Exported,
}

impl Exporter {
    fn start(dir: &Path) -> Exporter {
        let mut child =
            Command::new(std::env::current_exe().unwrap()).env(EXPORTER, dir).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let exported = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
        Exporter { stdin: child.stdin.take(), child, exported }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

fn all_placed() {
    for name in ["llama-gqa1", "llama3-gqa4-tied", "qwen2-gqa7-bias", "qwen3-gqa3-qknorm"] {
        let dir = data("golden").join(name);
        let config = ModelConfig::from_folder(&dir).unwrap();
        let checkpoint = Checkpoint::open(&dir, &config).unwrap();
        let ops = cuda();
        let weights = Weights::load(&ops, &config, &checkpoint, |_, _| {}).unwrap();
        let placed = places(&config, &weights);
        let mut got: Vec<_> = placed.iter().map(|p| (p.name.clone(), p.shape.clone())).collect();
        let mut expected = config.tensors();
        got.sort();
        expected.sort();
        assert_eq!(got, expected, "{name}");
        for p in &placed {
            let values = checkpoint.tensor(&p.name).unwrap().to_f32();
            assert_eq!(ops.read_place(&p.place), bf16_bytes(&values), "{name}: {}", p.name);
        }
        assert_well(&ops);
    }
}

/// The two sums over the 32-bit words of an array.
fn hash_of(bytes: &[u8]) -> Hex<16> {
    let sum = |seed: u64| {
        let words = bytes.chunks(4).map(|word| word.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)));
        words.enumerate().fold(0u64, |sum, (i, word)| {
            let z = word.wrapping_add((i as u64) << 32).wrapping_add(seed);
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            sum.wrapping_add(z ^ (z >> 31))
        })
    };
    let sums = [sum(0x9e37_79b9_7f4a_7c15), sum(0xd1b5_4a32_d192_ed03)].map(u64::to_be_bytes);
    Hex(sums.concat().try_into().unwrap())
}

fn hashes() {
    let mut numbers = Numbers(3);
    for (rows, cols) in [(1, 1), (1, 7), (3, 5), (17, 8), (5, 33), (130, 257)] {
        let bytes = bf16_bytes(&numbers.many(rows * cols, 2.0));
        let ops = cuda();
        let matrix = ops.matrix(&[view(&bytes, &[rows, cols])]);
        let vector = ops.vector(&[view(&bytes, &[rows * cols])]);
        let placed = |place| adaroll::model::places::Placed { name: "x".into(), shape: vec![rows, cols], place };
        let (whole, flat) = (Place::Rows { matrix: &matrix, first: 0, rows }, Place::Part { vector: &vector, first: 0, len: rows * cols });
        let exported = Handover::export(&ops, &[placed(whole), placed(flat)]).unwrap();
        for tensor in exported.tensors {
            assert_eq!(tensor.hash, hash_of(&bytes), "{rows} x {cols}");
        }
        assert_well(&ops);
    }
}

/// A copy of a golden model whose weights are other numbers.
fn other(name: &str, change: impl Fn(usize, &mut [u8; 2])) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(data("golden").join(name)).unwrap().flatten() {
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    let path = copy.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[header..].as_chunks_mut::<2>().0.iter_mut().enumerate().for_each(|(i, value)| change(i, value));
    std::fs::write(&path, bytes).unwrap();
    copy
}

fn signs(name: &str) -> tempfile::TempDir {
    other(name, |i, value| value[1] ^= if i % 3 == 0 { 0x80 } else { 0 })
}

fn served(name: &str) {
    let (first, second) = (data("golden").join(name), signs(name));
    let expected = run(&engine_on(cuda(), second.path(), 16), &prompts(320), 2, &params(), None);
    let engine = engine_on(cuda(), &first, 16);
    assert!(differ(&run(&engine, &prompts(320), 2, &params(), None), &expected));
    let exporter = Exporter::start(second.path());
    assert_eq!(engine.ipc_device(), Some(exporter.exported.device));
    engine.import(4, &exporter.exported).unwrap_or_else(|e| panic!("{e}"));
    // What is staged is the engine's own.
    drop(exporter);
    let config = ModelConfig::from_folder(&first).unwrap();
    let checkpoint = Checkpoint::open(second.path(), &config).unwrap();
    for (tensor, _) in config.tensors() {
        assert_eq!(engine.staged_tensor(&tensor).unwrap(), checkpoint.tensor(&tensor).unwrap().bytes, "{tensor}");
    }
    assert_eq!(engine.swap().unwrap().blocking_recv().unwrap().version, 4);
    assert_same("imported", &expected, &run(&engine, &prompts(320), 2, &params(), None));
}

/// Keys announced as every other row of the matrix that holds queries, keys and values one below the other.
fn strided() {
    let dir = data("golden/llama-gqa1");
    let exporter = Exporter::start(&dir);
    let config = ModelConfig::from_folder(&dir).unwrap();
    let checkpoint = Checkpoint::open(&dir, &config).unwrap();
    let names = ["q", "k"].map(|n| format!("model.layers.0.self_attn.{n}_proj.weight"));
    let rows: Vec<u8> = names.iter().flat_map(|name| checkpoint.tensor(name).unwrap().bytes.to_vec()).collect();
    let mut exported = exporter.exported.clone();
    let queries = exported.tensors.iter().find(|tensor| tensor.name == names[0]).unwrap().clone();
    let keys = exported.tensors.iter_mut().find(|tensor| tensor.name == names[1]).unwrap();
    let picked: Vec<u8> = rows.chunks(2 * config.hidden_size).step_by(2).take(keys.shape[0]).flatten().copied().collect();
    (keys.handle, keys.offset, keys.stride, keys.hash) = (queries.handle, queries.offset, 2 * queries.stride, hash_of(&picked));
    let ops = cuda();
    let imported = Handover::import(&ops, &config, &exported).unwrap_or_else(|e| panic!("{e}"));
    let placed = places(&config, &imported);
    let read = |name: &str| ops.read_place(&placed.iter().find(|p| p.name == name).unwrap().place);
    assert_eq!(read(&names[1]), picked);
    assert_eq!(read(&names[0]), checkpoint.tensor(&names[0]).unwrap().bytes);
    assert_well(&ops);
}

fn refused() {
    let (first, second) = (data("golden/llama-gqa1"), signs("llama-gqa1"));
    let engine = engine_on(cuda(), &first, 16);
    let before = run(&engine, &prompts(320), 1, &params(), None);
    let exporter = Exporter::start(second.path());
    let tensor = |error: &StageError, part: &str| match error {
        StageError::Import(ImportError::Tensor(ModelError::Tensor { tensor, problem, .. })) => {
            tensor == "model.layers.0.mlp.down_proj.weight" && problem.contains(part)
        }
        _ => false,
    };
    let place = exporter.exported.tensors.iter().position(|t| t.name == "model.layers.0.mlp.down_proj.weight").unwrap();
    let field = |error: &StageError, name: &str| match error {
        StageError::Import(ImportError::Field(e)) => e.path == format!("ipc.tensors[{place}].{name}"),
        _ => false,
    };
    let unavailable =
        |error: &StageError, name: &str| matches!(error, StageError::Import(ImportError::Unavailable { field, .. }) if field == name);
    let check = |what: &str, change: &dyn Fn(&mut Exported), is_right: &dyn Fn(&StageError) -> bool| {
        let mut exported = exporter.exported.clone();
        change(&mut exported);
        let error = engine.import(1, &exported).expect_err(what);
        assert!(is_right(&error), "{what}: {error}");
    };
    check("hash", &|e| e.tensors[place].hash.0[3] ^= 1, &|e| tensor(e, "hash"));
    check("missing", &|e| drop(e.tensors.remove(place)), &|e| tensor(e, "is missing"));
    let turned = |e: &mut Exported| {
        e.tensors[place].shape.reverse();
        e.tensors[place].stride = e.tensors[place].shape[1];
    };
    check("shape", &turned, &|e| tensor(e, "has shape"));
    check("unknown", &|e| e.tensors[place].name += "x", &|e| tensor(e, "is missing"));
    check("handle", &|e| e.tensors[place].handle = 1000, &|e| field(e, "handle"));
    check("odd", &|e| e.tensors[place].offset += 1, &|e| field(e, "offset"));
    check("beyond", &|e| e.tensors[place].offset = 1 << 40, &|e| field(e, "offset"));
    check("far beyond", &|e| e.tensors[place].offset = u64::MAX - 1, &|e| field(e, "offset"));
    check("stride", &|e| e.tensors[place].stride = 1, &|e| field(e, "stride"));
    check(
        "twice",
        &|e| e.tensors.push(e.tensors[place].clone()),
        &|e| matches!(e, StageError::Import(ImportError::Field(e)) if e.path.ends_with("].name")),
    );
    check("device", &|e| e.device.0[0] ^= 1, &|e| unavailable(e, "ipc.device"));
    check("no handle", &|e| e.handles[0] = Hex([7; 64]), &|e| unavailable(e, "ipc.handles[0]"));
    assert_same("old weights", &before, &run(&engine, &prompts(320), 1, &params(), None));
    // And the engine takes what is right.
    engine.import(2, &exporter.exported).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(engine.swap().unwrap().blocking_recv().unwrap().version, 2);
    assert!(differ(&before, &run(&engine, &prompts(320), 1, &params(), None)));
}

fn not_finite() {
    let first = data("golden/llama-gqa1");
    let config = ModelConfig::from_folder(&first).unwrap();
    let ops = cuda();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let dir = other("llama-gqa1", |i, value| {
            if i == 5 {
                *value = bf16::from_f32(bad).to_le_bytes();
            }
        });
        let exporter = Exporter::start(dir.path());
        match Handover::import(&ops, &config, &exporter.exported).err() {
            Some(ImportError::Tensor(ModelError::NonFinite { value, .. })) => {
                assert_eq!(value.to_bits() >> 52, f64::from(bad).to_bits() >> 52)
            }
            other => panic!("{other:?}"),
        }
    }
    assert_well(&ops);
}
