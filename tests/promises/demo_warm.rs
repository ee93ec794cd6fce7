//! The demonstration's model is what its README says: made by this project's own fine-tuning from recorded seeds, to the byte.

use std::path::Path;

use adaroll::demo::task::{Problem, held_out};
use adaroll::demo::{evaluate, model, warm};
use adaroll::model::backward::{Recompute, Training};
use adaroll::model::{Checkpoint, ModelConfig};
use adaroll::ops::cpu::CpuOps;
use adaroll::trainer::settings::Settings;

use crate::sft::{train, weights};

fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..32].to_owned()
}

fn committed() -> &'static [u8] {
    model::FILES.iter().find(|(name, _)| *name == "model.safetensors").unwrap().1
}

#[test]
fn the_model_of_record_solves_the_easy_slice_and_some_of_the_hard() {
    assert_eq!(digest(committed()), "988ac7b50a1165eded8fb9cbf6946ed8");
    let dir = tempfile::tempdir().unwrap();
    model::write_to(dir.path()).unwrap();
    let config = ModelConfig::from_folder(dir.path()).unwrap();
    let mut training = Training::new(CpuOps::new(2).unwrap(), &config, Recompute::None);
    training.set_weights(&Checkpoint::open(dir.path(), &config).unwrap()).unwrap();
    let problems = held_out();
    let rates = evaluate::pass_rates(&mut training, &problems).unwrap();
    let (easy, hard) = (evaluate::mean(&problems, &rates, "easy").unwrap(), evaluate::mean(&problems, &rates, "hard").unwrap());
    let hard_rates: Vec<f64> = problems.iter().zip(&rates).filter(|(p, _)| p.slice == "hard").map(|(_, rate)| *rate).collect();
    let learnable = hard_rates.iter().filter(|rate| (0.01..=0.1).contains(*rate)).count() as f64 / hard_rates.len() as f64;
    println!("easy {easy:.4}, hard {hard:.4}; {learnable:.3} of the hard problems between .01 and .1");
    assert!((0.98..=0.99).contains(&easy), "{easy}");
    assert!((0.016..=0.030).contains(&hard), "{hard}");
    assert!((0.61..=0.87).contains(&learnable), "{learnable}");
    assert_eq!(evaluate::mean(&problems, &rates, "none"), None);
    // The twin: a wrong answer is not what the model says.
    let wrong = |p: &Problem| Problem::new(String::new(), p.op, p.digits, p.op.answer(p.digits).map(|y| (y + 3) % 10));
    let wrong: Vec<Problem> = problems.iter().map(wrong).collect();
    let rates = evaluate::pass_rates(&mut training, &wrong).unwrap();
    assert!(evaluate::mean(&wrong, &rates, "easy").unwrap() < 1e-3);
}

/// Five steps, at one thread and at two: the bytes that were recorded, so every machine that passes this test makes the model of record.
#[test]
fn the_first_steps_of_the_warm_up_have_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    warm::prepare(dir.path()).unwrap();
    for threads in [1, 2] {
        let mut settings = warm::settings(dir.path());
        (settings.run.steps, settings.model.threads, settings.eval.every) = (5, threads, 0);
        settings.run.dir = dir.path().join(format!("run-{threads}"));
        let (summary, _) = train(&settings, None).unwrap();
        assert_eq!(digest(&weights(&summary)), "d026f19280247c814dfb654c7ab7fc91", "{threads} threads");
    }
    // What `adaroll train --config` reads is the same run.
    let read = Settings::load(Some(&dir.path().join("train.toml")), &[]).unwrap();
    assert_eq!(read, warm::settings(dir.path()));
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("server-config/train-sft.toml");
    assert_eq!(Settings::load(Some(&shipped), &[]).unwrap(), warm::settings(Path::new("runs/warm-up")));
}

/// All of it: the committed file.
#[test]
#[ignore = "long: the whole warm-up, about a minute; tests/full.sh warmup"]
fn long_the_whole_warm_up_gives_the_committed_bytes() {
    let dir = tempfile::tempdir().unwrap();
    warm::prepare(dir.path()).unwrap();
    let begun = std::time::Instant::now();
    let (summary, lines) = train(&warm::settings(dir.path()), None).unwrap();
    println!(
        "{} steps in {:.1} s; {}",
        summary.state.step,
        begun.elapsed().as_secs_f64(),
        serde_json::to_string(lines.last().unwrap()).unwrap()
    );
    assert!(
        weights(&summary) == committed(),
        "the warm-up gives {}, the committed model is {}",
        digest(&weights(&summary)),
        digest(committed())
    );
}
