//! `adaroll demo --device cuda` from end to end: the server and the trainer share the card, and weights go from one to the other within its memory.

use std::process::Command;

use libtest_mimic::Trial;

use crate::emulator::{Card, card, folder, joined};
use crate::engine::shipped;
use crate::kit::trial;

pub fn trials() -> Vec<Trial> {
    vec![trial("demo::two_steps_on_the_card_agree_to_the_bit", demo)]
}

fn demo() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path();
    let mut command = Command::new(env!("CARGO_BIN_EXE_adaroll"));
    command.args(["demo", "--device", "cuda", "--steps", "2", "--out"]).arg(out).env("RUST_LOG", "info");
    if card() == Card::Emulated {
        command.env_remove("LD_PRELOAD").env("LD_LIBRARY_PATH", joined(&folder())).env("ADAROLL_KERNELS", shipped().unwrap());
    }
    let output = command.output().unwrap();
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_default();
    let (told, logs) = (String::from_utf8_lossy(&output.stdout).into_owned(), [read("server.log"), read("trainer.log")].join("\n"));
    assert!(output.status.success(), "{told}\n{}\n{logs}", String::from_utf8_lossy(&output.stderr));
    assert!(read("trainer.log").contains("weights go to the server within the GPU's memory"), "{logs}");
    let lines: Vec<serde_json::Value> = read("run/metrics.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<_> = lines.iter().filter(|line| line["kind"] == "train").collect();
    assert_eq!(steps.len(), 2, "{lines:?}");
    for step in steps {
        assert!(step["ada/rows"].as_f64() > Some(0.0), "{step}");
        assert_eq!(step["training/rollout_probs_diff_max"], 0.0, "the sampler is the trainer: {step}");
    }
    let evals: Vec<_> = lines.iter().filter(|line| line["kind"] == "eval").collect();
    assert!(evals.len() >= 2 && evals.iter().all(|eval| eval["eval/pass@1/easy"].as_f64() > Some(0.8)), "{evals:?}");
    assert!(out.join("report.html").is_file() && out.join("run/model/model.safetensors").is_file());
}
