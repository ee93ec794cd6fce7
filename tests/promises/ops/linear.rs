//! `linear`: matrix products.

use adaroll::model::Dtype;
use adaroll::ops::Ops;
use adaroll::ops::cpu::Isa;

use crate::numbers::{Numbers, Stored, assert_same_bits, backends, instruction_sets, rows_of, tensor_of, unwritten};

/// (outputs, inputs): odd, below 16, multiples of 16 and not, more and fewer inputs than one widened block of 128, several tasks.
const SHAPES: [(usize, usize); 16] = [
    (1, 1),
    (3, 5),
    (5, 1),
    (16, 16),
    (17, 15),
    (31, 33),
    (48, 129),
    (50, 127),
    (80, 128),
    (100, 256),
    (7, 700),
    (2, 641),
    (130, 257),
    (33, 385),
    (64, 64),
    (200, 40),
];

const MOST_ROWS: usize = 100;

/// Numbers of rows: all heights of a tile, and one and several tiles.
fn row_counts(isa: Isa) -> Vec<usize> {
    match isa {
        // Software FMA is slow; its largest tile has four rows.
        Isa::Scalar => vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 33],
        _ => (1..=33).chain([64, MOST_ROWS]).collect(),
    }
}

/// The contract: one chain of f32 FMA over ascending inputs, starting at +0.
fn chain(x: &[f32], w: &[f32]) -> f32 {
    x.iter().zip(w).fold(0.0, |sum, (x, w)| x.mul_add(*w, sum))
}

/// Cuts `outputs` rows into slabs.
fn slab_sizes(outputs: usize) -> Vec<usize> {
    match outputs {
        1 | 2 => vec![outputs],
        3..=20 => vec![1, outputs - 1],
        _ => vec![outputs / 3, 5, outputs - outputs / 3 - 5],
    }
}

/// Slabs of the given types, one below the other, and their values as rows.
fn slabs(numbers: &mut Numbers, dtypes: &[Dtype], outputs: usize, inputs: usize) -> (Vec<Stored>, Vec<Vec<f32>>) {
    let stored = slab_sizes(outputs).into_iter().enumerate();
    let stored: Vec<Stored> =
        stored.map(|(i, n)| Stored::new(dtypes[i % dtypes.len()], &[n, inputs], &numbers.row(n * inputs, 0.7))).collect();
    let rows = stored.iter().flat_map(|s| s.values.chunks(inputs).map(<[f32]>::to_vec)).collect();
    (stored, rows)
}

/// Every element is one chain of f32 FMA, near the exact product: for every shape, type of weights, number of rows, instruction set and
/// number of threads. The expected rows are computed once, so a row's bits are also the same alone and among others.
fn check(dtypes: &[Dtype], seed: u64) {
    let mut numbers = Numbers(seed);
    let mut backends = backends();
    for (outputs, inputs) in SHAPES {
        let (stored, w) = slabs(&mut numbers, dtypes, outputs, inputs);
        let views: Vec<_> = stored.iter().map(Stored::view).collect();
        let x = numbers.rows(MOST_ROWS, inputs, 1.0);
        let want: Vec<Vec<f32>> = x.iter().map(|x| w.iter().map(|w| chain(x, w)).collect()).collect();
        for (x, want) in x.iter().zip(&want) {
            for (w, want) in w.iter().zip(want) {
                let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                let (exact, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
                let bound = (inputs + 1) as f64 * 2f64.powi(-24) * size + 1e-40;
                assert!((f64::from(*want) - exact).abs() <= bound, "{outputs} x {inputs}: {want} and not {exact}");
            }
        }
        for (name, ops) in &mut backends {
            let matrix = ops.matrix(&views);
            for m in row_counts(ops.isa()) {
                let rows = (MOST_ROWS - m) / 2..(MOST_ROWS - m) / 2 + m;
                let input = tensor_of(ops, &x[rows.clone()]);
                let mut out = unwritten(ops, m, outputs);
                ops.linear(&input, &matrix, &mut out);
                let got = rows_of(ops, &out, m);
                assert_same_bits(&got, &want[rows], &|| format!("{m} rows x {inputs} inputs -> {outputs} outputs of {dtypes:?}, {name}"));
            }
        }
    }
}

#[test]
fn products_with_bf16_weights_are_one_chain_whatever_the_batch() {
    check(&[Dtype::Bf16], 1);
}

#[test]
fn products_with_f32_weights_are_one_chain_whatever_the_batch() {
    check(&[Dtype::F32], 2);
}

#[test]
fn products_with_f16_weights_are_one_chain_whatever_the_batch() {
    check(&[Dtype::F16], 3);
}

/// Slabs of different types in one matrix keep their exact values.
#[test]
fn products_with_mixed_slabs_are_one_chain_whatever_the_batch() {
    check(&[Dtype::Bf16, Dtype::F16, Dtype::F32], 4);
}

/// The twin: products as they are usually written, with eight partial sums for few rows and one for many, give a row other bits when
/// another batch is around it. So the equalities above are not vacuous on such numbers.
#[test]
fn a_product_that_splits_its_inputs_by_batch_size_would_change_bits() {
    let usual = |rows: usize, x: &[f32], w: &[f32]| {
        let lanes = if rows <= 4 { 8 } else { 1 };
        let mut sums = vec![0f32; lanes];
        for (i, (x, w)) in x.iter().zip(w).enumerate() {
            sums[i % lanes] = x.mul_add(*w, sums[i % lanes]);
        }
        sums.iter().sum::<f32>()
    };
    let mut numbers = Numbers(1);
    for (outputs, inputs) in SHAPES.into_iter().filter(|s| s.0 >= 16 && s.1 >= 16) {
        let (_, w) = slabs(&mut numbers, &[Dtype::Bf16], outputs, inputs);
        let x = numbers.row(inputs, 1.0);
        let changed = w.iter().filter(|w| usual(1, &x, w).to_bits() != usual(100, &x, w).to_bits()).count();
        assert!(changed > 0, "{outputs} x {inputs}");
    }
}

/// A NaN or an infinity in one row is not hidden and does not reach another row, in small and in large batches.
#[test]
fn a_bad_row_stays_bad_and_alone_in_products() {
    let mut numbers = Numbers(5);
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let (outputs, inputs) = (37, 150);
        // No weight is zero: an infinity times zero would be a NaN, which is right, but another test.
        let weights: Vec<f32> = numbers.row(outputs * inputs, 0.7).into_iter().map(|w| if w.abs() < 0.01 { 0.01 } else { w }).collect();
        let stored = Stored::new(dtype, &[outputs, inputs], &weights);
        for (name, mut ops) in instruction_sets() {
            let matrix = ops.matrix(&[stored.view()]);
            for m in [1, 2, 4, 5, 14, 15, 40] {
                let clean = numbers.rows(m, inputs, 1.0);
                let mut run = |x: &[Vec<f32>]| {
                    let input = tensor_of(&ops, x);
                    let mut out = unwritten(&ops, m, outputs);
                    ops.linear(&input, &matrix, &mut out);
                    rows_of(&ops, &out, m)
                };
                let want = run(&clean);
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let (row, at) = (numbers.below(m), numbers.below(inputs));
                    let mut x = clean.clone();
                    x[row][at] = bad;
                    let mut got = run(&x);
                    assert!(got[row].iter().all(|v| if bad.is_nan() { v.is_nan() } else { v.is_infinite() }), "{m} rows, {bad}, {name}");
                    got[row].clone_from(&want[row]);
                    assert_same_bits(&got, &want, &|| format!("{bad} in row {row} of {m}, {name}"));
                }
            }
        }
    }
}
