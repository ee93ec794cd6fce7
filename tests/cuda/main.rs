//! The CUDA path, on an emulated card: `cargo test cuda` runs it all. Where there is no C++ compiler to build the emulator with, every test is
//! reported as ignored, with the reason.
#![allow(clippy::unwrap_used)]

#[path = "../promises/assets.rs"]
#[allow(dead_code)]
mod assets;
mod backward;
mod compile;
mod demo;
mod driver;
mod emulator;
mod engine;
mod faults;
mod gemm_choice;
mod gpu_script;
mod kit;
mod library;
mod ops;
mod ranks;
#[path = "../promises/sampling_runs.rs"]
#[allow(dead_code)]
mod sampling_runs;
#[path = "../promises/tiny_model.rs"]
#[allow(dead_code)]
mod tiny_model;
mod training;
mod transfer;

use libtest_mimic::{Arguments, Trial};

fn main() {
    if transfer::is_exporter() {
        return;
    }
    let arguments = Arguments::from_args();
    // Listing needs no card.
    let prepared = if arguments.list { Ok(()) } else { emulator::prepare() };
    let mut trials: Vec<Trial> = [
        driver::trials(),
        ops::trials(),
        backward::trials(),
        training::trials(),
        demo::trials(),
        ranks::trials(),
        engine::trials(),
        faults::trials(),
        gemm_choice::trials(),
        gpu_script::trials(),
        library::trials(),
        compile::trials(),
        transfer::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    if let Err(reason) = prepared {
        eprintln!("the tests of the CUDA path are ignored: {reason}");
        trials = trials.into_iter().map(|t| t.with_ignored_flag(true)).collect();
    }
    libtest_mimic::run(&arguments, trials).exit();
}
