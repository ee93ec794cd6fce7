//! `tests/gpu.sh`, which runs on a real card without changes, tried on the emulated one: its parts, its files and its table.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;

use crate::emulator::{Card, card, folder, joined};
use crate::engine::shipped;
use crate::kit::trial;

pub fn trials() -> Vec<Trial> {
    // On a real card the script is what runs these tests.
    if card() == Card::Real {
        return Vec::new();
    }
    vec![
        trial("gpu_script::measures_a_tiny_model_and_leaves_its_files", measures),
        trial("gpu_script::a_part_that_fails_stops_no_other", goes_on),
        trial("gpu_script::says_what_is_missing", missing),
    ]
}

/// The script with the emulated card, without the part that would run these tests.
fn script(out: &Path) -> Command {
    let mut command = Command::new("sh");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu.sh")).arg(out);
    command.env_remove("LD_PRELOAD").env("LD_LIBRARY_PATH", joined(&folder())).env("ADAROLL", env!("CARGO_BIN_EXE_adaroll"));
    command.env("ADAROLL_GPU_SH_TINY", "1").env("ADAROLL_GPU_SH_SKIP", "tests");
    if let Some(kernels) = shipped() {
        command.env("ADAROLL_KERNELS", kernels);
    }
    command
}

fn run(command: &mut Command) -> (bool, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// The python of this machine without its packages, so without torch.
fn bare_python(folder: &Path) -> PathBuf {
    let path = folder.join("python");
    std::fs::write(&path, "#!/bin/sh\nunset PYTHONPATH\nexec python3 -S \"$@\"\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn measures() {
    let out = tempfile::tempdir().unwrap();
    let tools = tempfile::tempdir().unwrap();
    // Without torch the comparisons are skipped, and say why.
    let (ok, table, log) = run(script(out.path()).env("ADAROLL_GPU_SH_PYTHON", bare_python(tools.path())));
    assert!(ok, "{table}\n{log}");
    for line in ["tiny: ", "\nbench          ok", "\ntransformers ", "\ntrain ", "benches/results/"] {
        assert!(table.contains(line), "{line:?} is not in the table:\n{table}\n{log}");
    }
    for part in ["transformers", "train"] {
        let row = table.lines().find(|line| line.starts_with(&format!("{part} "))).unwrap_or_default();
        assert!(row.contains(" skipped ") && row.ends_with("skipped: torch is not installed"), "{part}: {row:?}\n{log}");
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(out.path().join(format!("{part}.json"))).unwrap()).unwrap();
        assert_eq!(report["skipped"], "torch is not installed", "{part}");
    }
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(out.path().join("gpu.json")).unwrap()).unwrap();
    let shape = &report["shapes"][0];
    for part in ["decode", "prefill", "training", "handover", "invariance", "engine", "kernels"] {
        assert!(shape[part].as_array().is_some_and(|figures| !figures.is_empty()), "{part} has no figures: {shape}");
    }
    assert_eq!(shape["failed"].as_array().map(Vec::len), Some(0), "{shape}");
    assert_eq!(shape["left_out"].as_array().map(Vec::len), Some(0), "{shape}");
    assert_eq!(shape["decode"].as_array().map(Vec::len), Some(4), "batches 1 and 4 at contexts 32 and 96: {shape}");
    for kernel in ["embed", "rmsnorm", "add_rmsnorm", "rope_kv", "swiglu", "attention decode", "attention prefill", "gemm head", "draw"] {
        let measured = shape["kernels"].as_array().is_some_and(|all| all.iter().any(|k| k["kernel"] == kernel));
        assert!(measured, "{kernel} is not measured");
    }
}

fn goes_on() {
    let out = tempfile::tempdir().unwrap();
    // The bench is refused its kernels; what comes after it still runs.
    let nowhere = out.path().join("nothing");
    let (ok, table, log) = run(script(out.path()).env("ADAROLL_KERNELS", &nowhere).env("ADAROLL_NVRTC", &nowhere));
    assert!(!ok, "{table}\n{log}");
    assert!(table.contains("\nbench          FAILED") || table.contains("bench          FAILED"), "{table}\n{log}");
    assert!(table.contains("\ntransformers ") && table.contains("\ntrain "), "{table}\n{log}");
}

fn missing() {
    let out = tempfile::tempdir().unwrap();
    let (ok, _, log) = run(script(out.path()).env("ADAROLL", out.path().join("adaroll")));
    assert!(!ok && log.contains("cargo build --release"), "{log}");
    let (ok, _, log) = run(script(out.path()).env("ADAROLL_GPU_SH_SKIP", "").env("ADAROLL_CUDA_TESTS", out.path().join("cuda")));
    assert!(!ok && log.contains("cargo test --no-run --test cuda"), "{log}");
}
