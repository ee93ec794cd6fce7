//! The way back of operations on single rows: norms, rotation, activation, embedding, biases; and copies.

use adaroll::ops::cuda::CudaOps;
use adaroll::ops::{Heads, Ops, TrainOps};
use libtest_mimic::Trial;

use super::{
    DIMS, alike, assert_all_same, assert_derivative, assert_sums, by_turns, columns, differ, differences, guarded, guarded_wide, held,
    norm_weights, vector, wide, within,
};
use crate::kit::{
    Numbers, assert_near, assert_same, assert_well, bf16_bytes, card_tensor, card_wide, combinations, cpu, cpu_tensor, cpu_values, cuda,
    rounded, trial, view,
};

const EPS: f32 = 1e-5;
/// Below, at and above a group of rows.
const ROWS: [usize; 5] = [1, 15, 16, 17, 40];
const WIDTHS: [usize; 9] = [1, 7, 8, 63, 96, 320, 1000, 2048, 8200];

pub fn trials() -> Vec<Trial> {
    vec![
        trial("backward::rows::rmsnorm_of_all_widths", rmsnorm_shapes),
        trial("backward::rows::rmsnorm_is_its_derivative", rmsnorm_derivative),
        trial("backward::rows::rmsnorm_goes_on_where_rows_were_cut", rmsnorm_goes_on),
        trial("backward::rows::qk_norm_of_all_heads", qk_norm_shapes),
        trial("backward::rows::qk_norm_is_its_derivative", qk_norm_derivative),
        trial("backward::rows::qk_norm_goes_on_where_rows_were_cut", qk_norm_goes_on),
        trial("backward::rows::biases_of_all_widths", bias_shapes),
        trial("backward::rows::biases_go_on_where_rows_were_cut", bias_goes_on),
        trial("backward::rows::rope_of_all_heads", rope_shapes),
        trial("backward::rows::rope_is_its_derivative", rope_derivative),
        trial("backward::rows::swiglu_of_all_widths", swiglu_shapes),
        trial("backward::rows::swiglu_is_its_derivative", swiglu_derivative),
        trial("backward::rows::swiglu_of_gates_of_any_size_is_finite", swiglu_extremes),
        trial("backward::rows::embeddings_add_rows_in_order", embed),
        trial("backward::rows::embeddings_go_on_where_rows_were_cut", embed_goes_on),
        trial("backward::rows::copy_clear_and_scatter", copies),
    ]
}

/// Numbers of a norm's way back: what it is given and what it adds to.
struct Norm {
    rows: usize,
    cols: usize,
    x: Vec<f32>,
    weight: Vec<f32>,
    dy: Vec<f32>,
    dx: Vec<f32>,
    dweight: Vec<f32>,
}

impl Norm {
    fn new(rows: usize, cols: usize) -> Norm {
        let mut numbers = Numbers((rows * 10_007 + cols) as u64);
        let [x, dy, dx] = [4.0, 1.0, 2.0].map(|scale| numbers.many(rows * cols, scale));
        Norm { rows, cols, x, weight: norm_weights(&mut numbers, cols), dy, dx, dweight: wide(&mut numbers, cols, 1.0) }
    }

    /// Rows of it.
    fn part(&self, rows: std::ops::Range<usize>) -> Norm {
        let of = |values: &[f32]| values[rows.start * self.cols..rows.end * self.cols].to_vec();
        let (x, dy, dx) = (of(&self.x), of(&self.dy), of(&self.dx));
        Norm { rows: rows.len(), cols: self.cols, x, weight: self.weight.clone(), dy, dx, dweight: self.dweight.clone() }
    }

    /// On the card, in parts that are cut at these rows: gradients of all rows, and the weights'.
    fn run(&self, ops: &mut CudaOps, cuts: &[usize]) -> Vec<Vec<f32>> {
        let weight = vector(ops, &self.weight);
        let (mut all, mut dweight) = (Vec::new(), ops.flat(&self.dweight));
        for cut in cuts.windows(2) {
            let part = self.part(cut[0]..cut[1]);
            let [x, dy, mut dx] = [&part.x, &part.dy, &part.dx].map(|values| guarded(ops, part.rows, self.cols, values));
            ops.rmsnorm_backward(&x, &weight, EPS, &dy, &mut dx, &mut dweight);
            all.extend(held(ops, &dx));
        }
        vec![all, ops.read_flat(&dweight)]
    }
}

fn rmsnorm_shapes() {
    for (i, shape) in combinations(&[&ROWS, &WIDTHS]).iter().enumerate() {
        let norm = Norm::new(shape[0], shape[1]);
        let (rows, cols) = (norm.rows, norm.cols);
        let what = || format!("{rows} x {cols}");
        let mut exact = cpu();
        let weight = exact.vector(&[view(&bf16_bytes(&norm.weight), &[cols])]);
        let [x, dy, mut dx] = [&norm.x, &norm.dy, &norm.dx].map(|values| cpu_tensor(&exact, rows, cols, values));
        let mut dweight = norm.dweight.clone();
        exact.rmsnorm_backward(&x, &weight, EPS, &dy, &mut dx, &mut dweight);
        let got = by_turns(i, &what, &|ops| norm.run(ops, &[0, rows]));
        let want = cpu_values(&dx);
        assert_near(&what, &got[0], &want, &rounded(&want));
        assert_sums(&|| format!("weight, {}", what()), rows, &got[1], &dweight);
        // A row alone.
        let last = by_turns(i, &what, &|ops| norm.part(rows - 1..rows).run(ops, &[0, 1]));
        assert_same(&|| format!("the last of {}", what()), &last[0], &got[0][(rows - 1) * cols..]);
    }
}

fn rmsnorm(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let scale = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + f64::from(EPS)).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
}

fn rmsnorm_derivative() {
    for (rows, cols) in [(3, 5), (18, 16), (2, 100)] {
        let norm = Norm::new(rows, cols);
        let what = || format!("{rows} x {cols}");
        let got = alike(&what, &|ops| norm.run(ops, &[0, rows]));
        let mut dweight: Vec<f64> = norm.dweight.iter().map(|v| f64::from(*v)).collect();
        for r in 0..rows {
            let row = |values: &[f32]| values[r * cols..][..cols].to_vec();
            let gradient = differences(&|v| rmsnorm(&v[..cols], &v[cols..]), &[row(&norm.x), norm.weight.clone()].concat(), &row(&norm.dy));
            let dx: Vec<f64> = gradient[..cols].iter().zip(row(&norm.dx)).map(|(g, dx)| g + f64::from(dx)).collect();
            assert_derivative(&|| format!("row {r} of {}", what()), &row(&got[0]), &dx, 1e-5);
            dweight.iter_mut().zip(&gradient[cols..]).for_each(|(to, g)| *to += g);
        }
        assert_derivative(&|| format!("weight, {}", what()), &got[1], &dweight, 1e-5);
    }
}

/// A run over rows that are cut at these places.
type Cut<'a> = &'a dyn Fn(&mut CudaOps, &[usize]) -> Vec<Vec<f32>>;

/// Whole, cut at multiples of a group of rows: the same bits; cut elsewhere, other bits of the sums, so that the equality says something.
fn goes_on(what: &str, rows: usize, run: Cut<'_>) {
    let cut_at = |cuts: &[usize]| alike(&|| format!("{what} cut at {cuts:?}"), &|ops| run(ops, cuts));
    let whole = cut_at(&[0, rows]);
    for cuts in [vec![0, 16, rows], vec![0, 48, 64, rows]] {
        assert_all_same(&|| format!("{what} cut at {cuts:?}"), &cut_at(&cuts), &whole);
    }
    let elsewhere = cut_at(&[0, 40, rows]);
    assert_same(&|| format!("{what}, gradients of rows"), &elsewhere[0], &whole[0]);
    for (i, (elsewhere, whole)) in elsewhere.iter().zip(&whole).enumerate().skip(1) {
        assert!(differ(elsewhere, whole), "{what}, sum {i}: a cut within a group changes no bit; the equalities above say nothing");
    }
}

fn rmsnorm_goes_on() {
    let norm = Norm::new(90, 130);
    goes_on("rmsnorm", 90, &|ops, cuts| norm.run(ops, cuts));
}

/// The same for heads.
struct HeadNorm {
    heads: Heads,
    rows: usize,
    raw: Vec<f32>,
    dqkv: Vec<f32>,
    weights: [Vec<f32>; 2],
    sums: [Vec<f32>; 2],
}

impl HeadNorm {
    fn new(heads: Heads, rows: usize) -> HeadNorm {
        let mut numbers = Numbers((heads.dim * 1000 + heads.query * 10 + rows) as u64);
        let cols = heads.qkv_cols();
        let (mut raw, dqkv) = (numbers.many(rows * cols, 3.0), numbers.many(rows * cols, 1.0));
        // Values have no norm.
        raw.chunks_mut(cols).for_each(|row| row[(heads.query + heads.kv) * heads.dim..].fill(f32::NAN));
        let weights = [0, 1].map(|_| norm_weights(&mut numbers, heads.dim));
        HeadNorm { heads, rows, raw, dqkv, weights, sums: [0, 1].map(|_| wide(&mut numbers, heads.dim, 1.0)) }
    }

    /// Gradients of all rows, and the two weights'.
    fn run(&self, ops: &mut CudaOps, cuts: &[usize]) -> Vec<Vec<f32>> {
        let cols = self.heads.qkv_cols();
        let [q, k] = self.weights.each_ref().map(|w| vector(ops, w));
        let [mut dq, mut dk] = self.sums.each_ref().map(|sums| ops.flat(sums));
        let mut all = Vec::new();
        for cut in cuts.windows(2) {
            let [raw, mut dqkv] =
                [&self.raw, &self.dqkv].map(|values| guarded(ops, cut[1] - cut[0], cols, &values[cut[0] * cols..cut[1] * cols]));
            ops.qk_norm_backward(&raw, self.heads, &q, &k, EPS, &mut dqkv, &mut dq, &mut dk);
            all.extend(held(ops, &dqkv));
        }
        vec![all, ops.read_flat(&dq), ops.read_flat(&dk)]
    }
}

fn qk_norm_shapes() {
    for (i, shape) in combinations(&[&ROWS, &DIMS, &[1, 3, 8], &[1, 2]]).iter().enumerate() {
        let heads = Heads { query: shape[2] * shape[3], kv: shape[3], dim: shape[1] };
        let norm = HeadNorm::new(heads, shape[0]);
        let (rows, cols, normed) = (norm.rows, heads.qkv_cols(), (heads.query + heads.kv) * heads.dim);
        let what = || format!("{rows} rows of {heads:?}");
        let mut exact = cpu();
        let [q, k] = norm.weights.each_ref().map(|w| exact.vector(&[view(&bf16_bytes(w), &[heads.dim])]));
        let (raw, mut dqkv) = (cpu_tensor(&exact, rows, cols, &norm.raw), cpu_tensor(&exact, rows, cols, &norm.dqkv));
        let [mut dq, mut dk] = norm.sums.clone();
        exact.qk_norm_backward(&raw, heads, &q, &k, EPS, &mut dqkv, &mut dq, &mut dk);
        let got = by_turns(i, &what, &|ops| norm.run(ops, &[0, rows]));
        let want = columns(&cpu_values(&dqkv), cols, 0..normed);
        assert_near(&what, &columns(&got[0], cols, 0..normed), &want, &rounded(&want));
        let values = |all: &[f32]| columns(all, cols, normed..cols);
        assert_same(&|| format!("values, {}", what()), &values(&got[0]), &values(&norm.dqkv));
        assert_sums(&|| format!("weight of queries, {}", what()), rows * heads.query, &got[1], &dq);
        assert_sums(&|| format!("weight of keys, {}", what()), rows * heads.kv, &got[2], &dk);
    }
}

fn qk_norm_derivative() {
    let heads = Heads { query: 3, kv: 1, dim: 16 };
    let (rows, cols, dim) = (3, heads.qkv_cols(), heads.dim);
    let norm = HeadNorm::new(heads, rows);
    let got = alike(&|| "qk_norm".into(), &|ops| norm.run(ops, &[0, rows]));
    let mut sums: Vec<f64> = norm.sums.concat().iter().map(|v| f64::from(*v)).collect();
    let forward = |v: &[f64]| {
        let (row, weights) = v.split_at(4 * dim);
        let head = |(h, x): (usize, &[f64])| rmsnorm(x, if h < heads.query { &weights[..dim] } else { &weights[dim..] });
        row.chunks(dim).enumerate().flat_map(head).collect()
    };
    for r in 0..rows {
        let normed = |values: &[f32]| values[r * cols..][..4 * dim].to_vec();
        let gradient = differences(&forward, &[normed(&norm.raw), norm.weights.concat()].concat(), &normed(&norm.dqkv));
        assert_derivative(&|| format!("row {r}"), &normed(&got[0]), &gradient[..4 * dim], 1e-5);
        sums.iter_mut().zip(&gradient[4 * dim..]).for_each(|(to, g)| *to += g);
    }
    assert_derivative(&|| "weights".into(), &got[1..].concat(), &sums, 1e-5);
}

fn qk_norm_goes_on() {
    let norm = HeadNorm::new(Heads { query: 6, kv: 2, dim: 64 }, 90);
    goes_on("qk_norm", 90, &|ops, cuts| norm.run(ops, cuts));
}

fn bias_shapes() {
    for (i, shape) in combinations(&[&[1, 15, 16, 17, 40, 256, 300], &[1, 7, 63, 130, 1000], &[0, 3, 8]]).iter().enumerate() {
        let (rows, cols, left) = (shape[0], shape[1], shape[2]);
        let all = left + cols + 2;
        let mut numbers = Numbers((rows * 10_007 + cols) as u64);
        let dy = within(&numbers.many(rows * cols, 1.0), cols, rows, all, 0, left);
        let start = wide(&mut numbers, cols, 1.0);
        let mut exact = cpu();
        let mut want = start.clone();
        let there = cpu_tensor(&exact, rows, all, &dy);
        exact.bias_backward(&there, left..left + cols, &mut want);
        let what = || format!("{rows} rows, {cols} columns from {left}");
        let got = by_turns(i, &what, &|ops| {
            let (dy, mut db) = (guarded(ops, rows, all, &dy), ops.flat(&start));
            ops.bias_backward(&dy, left..left + cols, &mut db);
            vec![ops.read_flat(&db)]
        });
        assert_sums(&what, rows, &got[0], &want);
    }
}

fn bias_goes_on() {
    // More groups than are loaded at a time.
    let (rows, cols) = (330, 200);
    let mut numbers = Numbers(4);
    let (dy, start) = (numbers.many(rows * cols, 1.0), wide(&mut numbers, cols, 1.0));
    goes_on("bias", rows, &|ops, cuts| {
        let mut db = ops.flat(&start);
        for cut in cuts.windows(2) {
            let dy = guarded(ops, cut[1] - cut[0], cols, &dy[cut[0] * cols..cut[1] * cols]);
            ops.bias_backward(&dy, 0..cols, &mut db);
        }
        vec![Vec::new(), ops.read_flat(&db)]
    });
}

fn frequencies(dim: usize) -> Vec<f32> {
    (0..dim / 2).map(|i| (1e4f64.powf(-(2.0 * i as f64) / dim as f64)) as f32).collect()
}

/// Cosines and sines have the CPU's bits, and so has everything but the last rounding.
fn rope_shapes() {
    for (i, shape) in combinations(&[&[1, 5], &DIMS, &[1, 3, 8], &[1, 2]]).iter().enumerate() {
        let heads = Heads { query: shape[2] * shape[3], kv: shape[3], dim: shape[1] };
        let (rows, cols, dim) = (shape[0], heads.qkv_cols(), heads.dim);
        let dqkv = Numbers((dim + rows) as u64).many(rows * cols, 1.0);
        let positions: Vec<u32> = (0..rows as u32).map(|r| 700 * r + 3).collect();
        let mut exact = cpu();
        let mut angles = exact.tensor(rows, dim);
        exact.rope_angles(&positions, &frequencies(dim), &mut angles);
        let mut want = cpu_tensor(&exact, rows, cols, &dqkv);
        exact.rope_backward(&mut want, heads, &angles);
        let what = || format!("{rows} rows of {heads:?}");
        let got = by_turns(i, &what, &|ops| {
            let (mut angles, mut d) = (ops.wide_tensor(rows, dim), guarded(ops, rows, cols, &dqkv));
            ops.rope_angles(&positions, &frequencies(dim), &mut angles);
            ops.rope_backward(&mut d, heads, &angles);
            vec![held(ops, &d)]
        });
        let (want, turned) = (cpu_values(&want), (heads.query + heads.kv) * dim);
        let part = |all: &[f32], range: std::ops::Range<usize>| columns(all, cols, range);
        assert_near(&what, &part(&got[0], 0..turned), &part(&want, 0..turned), &rounded(&part(&want, 0..turned)));
        assert_same(&|| format!("values, {}", what()), &part(&got[0], turned..cols), &part(&dqkv, turned..cols));
    }
}

fn rope_derivative() {
    let heads = Heads { query: 2, kv: 1, dim: 16 };
    let (cols, dim, half) = (heads.qkv_cols(), heads.dim, heads.dim / 2);
    let positions = [0u32, 1, 7, 500];
    let dqkv = Numbers(33).many(positions.len() * cols, 1.0);
    let got = alike(&|| "rope".into(), &|ops| {
        let (mut angles, mut d) = (ops.wide_tensor(positions.len(), dim), guarded(ops, positions.len(), cols, &dqkv));
        ops.rope_angles(&positions, &frequencies(dim), &mut angles);
        ops.rope_backward(&mut d, heads, &angles);
        vec![held(ops, &d)]
    });
    for (r, position) in positions.into_iter().enumerate() {
        let forward = |v: &[f64]| {
            let head = |(h, x): (usize, &[f64])| -> Vec<f64> {
                if h >= heads.query + heads.kv {
                    return x.to_vec();
                }
                let turn = |i: usize| f64::from(position as f32 * frequencies(dim)[i % half]).sin_cos();
                let (first, second) = x.split_at(half);
                let low = (0..half).map(|i| first[i] * turn(i).1 - second[i] * turn(i).0);
                let high = (0..half).map(|i| second[i] * turn(i).1 + first[i] * turn(i).0);
                low.chain(high).collect()
            };
            v.chunks(dim).enumerate().flat_map(head).collect()
        };
        let row = |values: &[f32]| values[r * cols..][..cols].to_vec();
        assert_derivative(&|| format!("position {position}"), &row(&got[0]), &differences(&forward, &vec![0.5; cols], &row(&dqkv)), 1e-5);
    }
}

/// Gradient of gate and up, and the output, of rows on the card; the output has the bits of the forward.
fn swiglu_on(ops: &mut CudaOps, rows: usize, cols: usize, x: &[f32], dact: &[f32]) -> Vec<Vec<f32>> {
    let (mut gate_up, mut d) = (guarded(ops, rows, 2 * cols, x), guarded(ops, rows, cols, dact));
    let mut out = ops.tensor(rows, cols);
    ops.swiglu(&gate_up, &mut out);
    ops.swiglu_backward(&mut gate_up, &mut d);
    assert_same(&|| format!("output of {rows} x {cols}"), &held(ops, &d), &ops.read(&out));
    vec![held(ops, &gate_up)]
}

fn swiglu_shapes() {
    for (i, shape) in combinations(&[&[1, 5, 17], &WIDTHS]).iter().enumerate() {
        let (rows, cols) = (shape[0], shape[1]);
        let mut numbers = Numbers((rows * 10_007 + cols) as u64);
        let (x, dact) = (numbers.many(rows * 2 * cols, 6.0), numbers.many(rows * cols, 1.0));
        let mut exact = cpu();
        let (mut want, mut d) = (cpu_tensor(&exact, rows, 2 * cols, &x), cpu_tensor(&exact, rows, cols, &dact));
        exact.swiglu_backward(&mut want, &mut d);
        let what = || format!("{rows} x {cols}");
        let got = by_turns(i, &what, &|ops| swiglu_on(ops, rows, cols, &x, &dact));
        let want = cpu_values(&want);
        for (name, part) in [("gates", 0..cols), ("ups", cols..2 * cols)] {
            let [got, want] = [&got[0], &want].map(|all| columns(all, 2 * cols, part.clone()));
            assert_near(&|| format!("{name}, {}", what()), &got, &want, &rounded(&want));
        }
    }
}

fn swiglu_derivative() {
    let (rows, cols) = (2, 40);
    let mut numbers = Numbers(34);
    let (x, dact) = (numbers.many(rows * 2 * cols, 3.0), numbers.many(rows * cols, 1.0));
    let got = alike(&|| "swiglu".into(), &|ops| swiglu_on(ops, rows, cols, &x, &dact));
    let forward = |v: &[f64]| (0..cols).map(|i| v[i] / (1.0 + (-v[i]).exp()) * v[cols + i]).collect();
    for r in 0..rows {
        let row = |values: &[f32], n: usize| values[r * n..][..n].to_vec();
        let want = differences(&forward, &row(&x, 2 * cols), &row(&dact, cols));
        assert_derivative(&|| format!("row {r}"), &row(&got[0], 2 * cols), &want, 1e-5);
    }
}

fn swiglu_extremes() {
    let gates: Vec<f32> = [0.0, 1e-30, 20.0, 88.3, 89.0, 1e3, 1e30].into_iter().flat_map(|g: f32| [g, -g]).collect();
    let n = gates.len();
    let got = alike(&|| "swiglu".into(), &|ops| swiglu_on(ops, 1, n, &[gates.clone(), vec![0.5; n]].concat(), &vec![1.0; n]));
    assert!(got[0].iter().all(|v| v.is_finite()), "{got:?}");
    // Open gates hand on the gradient; shut ones have none.
    assert_eq!(got[0][gates.iter().position(|g| *g == 1e3).unwrap()], 0.5);
    assert_eq!(got[0][gates.iter().position(|g| *g == -1e3).unwrap()], 0.0);
}

/// One chain of additions a number, as the CPU adds: the same bits.
fn embed() {
    for (i, (vocab, cols, rows)) in [(1, 1, 5), (7, 30, 20), (50, 130, 200), (2, 40, 100), (300, 257, 3)].into_iter().enumerate() {
        let mut numbers = Numbers(35 + i as u64);
        let ids: Vec<u32> = (0..rows).map(|_| numbers.below(vocab) as u32).collect();
        let dx = within(&numbers.many(rows * cols, 1.0), cols, rows + 3, cols, 2, 0);
        let start = wide(&mut numbers, vocab * cols, 1.0);
        let mut exact = cpu();
        let mut want = start.clone();
        let there = cpu_tensor(&exact, rows + 3, cols, &dx);
        exact.embed_backward(&ids, &there, 2, &mut want);
        let what = || format!("{rows} rows of {cols}, {vocab} tokens");
        let got = alike(&what, &|ops| {
            let (dx, mut table) = (guarded(ops, rows + 3, cols, &dx), ops.flat(&start));
            ops.embed_backward(&ids, &dx, 2, &mut table);
            ops.embed_backward(&[], &dx, 0, &mut table);
            vec![ops.read_flat(&table)]
        });
        assert_same(&what, &got[0], &want);
    }
}

/// The twin, sums of parts that are added up afterwards, has other bits.
fn embed_goes_on() {
    let (vocab, cols, rows) = (4, 100, 90);
    let mut numbers = Numbers(36);
    let ids: Vec<u32> = (0..rows).map(|_| numbers.below(vocab) as u32).collect();
    let (dx, start) = (numbers.many(rows * cols, 1.0), wide(&mut numbers, vocab * cols, 1.0));
    let run = |cuts: &[usize], apart: bool| {
        alike(&|| format!("cut at {cuts:?}"), &|ops| {
            let (dx, mut table) = (card_tensor(ops, rows, cols, &dx), ops.flat(&start));
            for cut in cuts.windows(2) {
                let part = &ids[cut[0]..cut[1]];
                if apart {
                    let mut own = ops.zeros(vocab * cols);
                    ops.embed_backward(part, &dx, cut[0], &mut own);
                    ops.add_flat(&mut table, &own);
                } else {
                    ops.embed_backward(part, &dx, cut[0], &mut table);
                }
            }
            vec![ops.read_flat(&table)]
        })
    };
    let whole = run(&[0, rows], false);
    for cuts in [vec![0, 16, rows], vec![0, 48, 64, rows]] {
        assert_same(&|| format!("cut at {cuts:?}"), &run(&cuts, false)[0], &whole[0]);
    }
    assert!(differ(&run(&[0, 48, rows], true)[0], &whole[0]), "sums of parts have the bits of the whole; the equalities above say nothing");
}

fn copies() {
    for cols in [1, 9, 96, 130, 1000] {
        let mut numbers = Numbers(cols as u64);
        let (x, y) = (numbers.many(3 * cols, 2.0), numbers.many(7 * cols, 2.0));
        let got = alike(&|| format!("{cols} columns"), &|ops| {
            let mut out = guarded(ops, 7, cols, &y);
            let x = guarded(ops, 3, cols, &x);
            ops.scatter_rows(&x, &[5, 0, 6], &mut out);
            let mut copy = guarded(ops, 3, cols, &vec![f32::NAN; 3 * cols]);
            ops.copy(&x, &mut copy);
            let mut cleared = guarded(ops, 7, cols, &y);
            ops.clear(&mut cleared);
            vec![held(ops, &out), held(ops, &copy), held(ops, &cleared)]
        });
        let row = |values: &[f32], r: usize| values[r * cols..][..cols].to_vec();
        let scattered = [row(&x, 1), row(&y, 1), row(&y, 2), row(&y, 3), row(&y, 4), row(&x, 0), row(&x, 2)].concat();
        assert_all_same(&|| format!("{cols} columns"), &got, &[scattered, x.clone(), vec![0.0; 7 * cols]]);
    }
    // f32 tensors too.
    let values = wide(&mut Numbers(2), 2 * 11, 1.0);
    let mut ops = cuda();
    let x = card_wide(&ops, 2, 11, &values);
    let mut out = guarded_wide(&ops, 2, 11, &[f32::NAN; 22]);
    ops.copy(&x, &mut out);
    assert_same(&|| "f32".into(), &held(&ops, &out), &values);
    ops.clear(&mut out);
    assert_same(&|| "f32 cleared".into(), &held(&ops, &out), &[0.0; 22]);
    assert_well(&ops);
}
