//! Products by cuBLASLt, where there is one: which of its algorithms is taken, and what is computed with it. The library is the emulator's, with one
//! sound algorithm and a choice of traps (`tests/emulator/cublaslt.cpp`). It is found by processes alone that look for it: each of these tests starts
//! this binary again, for itself.

use std::process::Command;

use adaroll::commands::open::{EngineOptions, open};
use adaroll::engine::{Engine, EngineSettings};
use adaroll::ops::cuda::gemm_choice::{GemmChoice, Products, WeightShape};
use adaroll::ops::cuda::{CudaOps, CudaSettings};
use adaroll::ops::{Ops, TrainOps};
use libtest_mimic::Trial;

use crate::assets::data;
use crate::emulator::{Card, Count, card, count, folder, joined};
use crate::engine::{options, params, prompts};
use crate::kit::{
    Numbers, assert_near, assert_same, assert_well, bf16_bytes, card_tensor, cpu, cpu_tensor, cpu_values, cuda, cuda_with, nmse, rounded,
    trial, view,
};
use crate::sampling_runs::{assert_same as assert_same_samples, differ, run};

/// Algorithms with a fault each.
const UNSOUND: [&str; 9] = ["varying", "position", "wrong", "split", "reduction", "workspace", "state", "small", "refusing"];

pub fn trials() -> Vec<Trial> {
    // A real card has a real library, or none: `gemm_choice` tries that.
    if card() == Card::Real {
        return Vec::new();
    }
    let mut trials: Vec<Trial> =
        UNSOUND.iter().map(|name| with_library(&format!("refuses_one_that_is_{name}"), &[(CANDIDATES, *name)], refused)).collect();
    let all = format!("{},sound", UNSOUND.join(","));
    trials.extend([
        with_library("refuses_one_that_is_position_of_few_rows", &[(CANDIDATES, "position")], refused_of_few_rows),
        with_library("takes_the_sound_one_among_all_others", &[(CANDIDATES, all.as_str())], taken),
        with_library("multiplies_gradients_with_the_sound_one", &[(CANDIDATES, "varying,wrong,position,sound")], back),
        with_library("is_taken_by_itself_where_it_is_faster", &[(CANDIDATES, "sound")], faster),
        with_library("serves_the_same_bits_in_any_batch_and_in_recorded_steps", &[(CANDIDATES, "wrong,varying,sound")], served),
        with_library("is_measured_as_a_limit", &[(CANDIDATES, "varying,sound")], limit),
        with_library("is_left_alone_where_memory_is_scarce", &[(CANDIDATES, "sound"), ("ADAROLL_EMULATOR_MEMORY", "150000000")], scarce),
        with_library("ends_with_the_card", &[(CANDIDATES, "sound"), ("ADAROLL_EMULATOR_LOSE_AFTER", "20")], lost),
    ]);
    trials
}

/// The algorithms that the library proposes.
const CANDIDATES: &str = "ADAROLL_EMULATOR_CUBLASLT";

/// Set in a process that finds the library.
const WITH_LIBRARY: &str = "ADAROLL_TEST_LIBRARY";

/// A test that runs in a process of its own, which finds the library, with these variables.
fn with_library(name: &str, variables: &[(&str, &str)], test: fn()) -> Trial {
    let name = format!("library::{name}");
    let full_name = format!("cuda::{name}");
    let variables: Vec<(String, String)> = variables.iter().map(|(name, value)| (String::from(*name), String::from(*value))).collect();
    trial(&name, move || {
        if std::env::var_os(WITH_LIBRARY).is_some() {
            return test();
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", full_name.as_str(), "--test-threads", "1"]).envs(variables);
        command.env(WITH_LIBRARY, "1").env("LD_LIBRARY_PATH", joined(&folder().join("cublaslt")));
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
        // One that finds no such test passes too.
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    })
}

/// Rows of the largest product that is looked at.
const MOST_ROWS: usize = 320;

fn shape(outputs: usize, inputs: usize, wide: bool) -> WeightShape {
    WeightShape { outputs, inputs, wide, back: false }
}

fn products(shapes: &[WeightShape]) -> Vec<Products> {
    shapes.iter().map(|shape| Products { shape: *shape, most_rows: MOST_ROWS }).collect()
}

/// A backend that may multiply with the library.
fn prepared(choice: GemmChoice, shapes: &[WeightShape]) -> CudaOps {
    let mut ops = cuda();
    ops.prepare_products(choice, &products(shapes)).unwrap_or_else(|e| panic!("{e}"));
    assert_well(&ops);
    ops
}

/// Numbers to multiply, `[rows, reduced]` by weights of this shape.
struct Factors {
    shape: WeightShape,
    x: Vec<f32>,
    w: Vec<f32>,
}

impl Factors {
    fn new(shape: WeightShape, rows: usize) -> Factors {
        let mut numbers = Numbers((rows * 1_000_003 + shape.outputs * 1009 + shape.inputs) as u64);
        let reduced = if shape.back { shape.outputs } else { shape.inputs };
        Factors { shape, x: numbers.many(rows * reduced, 1.5), w: numbers.many(shape.outputs * shape.inputs, 1.0) }
    }

    /// Numbers in a sum, and columns of the product.
    fn sizes(&self) -> (usize, usize) {
        let WeightShape { outputs, inputs, back, .. } = self.shape;
        if back { (outputs, inputs) } else { (inputs, outputs) }
    }

    /// The product of some of the rows on this backend.
    fn on(&self, ops: &mut CudaOps, x: &[f32]) -> Vec<f32> {
        let WeightShape { outputs, inputs, wide, back } = self.shape;
        let (reduced, width) = self.sizes();
        let rows = x.len() / reduced;
        let w = ops.matrix(&[view(&bf16_bytes(&self.w), &[outputs, inputs])]);
        let x = card_tensor(ops, rows, reduced, x);
        let mut out = if wide && !back { ops.wide_tensor(rows, width) } else { ops.tensor(rows, width) };
        match back {
            true => ops.linear_dx(&x, &w, &mut out),
            false => ops.linear(&x, &w, &mut out),
        }
        let values = ops.read(&out);
        assert_well(ops);
        values
    }

    /// What the sound algorithm gives: eight sums, of every eighth product each, added in pairs.
    fn by_lanes(&self) -> Vec<f32> {
        let (reduced, width) = self.sizes();
        let inputs = self.shape.inputs;
        let weight = |col: usize, i: usize| if self.shape.back { self.w[i * inputs + col] } else { self.w[col * inputs + i] };
        let sum = |x: &[f32], col: usize| {
            let mut s = [0f32; 8];
            x.iter().enumerate().for_each(|(i, x)| s[i % 8] += x * weight(col, i));
            ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))
        };
        let all: Vec<f32> = self.x.chunks(reduced).flat_map(|x| (0..width).map(move |col| (x, col))).map(|(x, col)| sum(x, col)).collect();
        if self.shape.wide && !self.shape.back { all } else { rounded(&all) }
    }

    /// What the CPU gives, unrounded.
    fn on_the_cpu(&self) -> Vec<f32> {
        let WeightShape { outputs, inputs, back, .. } = self.shape;
        let (reduced, width) = self.sizes();
        let rows = self.x.len() / reduced;
        let mut ops = cpu();
        let mut out = ops.tensor(rows, width);
        let w = ops.matrix(&[view(&bf16_bytes(&self.w), &[outputs, inputs])]);
        let x = cpu_tensor(&ops, rows, reduced, &self.x);
        match back {
            true => ops.linear_dx(&x, &w, &mut out),
            false => ops.linear(&x, &w, &mut out),
        }
        cpu_values(&out)
    }
}

/// The product is the sound algorithm's, to the bit; it is near the CPU's, and where it is f32 it has other bits than our own kernels'; and a row of
/// it has the bits that it has alone. More rows than were looked at are no exception.
fn assert_by_the_library(ops: &mut CudaOps, shape: WeightShape) {
    for rows in [1, 33, 300, 2 * MOST_ROWS + 5] {
        let factors = Factors::new(shape, rows);
        let (reduced, width) = factors.sizes();
        let what = || format!("{rows} rows by {shape}");
        let together = factors.on(ops, &factors.x);
        assert_same(&what, &together, &factors.by_lanes());
        let want = factors.on_the_cpu();
        if shape.wide {
            assert!(nmse(&together, &want) < 1e-12, "{}: {:.2e}", what(), nmse(&together, &want));
            let own = factors.on(&mut cuda(), &factors.x);
            let differs = together.iter().zip(&own).any(|(a, b)| a.to_bits() != b.to_bits());
            // A few short sums may agree by chance.
            assert!(differs || together.len() < 1000, "{}: our own kernels add in another order", what());
        } else {
            assert_near(&what, &together, &want, &rounded(&want));
        }
        for row in [0, rows / 2, rows - 1] {
            let alone = factors.on(ops, &factors.x[row * reduced..][..reduced]);
            assert_same(&|| format!("row {row} of {}", what()), &alone, &together[row * width..][..width]);
        }
    }
}

/// The product is our own kernels', to the bit.
fn assert_our_own(ops: &mut CudaOps, shape: WeightShape) {
    let id = ops.numerics_id();
    assert!(id.ends_with("-own"), "{id}");
    let factors = Factors::new(shape, 40);
    assert_same(&|| format!("40 rows by {shape}"), &factors.on(ops, &factors.x), &factors.on(&mut cuda(), &factors.x));
}

fn refused() {
    let shapes = [shape(64, 64, false), shape(40, 136, true)];
    let mut ops = prepared(GemmChoice::Cublaslt, &shapes);
    shapes.into_iter().for_each(|shape| assert_our_own(&mut ops, shape));
}

/// Of few rows too, each has a twin elsewhere; and widths that are odd hide no order.
fn refused_of_few_rows() {
    let shapes = [shape(64, 64, false), shape(7, 17, false), shape(1001, 64, true).backwards()];
    let products = shapes.map(|shape| Products { shape, most_rows: 64 });
    let mut ops = cuda();
    ops.prepare_products(GemmChoice::Cublaslt, &products).unwrap_or_else(|e| panic!("{e}"));
    let id = ops.numerics_id();
    assert!(id.ends_with("-own"), "{id}");
}

fn taken() {
    let shapes = [shape(64, 64, false), shape(24, 18, false), shape(7, 17, true), shape(40, 136, true)];
    let mut ops = prepared(GemmChoice::Cublaslt, &shapes);
    assert!(ops.numerics_id().contains("-lt-"), "{}", ops.numerics_id());
    shapes.into_iter().for_each(|shape| assert_by_the_library(&mut ops, shape));
    // Weights that nobody prepared for are our own kernels'.
    let factors = Factors::new(shape(48, 64, true), 40);
    assert_same(&|| "another shape".into(), &factors.on(&mut ops, &factors.x), &factors.on(&mut cuda(), &factors.x));
    // The same is chosen again, and the choice is part of the name.
    assert_eq!(prepared(GemmChoice::Cublaslt, &shapes).numerics_id(), ops.numerics_id());
    assert_ne!(prepared(GemmChoice::Cublaslt, &shapes[..1]).numerics_id(), ops.numerics_id());
    shapes.into_iter().for_each(|shape| assert_our_own(&mut prepared(GemmChoice::Own, &shapes), shape));
}

fn back() {
    let shapes = [shape(64, 40, false).backwards(), shape(34, 23, false).backwards()];
    let mut ops = prepared(GemmChoice::Cublaslt, &shapes);
    assert!(ops.numerics_id().contains("-own+lt-"), "{}", ops.numerics_id());
    shapes.into_iter().for_each(|shape| assert_by_the_library(&mut ops, shape));
}

/// The emulator takes far longer for one of our kernels than the library for its loops.
fn faster() {
    let shapes = [shape(256, 64, true)];
    let mut ops = prepared(GemmChoice::Auto, &shapes);
    assert!(ops.numerics_id().contains("-lt-"), "{}", ops.numerics_id());
    assert_by_the_library(&mut ops, shapes[0]);
}

/// Engines that were opened with the library: the same bits in other batches, and others than our own kernels'.
fn served() {
    let dir = data("golden/llama-gqa1");
    let engine = |gemm: GemmChoice, change: fn(&mut EngineSettings)| {
        let options = EngineOptions { gemm, ..options(change) };
        open(&dir, &options, |_, _| {}).unwrap_or_else(|e| panic!("{e}")).engine
    };
    let (captures, launches) = (count(Count::Captures), count(Count::GraphLaunches));
    let large = engine(GemmChoice::Cublaslt, |_| {});
    let id = large.info().numerics_id.clone();
    assert!(id.contains("-lt-"), "{id}");
    let expected = run(&large, &prompts(320), 2, &params(), None);
    assert!(count(Count::Captures) > captures && count(Count::GraphLaunches) > launches + 4, "steps were to be recorded and replayed");
    let small = engine(GemmChoice::Cublaslt, |s| (s.max_sequences, s.max_batch_tokens) = (3, 40));
    assert_eq!(small.info().numerics_id, id, "the same algorithms for fewer rows");
    assert_same_samples("batches of 3, chunks of 40", &expected, &run(&small, &prompts(320), 2, &params(), None));
    let own = engine(GemmChoice::Own, |_| {});
    assert!(differ(&expected, &run(&own, &prompts(320), 2, &params(), None)), "our own kernels add in another order");
}

/// What the benchmark asks: every algorithm is timed, the last of them stands in the output.
fn limit() {
    let mut ops = cuda_with(CudaSettings::default());
    let factors = Factors::new(shape(64, 72, true), 40);
    let w = ops.matrix(&[view(&bf16_bytes(&factors.w), &[64, 72])]);
    let x = card_tensor(&ops, 40, 72, &factors.x);
    let mut out = ops.wide_tensor(40, 64);
    let seconds = ops.library_products(&x, &[&w], &mut out, |ops, start| ops.timed(start));
    assert!(seconds.is_some_and(|s| s > 0.0), "{seconds:?}");
    assert_same(&|| "the last product".into(), &ops.read(&out), &factors.by_lanes());
    assert_well(&ops);
}

/// No room for what is measured: our own kernels multiply, unless the library was asked for.
fn scarce() {
    let shapes = [shape(64, 64, false), shape(40, 136, true)];
    let mut ops = prepared(GemmChoice::Auto, &shapes);
    let why = ops.prepare_products(GemmChoice::Cublaslt, &products(&shapes)).unwrap_err().to_string();
    assert!(why.contains("cuBLASLt was tried with weights [64, 64] to bf16") && why.contains("--gemm own does without it"), "{why}");
    assert_well(&ops);
    shapes.into_iter().for_each(|shape| assert_our_own(&mut ops, shape));
}

fn lost() {
    let why = cuda().prepare_products(GemmChoice::Auto, &products(&[shape(64, 64, false)])).unwrap_err().to_string();
    assert!(why.contains("cuBLASLt was tried with weights [64, 64] to bf16"), "{why}");
}
