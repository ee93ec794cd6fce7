//! The CUDA path, on an emulated card: `cargo test cuda` runs it all. Where there is no C++ compiler to build the emulator with, every test is
//! reported as ignored, with the reason.
#![allow(clippy::unwrap_used)]

#[path = "../promises/assets.rs"]
#[allow(dead_code)]
mod assets;
mod compile;
mod emulator;
mod engine;
mod faults;
mod kit;
mod ops;
#[path = "../promises/sampling_runs.rs"]
#[allow(dead_code)]
mod sampling_runs;

use libtest_mimic::{Arguments, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let trials: Vec<Trial> = [ops::trials(), engine::trials(), faults::trials(), compile::trials()].into_iter().flatten().collect();
    // Listing needs no card.
    if arguments.list {
        libtest_mimic::run(&arguments, trials).exit();
    }
    if let Err(reason) = emulator::prepare() {
        eprintln!("the tests of the CUDA path are ignored: {reason}");
        let ignored = trials.into_iter().map(|t| t.with_ignored_flag(true)).collect();
        libtest_mimic::run(&arguments, ignored).exit();
    }
    libtest_mimic::run(&arguments, trials).exit();
}
