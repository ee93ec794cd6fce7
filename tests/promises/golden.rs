//! Promise: the forward pass computes what transformers computes, for every architecture, on every instruction set.

use adaroll::commands::check::{Frequencies, check};
use adaroll::ops::cpu::Isa;

use crate::assets::data;

const NAMES: [&str; 6] = ["llama-gqa1", "llama3-gqa4-tied", "qwen2-gqa7-bias", "qwen3-gqa3-qknorm", "qwen3-head128", "llama-f16-sharded"];

/// max |delta logit| <= 5e-5 against the f64 reference over 64 positions, greedy continuations equal wherever the margin exceeds 1e-3.
#[test]
fn golden_logits_and_greedy_continuations() {
    for name in NAMES {
        for isa in Isa::available() {
            let report = check(&data("golden").join(name), 2, isa).unwrap();
            println!("{name} on {isa}: max error {:.2e}, mean {:.2e}", report.max_abs_logit_error, report.mean_abs_logit_error);
            assert!(report.ok, "{report}");
            assert_eq!((report.sequences, report.positions, report.greedy_steps), (2, 64, 64));
            assert_eq!(report.rope_frequencies, Frequencies::AsLoaded);
            assert!(report.greedy_close_calls < 6, "too few greedy steps count: {report}");
        }
    }
}

/// A reference made from a model that was cast in memory has rounded rotary frequencies. It is recognised, and said.
#[test]
fn a_reference_cast_in_memory_is_recognised() {
    let report = check(&data("golden-cast/llama-f16-sharded"), 1, Isa::detect()).unwrap();
    assert!(report.ok, "{report}");
    assert_eq!(report.rope_frequencies, Frequencies::CastInMemory);
    assert!(report.to_string().contains("cast in memory"));
}

/// The check can fail: one changed weight is seen.
#[test]
fn a_changed_weight_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(data("golden/qwen3-head128")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    let path = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let n = bytes.len();
    // The last weight's sign.
    bytes[n - 1] ^= 0x80;
    std::fs::write(&path, bytes).unwrap();
    assert!(!check(dir.path(), 1, Isa::detect()).unwrap().ok);
}
