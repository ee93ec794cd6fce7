//! The way back and the optimizer on the card: against the CPU's operations, against finite differences, and bit for bit against themselves in other
//! orders of warps, beside other rows, and in batches that were cut.

mod attention;
mod products;
mod rows;
mod score;
mod update;

use adaroll::ops::Ops;
use adaroll::ops::cuda::{CudaOps, Matrix, Tensor, Vector};
use libtest_mimic::Trial;

use crate::emulator::{orders, set_order};
use crate::kit::{Numbers, assert_same, assert_well, bf16_bytes, cuda, full, rounded, view};

/// All of them.
pub fn trials() -> Vec<Trial> {
    [products::trials(), rows::trials(), attention::trials(), score::trials(), update::trials()].into_iter().flatten().collect()
}

const DIMS: [usize; 7] = [16, 32, 64, 80, 96, 128, 256];

/// Runs in every order of warps, and in the first one once more on the same backend: all runs give the same bits, which come back.
fn alike(what: &dyn Fn() -> String, run: &dyn Fn(&mut CudaOps) -> Vec<Vec<f32>>) -> Vec<Vec<f32>> {
    alike_on(orders(), &cuda, what, run)
}

/// Runs shape `i` of many in one order of warps, which takes turns; in all of them where whole products of shapes are wanted.
fn by_turns(i: usize, what: &dyn Fn() -> String, run: &dyn Fn(&mut CudaOps) -> Vec<Vec<f32>>) -> Vec<Vec<f32>> {
    alike_on(turn(i), &cuda, what, run)
}

/// The orders of shape `i`.
fn turn(i: usize) -> &'static [u32] {
    if full() { orders() } else { &orders()[i % orders().len()..][..1] }
}

fn alike_on(
    orders: &[u32],
    backend: &dyn Fn() -> CudaOps,
    what: &dyn Fn() -> String,
    run: &dyn Fn(&mut CudaOps) -> Vec<Vec<f32>>,
) -> Vec<Vec<f32>> {
    let repeats = orders.len() == crate::emulator::orders().len();
    let mut first: Option<Vec<Vec<f32>>> = None;
    let mut check = |ops: &mut CudaOps, how: &str| {
        let got = run(ops);
        assert_well(ops);
        match &first {
            None => first = Some(got),
            Some(first) => assert_all_same(&|| format!("{}, {how}", what()), &got, first),
        }
    };
    for (i, &order) in orders.iter().enumerate() {
        set_order(order);
        let mut ops = backend();
        check(&mut ops, &format!("order {order}"));
        if i == 0 && repeats {
            check(&mut ops, "again");
        }
    }
    set_order(0);
    first.unwrap()
}

/// The same bits in every part.
fn assert_all_same(what: &dyn Fn() -> String, a: &[Vec<f32>], b: &[Vec<f32>]) {
    assert_eq!(a.len(), b.len(), "{}", what());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert_same(&|| format!("{}, part {i}", what()), a, b);
    }
}

/// Whether any bit is another one: what a twin must show.
fn differ(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).any(|(a, b)| a.to_bits() != b.to_bits())
}

/// Sums in f32 of so many terms of the size of 1, in another order than those they are compared with. What is left where terms cancel is as far from
/// exact as if they had not.
fn assert_sums(what: &dyn Fn() -> String, terms: usize, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{}", what());
    let square = |v: f64| v * v;
    let error: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
    let size = want.iter().map(|w| square(f64::from(*w))).sum::<f64>() + (terms * want.len()) as f64;
    assert!(error <= 1e-12 * size, "{}: squared error {error:.2e} where numbers and terms have {size:.2e}", what());
}

/// Numbers of f32, not on bf16's grid.
fn wide(numbers: &mut Numbers, n: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|_| ((numbers.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale).collect()
}

/// Norm weights near 1.
fn norm_weights(numbers: &mut Numbers, n: usize) -> Vec<f32> {
    rounded(&numbers.many(n, 0.5).iter().map(|w| 1.0 + w).collect::<Vec<f32>>())
}

/// Weights on the card.
fn matrix(ops: &CudaOps, outputs: usize, inputs: usize, values: &[f32]) -> Matrix {
    ops.matrix(&[view(&bf16_bytes(values), &[outputs, inputs])])
}

/// A vector on the card.
fn vector(ops: &CudaOps, values: &[f32]) -> Vector {
    ops.vector(&[view(&bf16_bytes(values), &[values.len()])])
}

/// Rows of memory behind a guarded tensor's own: they hold NaN, and nobody may read or write them.
const BEHIND: usize = 2;

/// A tensor of the card that holds these values, with rows of NaN behind them.
fn guarded(ops: &CudaOps, rows: usize, cols: usize, values: &[f32]) -> Tensor {
    guard(ops, ops.tensor(rows + BEHIND, cols), values)
}

/// The same in f32.
fn guarded_wide(ops: &CudaOps, rows: usize, cols: usize, values: &[f32]) -> Tensor {
    guard(ops, ops.wide_tensor(rows + BEHIND, cols), values)
}

fn guard(ops: &CudaOps, mut t: Tensor, values: &[f32]) -> Tensor {
    let (rows, cols) = t.shape();
    ops.write(&mut t, &vec![f32::NAN; rows * cols]);
    ops.set_rows(&mut t, rows - BEHIND);
    ops.write(&mut t, values);
    t
}

/// What a guarded tensor holds; the rows behind it are as they were.
fn held(ops: &CudaOps, t: &Tensor) -> Vec<f32> {
    let rows = t.shape().0;
    assert!((rows..rows + BEHIND).all(|r| ops.read_row(t, r).iter().all(|v| v.is_nan())), "rows behind a tensor were written");
    ops.read(t)
}

/// Puts rows into a larger array of NaN, `columns` of them from a row and a column on.
fn within(values: &[f32], columns: usize, rows: usize, cols: usize, row: usize, column: usize) -> Vec<f32> {
    let mut all = vec![f32::NAN; rows * cols];
    for (r, values) in values.chunks(columns).enumerate() {
        all[(row + r) * cols + column..][..columns].copy_from_slice(values);
    }
    all
}

/// Columns of rows.
fn columns(values: &[f32], cols: usize, range: std::ops::Range<usize>) -> Vec<f32> {
    values.chunks(cols).flat_map(|row| row[range.clone()].to_vec()).collect()
}

/// Gradient of `sum(slopes * f(x))` by central differences, in f64: good to about 1e-9 of the values' size.
fn differences(f: &dyn Fn(&[f64]) -> Vec<f64>, x: &[f32], slopes: &[f32]) -> Vec<f64> {
    let mut x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    let sum = |x: &[f64]| f(x).iter().zip(slopes).map(|(y, s)| y * f64::from(*s)).sum::<f64>();
    (0..x.len())
        .map(|i| {
            let (at, step) = (x[i], 1e-5);
            x[i] = at + step;
            let up = sum(&x);
            x[i] = at - step;
            let down = sum(&x);
            x[i] = at;
            (up - down) / (2.0 * step)
        })
        .collect()
}

/// Near an exact gradient: each number within a rounding to bf16 and `bound` of the largest.
fn assert_derivative(what: &dyn Fn() -> String, got: &[f32], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len(), "{}", what());
    let size = want.iter().fold(1e-3f64, |a, b| a.max(b.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*g) - w).abs();
        assert!(error <= w.abs() / 256.0 + bound * size, "{}: number {i} is {g} and not {w}", what());
    }
}
