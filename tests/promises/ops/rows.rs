//! Operations whose rows have nothing to do with each other: norms, sums, rotation, activation.

use adaroll::ops::cpu::{CpuOps, Tensor};
use adaroll::ops::{Heads, Ops};

use crate::numbers::{Numbers, assert_same_bits, backends, instruction_sets, rows_of, same_bits, tensor_of, unwritten};

/// Half a unit in the last place, relative.
const HALF_ULP: f64 = 1.0 / 16_777_216.0;
const EPS: f32 = 1e-5;

type Run = Box<dyn Fn(&mut CpuOps, &[Vec<f32>]) -> Vec<Vec<f32>>>;
type Exact = Box<dyn Fn(&[f32]) -> Vec<(f64, f64)>>;

/// An operation on rows. A row of input holds everything that the operation reads for that row, one tensor after the other.
struct RowOp {
    name: String,
    cols: usize,
    run: Run,
    /// Each output of a row in f64, and how far from it the result may be.
    exact: Exact,
}

/// The columns `from .. from + cols` of all rows.
fn part(ops: &CpuOps, rows: &[Vec<f32>], from: usize, cols: usize) -> Tensor {
    tensor_of(ops, &rows.iter().map(|r| r[from..from + cols].to_vec()).collect::<Vec<_>>())
}

/// x / sqrt(mean(x^2) + eps) * weight. The bound: a chain of n / 16 additions and a tree of 4 in the sum, half of it after the root.
fn exact_rmsnorm(x: &[f64], weight: &[f32]) -> Vec<(f64, f64)> {
    let n = x.len() as f64;
    let scale = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / n + f64::from(EPS)).sqrt();
    let bound = (n / 32.0 + 8.0) * HALF_ULP;
    x.iter().zip(weight).map(|(v, w)| v * scale * f64::from(*w)).map(|y| (y, y.abs() * bound + 1e-40)).collect()
}

fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}

/// The operations on whole rows of `n` columns.
fn flat_ops(n: usize, numbers: &mut Numbers) -> Vec<RowOp> {
    let weight: Vec<f32> = numbers.row(n, 0.3).into_iter().map(|w| w + 1.0).collect();
    let bias = numbers.row(n, 1.0);
    let (w1, w2, w3, w4) = (weight.clone(), weight.clone(), weight.clone(), weight);
    let (b1, b2) = (bias.clone(), bias);
    let op = |name: &str, cols, run: Run, exact: Exact| RowOp { name: format!("{name} of {n}"), cols, run, exact };
    vec![
        op(
            "rmsnorm",
            n,
            Box::new(move |ops, rows| {
                let (x, mut out) = (tensor_of(ops, rows), unwritten(ops, rows.len(), n));
                ops.rmsnorm(&x, &w1, EPS, &mut out);
                rows_of(ops, &out, rows.len())
            }),
            Box::new(move |row| exact_rmsnorm(&widen(row), &w2)),
        ),
        op(
            "add_rmsnorm",
            2 * n,
            Box::new(move |ops, rows| {
                let (mut x, delta) = (part(ops, rows, 0, n), part(ops, rows, n, n));
                let mut out = unwritten(ops, rows.len(), n);
                ops.add_rmsnorm(&mut x, &delta, &w3, EPS, &mut out);
                let (sums, normed) = (rows_of(ops, &x, rows.len()), rows_of(ops, &out, rows.len()));
                sums.into_iter().zip(normed).map(|(s, y)| [s, y].concat()).collect()
            }),
            Box::new(move |row| {
                // The sum is rounded to f32 before the norm sees it.
                let sum: Vec<f32> = row[..n].iter().zip(&row[n..]).map(|(x, d)| x + d).collect();
                let mut all: Vec<(f64, f64)> = sum.iter().map(|&s| (f64::from(s), 0.0)).collect();
                all.extend(exact_rmsnorm(&widen(&sum), &w4));
                all
            }),
        ),
        op(
            "add",
            2 * n,
            Box::new(move |ops, rows| {
                let (mut x, delta) = (part(ops, rows, 0, n), part(ops, rows, n, n));
                ops.add(&mut x, &delta);
                rows_of(ops, &x, rows.len())
            }),
            Box::new(move |row| row[..n].iter().zip(&row[n..]).map(|(x, d)| (f64::from(x + d), 0.0)).collect()),
        ),
        op(
            "add_bias",
            n,
            Box::new(move |ops, rows| {
                let mut x = tensor_of(ops, rows);
                ops.add_bias(&mut x, &b1);
                rows_of(ops, &x, rows.len())
            }),
            Box::new(move |row| row.iter().zip(&b2).map(|(x, b)| (f64::from(x + b), 0.0)).collect()),
        ),
        op(
            "swiglu",
            2 * n,
            Box::new(move |ops, rows| {
                let (x, mut out) = (tensor_of(ops, rows), unwritten(ops, rows.len(), n));
                ops.swiglu(&x, &mut out);
                rows_of(ops, &out, rows.len())
            }),
            Box::new(move |row| row[..n].iter().zip(&row[n..]).map(|(g, u)| exact_swiglu(*g, *u)).collect()),
        ),
    ]
}

fn exact_swiglu(gate: f32, up: f32) -> (f64, f64) {
    let (g, u) = (f64::from(gate), f64::from(up));
    let y = g / (1.0 + (-g).exp()) * u;
    // Below about 1e-36 f32 runs out of exponents in the denominator, and below 1e-45 altogether.
    (y, y.abs() * 5e-7 + 1e-36 * u.abs() + 3e-45)
}

/// The operations on the heads of a fused projection.
fn head_ops(heads: Heads, numbers: &mut Numbers) -> Vec<RowOp> {
    let (cols, dim, rotated) = (heads.qkv_cols(), heads.dim, heads.query + heads.kv);
    let mut weight = || -> Vec<f32> { numbers.row(dim, 0.3).into_iter().map(|w| w + 1.0).collect() };
    let (q, k) = (weight(), weight());
    let (q1, k1) = (q.clone(), k.clone());
    let op = |name: &str, cols, run: Run, exact: Exact| RowOp { name: format!("{name} of {heads:?}"), cols, run, exact };
    vec![
        op(
            "qk_norm",
            cols,
            Box::new(move |ops, rows| {
                let mut x = tensor_of(ops, rows);
                ops.qk_norm(&mut x, heads, &q1, &k1, EPS);
                rows_of(ops, &x, rows.len())
            }),
            Box::new(move |row| {
                let head = |(h, x): (usize, &[f32])| match h {
                    h if h < heads.query => exact_rmsnorm(&widen(x), &q),
                    h if h < rotated => exact_rmsnorm(&widen(x), &k),
                    _ => x.iter().map(|&v| (f64::from(v), 0.0)).collect(),
                };
                row.chunks(dim).enumerate().flat_map(head).collect()
            }),
        ),
        op(
            "rope",
            cols + dim,
            Box::new(move |ops, rows| {
                let (mut x, angles) = (part(ops, rows, 0, cols), part(ops, rows, cols, dim));
                ops.rope(&mut x, heads, &angles);
                rows_of(ops, &x, rows.len())
            }),
            Box::new(move |row| {
                let (cos, sin) = row[cols..].split_at(dim / 2);
                let mut out = Vec::new();
                for (h, x) in row[..cols].chunks(dim).enumerate() {
                    for i in 0..dim {
                        if h >= rotated {
                            out.push((f64::from(x[i]), 0.0));
                            continue;
                        }
                        let pair = if i < dim / 2 { -f64::from(x[i + dim / 2]) } else { f64::from(x[i - dim / 2]) };
                        let a = f64::from(x[i]) * f64::from(cos[i % (dim / 2)]);
                        let b = pair * f64::from(sin[i % (dim / 2)]);
                        out.push((a + b, (a.abs() + b.abs()) * 2.0 * HALF_ULP));
                    }
                }
                out
            }),
        ),
    ]
}

/// (operations, numbers of rows): below and above the size that is worth waking threads for.
fn matrix() -> Vec<(Vec<RowOp>, Vec<usize>)> {
    let mut numbers = Numbers(11);
    let mut all: Vec<_> = (1..=40).chain([47, 64, 100, 255]).map(|n| (flat_ops(n, &mut numbers), vec![1, 2, 5])).collect();
    all.push((flat_ops(577, &mut numbers), vec![1, 3, 40]));
    all.push((flat_ops(960, &mut numbers), vec![1, 17]));
    all.push((flat_ops(9000, &mut numbers), vec![1, 3]));
    for dim in [2, 6, 16, 20, 40, 64, 80, 128] {
        for (query, kv) in [(1, 1), (4, 2), (7, 1), (9, 3)] {
            all.push((head_ops(Heads { query, kv, dim }, &mut numbers), vec![1, 3, if dim >= 64 { 30 } else { 6 }]));
        }
    }
    all
}

fn close(got: f32, want: f64, bound: f64) -> bool {
    (f64::from(got) - want).abs() <= bound
}

/// Every row operation is what its formula says, to f32's accuracy, for every shape, on every instruction set.
#[test]
fn row_operations_follow_their_formulas() {
    let mut numbers = Numbers(12);
    let mut sets = instruction_sets();
    for (ops_of_shape, counts) in matrix() {
        for op in ops_of_shape {
            for &count in &counts {
                let rows = numbers.rows(count, op.cols, 3.0);
                for (name, ops) in &mut sets {
                    for (r, (row, got)) in rows.iter().zip((op.run)(ops, &rows)).enumerate() {
                        let want = (op.exact)(row);
                        assert_eq!(want.len(), got.len());
                        for (i, (&got, (want, bound))) in got.iter().zip(want).enumerate() {
                            assert!(
                                close(got, want, bound),
                                "{}, row {r} of {count}, column {i}, {name}: {got:e} and not {want:e}",
                                op.name
                            );
                        }
                    }
                }
            }
        }
    }
}

/// A row's bits are the same on every instruction set, with one to three threads, among other rows in any order, and alone.
#[test]
fn row_operations_give_a_row_the_same_bits_everywhere() {
    let mut numbers = Numbers(13);
    let mut backends = backends();
    for (ops_of_shape, counts) in matrix() {
        for op in ops_of_shape {
            for &count in &counts {
                let rows = numbers.rows(count, op.cols, 3.0);
                let want = (op.run)(&mut backends[0].1, &rows);
                let reversed: Vec<Vec<f32>> = rows.iter().rev().cloned().collect();
                for (name, ops) in &mut backends {
                    assert_same_bits(&(op.run)(ops, &rows), &want, &|| format!("{}, {count} rows, {name}", op.name));
                    let mut back = (op.run)(ops, &reversed);
                    back.reverse();
                    assert_same_bits(&back, &want, &|| format!("{}, {count} rows in reverse, {name}", op.name));
                    let r = count / 2;
                    let alone = (op.run)(ops, &rows[r..=r]);
                    assert_same_bits(&alone, &want[r..=r], &|| format!("{}, row {r} of {count} alone, {name}", op.name));
                }
            }
        }
    }
}

/// A NaN in a row comes out as NaN in that row, an infinity as something that is not finite; no other row changes.
#[test]
fn a_bad_row_stays_bad_and_alone_in_row_operations() {
    let mut numbers = Numbers(14);
    let mut sets = instruction_sets();
    for (ops_of_shape, counts) in matrix() {
        for op in ops_of_shape {
            let count = counts[counts.len() - 1];
            let clean = numbers.rows(count, op.cols, 3.0);
            let want = (op.run)(&mut sets[0].1, &clean);
            for (name, ops) in &mut sets {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let (row, at) = (numbers.below(count), numbers.below(op.cols));
                    let mut x = clean.clone();
                    x[row][at] = bad;
                    let mut got = (op.run)(ops, &x);
                    let shows = |v: &f32| if bad.is_nan() { v.is_nan() } else { !v.is_finite() };
                    assert!(got[row].iter().any(shows), "{}: {bad} in column {at} was hidden, {name}", op.name);
                    got[row].clone_from(&want[row]);
                    assert_same_bits(&got, &want, &|| format!("{}, {bad} in row {row} of {count}, {name}", op.name));
                }
            }
        }
    }
}

/// The mean of squares runs in 16 lanes and a tree, to the bit: the order is part of the contract (and of the recorded numerics).
#[test]
fn rmsnorm_reduces_in_sixteen_lanes_and_a_tree() {
    let mut numbers = Numbers(15);
    for n in [1, 2, 15, 16, 17, 100, 577, 1000] {
        let (x, weight) = (numbers.row(n, 2.0), numbers.row(n, 1.0));
        let want = rmsnorm_in_lanes(&x, &weight, 16);
        for (name, mut ops) in instruction_sets() {
            let input = tensor_of(&ops, std::slice::from_ref(&x));
            let mut out = unwritten(&ops, 1, n);
            ops.rmsnorm(&input, &weight, EPS, &mut out);
            assert!(same_bits(&ops.read_row(&out, 0), &want), "{n} columns, {name}");
        }
    }
}

fn rmsnorm_in_lanes(x: &[f32], weight: &[f32], lanes: usize) -> Vec<f32> {
    let mut sums = vec![0f32; lanes];
    for (i, v) in x.iter().enumerate() {
        sums[i % lanes] = v.mul_add(*v, sums[i % lanes]);
    }
    let mut half = lanes / 2;
    while half > 0 {
        for j in 0..half {
            sums[j] += sums[j + half];
        }
        half /= 2;
    }
    let scale = 1.0 / (sums[0] / x.len() as f32 + EPS).sqrt();
    x.iter().zip(weight).map(|(v, w)| w * (v * scale)).collect()
}

/// The twin: a norm whose number of lanes follows the instruction set or the number of rows gives other bits.
#[test]
fn a_norm_with_other_lanes_would_change_bits() {
    let mut numbers = Numbers(15);
    for lanes in [1, 8, 32] {
        let changed = (0..20).filter(|_| {
            let (x, weight) = (numbers.row(577, 2.0), numbers.row(577, 1.0));
            !same_bits(&rmsnorm_in_lanes(&x, &weight, 16), &rmsnorm_in_lanes(&x, &weight, lanes))
        });
        assert!(changed.count() > 0, "{lanes} lanes");
    }
}

/// The activation is right at both ends: nothing overflows to NaN, and a very negative gate closes however negative it is.
#[test]
fn swiglu_holds_for_gates_of_any_size() {
    let sizes = [0.0, 1e-38, 1e-30, 1e-3, 1.0, 20.0, 80.0, 87.0, 87.5, 88.0, 88.3, 88.31, 89.0, 100.0, 1e3, 1e10, 1e30, 1e36, 3e38];
    let gates: Vec<f32> = sizes.iter().flat_map(|&g| [g, -g]).collect();
    for (name, mut ops) in instruction_sets() {
        for up in [0.9, -0.5, 1e-10, 0.0] {
            let row = [gates.clone(), vec![up; gates.len()]].concat();
            let (x, mut out) = (tensor_of(&ops, &[row]), unwritten(&ops, 1, gates.len()));
            ops.swiglu(&x, &mut out);
            for (&gate, got) in gates.iter().zip(ops.read_row(&out, 0)) {
                let (want, bound) = exact_swiglu(gate, up);
                assert!(close(got, want, bound), "gate {gate:e}, up {up:e}, {name}: {got:e} and not {want:e}");
            }
        }
    }
}

/// Angles are position times frequency rounded to f32, then cosine and sine to f32's accuracy; the same bits on every backend.
#[test]
fn rope_angles_round_as_the_reference_does() {
    let positions: Vec<u32> = (0..70).chain([1000, 4095, 32_767, 100_003, 131_071]).collect();
    for (half, base) in [(1, 10_000f32), (8, 10_000.0), (10, 10_000.0), (32, 500_000.0), (64, 1_000_000.0)] {
        let frequencies: Vec<f32> = (0..half).map(|i| base.powf(-(i as f32) / half as f32)).collect();
        let mut first: Option<Vec<Vec<f32>>> = None;
        for (name, mut ops) in backends() {
            let mut out = unwritten(&ops, positions.len(), 2 * half);
            ops.rope_angles(&positions, &frequencies, &mut out);
            let got = rows_of(&ops, &out, positions.len());
            let mut rounding_seen = false;
            for (p, row) in positions.iter().zip(&got) {
                for (i, f) in frequencies.iter().enumerate() {
                    let angle = f64::from(*p as f32 * f);
                    assert!(close(row[i], angle.cos(), 6.1e-8), "cos of {p} x {f}, {name}");
                    assert!(close(row[half + i], angle.sin(), 6.1e-8), "sin of {p} x {f}, {name}");
                    // The twin: an angle that is not rounded to f32 first gives another cosine.
                    rounding_seen |= !close(row[i], (f64::from(*p) * f64::from(*f)).cos(), 1e-5);
                }
            }
            assert!(rounding_seen || half == 1, "no angle here shows the rounding");
            let want = first.get_or_insert_with(|| got.clone());
            assert_same_bits(&got, want, &|| format!("half {half}, {name}"));
            let mut alone = unwritten(&ops, 1, 2 * half);
            ops.rope_angles(&positions[73..74], &frequencies, &mut alone);
            assert_same_bits(&rows_of(&ops, &alone, 1), &want[73..74], &|| format!("half {half} alone, {name}"));
        }
    }
}
