//! The way back of attention over whole sequences: every head size, lengths around the edges of tiles, sequences alone and among others.

use adaroll::ops::cuda::CudaOps;
use adaroll::ops::{Batch, Heads, Ops, Segment, TrainOps};
use half::bf16;
use libtest_mimic::Trial;

use super::{DIMS, alike, assert_derivative, by_turns, columns, differences, guarded, held};
use crate::kit::{Numbers, assert_near, assert_same, combinations, cpu, cpu_tensor, cpu_values, full, nmse, rounded, trial};

const GROUPS: [usize; 5] = [1, 3, 4, 7, 8];

pub fn trials() -> Vec<Trial> {
    vec![
        trial("backward::attention::heads_of_all_sizes", sizes),
        trial("backward::attention::lengths_across_the_edges_of_tiles", edges),
        trial("backward::attention::is_its_derivative", derivative),
        trial("backward::attention::a_sequence_has_the_same_bits_alone_and_among_others", alone),
        trial("backward::attention::rows_that_pad_a_sequence_change_nothing", padded),
        trial("backward::attention::one_position_hands_on_its_gradient", one_position),
        trial("backward::attention::very_large_and_equal_scores", extremes),
    ]
}

/// A sequence: projections `[positions, qkv]`, what attention gave and the gradient of that, `[positions, query heads * dim]`.
#[derive(Clone)]
struct Sequence {
    positions: usize,
    qkv: Vec<f32>,
    out: Vec<f32>,
    dout: Vec<f32>,
}

impl Sequence {
    fn new(numbers: &mut Numbers, heads: Heads, positions: usize, scale: f32) -> Sequence {
        let qkv = numbers.many(positions * heads.qkv_cols(), scale);
        let dout = numbers.many(positions * heads.query * heads.dim, 1.0);
        Sequence::of(heads, qkv, dout)
    }

    /// As the card stores the output: in bf16.
    fn of(heads: Heads, qkv: Vec<f32>, dout: Vec<f32>) -> Sequence {
        let exact = attention(&qkv.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>(), heads);
        let out = exact.iter().map(|v| bf16::from_f64(*v).to_f32()).collect();
        Sequence { positions: qkv.len() / heads.qkv_cols(), qkv, out, dout }
    }
}

/// Causal attention of one sequence, `[positions, query heads * dim]`.
fn attention(qkv: &[f64], heads: Heads) -> Vec<f64> {
    let (dim, group, cols) = (heads.dim, heads.query / heads.kv, heads.qkv_cols());
    let head = |t: usize, h: usize| &qkv[t * cols + h * dim..][..dim];
    let mut out = Vec::new();
    for t in 0..qkv.len() / cols {
        for h in 0..heads.query {
            let dot = |s: usize| head(t, h).iter().zip(head(s, heads.query + h / group)).map(|(a, b)| a * b).sum::<f64>();
            let scores: Vec<f64> = (0..=t).map(|s| dot(s) / (dim as f64).sqrt()).collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let value = |d: usize| (0..=t).map(|s| weights[s] / sum * head(s, heads.query + heads.kv + h / group)[d]).sum::<f64>();
            out.extend((0..dim).map(value));
        }
    }
    out
}

/// Where sequences lie in a batch: each at a multiple of so many rows. Rows between them are nobody's.
fn batch(sequences: &[Sequence], at_multiples_of: usize) -> (Batch, usize) {
    let mut batch = Batch::default();
    let mut rows = 0usize;
    for s in sequences {
        let row = rows.next_multiple_of(at_multiples_of);
        batch.segments.push(Segment { row, rows: s.positions, start: 0, table: 0 });
        rows = row + s.positions;
    }
    batch.tokens = vec![0; rows];
    (batch, rows)
}

/// One part of all sequences as rows of a batch; rows that are nobody's hold NaN.
fn laid_out(sequences: &[Sequence], batch: &Batch, rows: usize, cols: usize, part: impl Fn(&Sequence) -> &[f32]) -> Vec<f32> {
    let mut all = vec![f32::NAN; rows * cols];
    for (s, segment) in sequences.iter().zip(&batch.segments) {
        all[segment.row * cols..][..segment.rows * cols].copy_from_slice(part(s));
    }
    all
}

/// Gradients on the card, those of each sequence apart. Rows that are nobody's must stay as they are.
fn on_card(ops: &mut CudaOps, heads: Heads, sequences: &[Sequence], at_multiples_of: usize) -> Vec<Vec<f32>> {
    let (batch, rows) = batch(sequences, at_multiples_of);
    let (cols, width) = (heads.qkv_cols(), heads.query * heads.dim);
    let qkv = guarded(ops, rows, cols, &laid_out(sequences, &batch, rows, cols, |s| &s.qkv));
    let out = guarded(ops, rows, width, &laid_out(sequences, &batch, rows, width, |s| &s.out));
    let dout = guarded(ops, rows, width, &laid_out(sequences, &batch, rows, width, |s| &s.dout));
    let mut dqkv = guarded(ops, rows, cols, &vec![f32::NAN; rows * cols]);
    ops.attention_backward(&qkv, heads, &batch, &out, &dout, &mut dqkv);
    let mut all = held(ops, &dqkv);
    let of = |s: &Segment| s.row * cols..(s.row + s.rows) * cols;
    let each: Vec<Vec<f32>> = batch.segments.iter().map(|s| all[of(s)].to_vec()).collect();
    batch.segments.iter().for_each(|s| all[of(s)].fill(f32::NAN));
    assert!(all.iter().all(|v| v.is_nan()), "rows that are nobody's were written");
    each
}

/// The CPU's operation on the same numbers.
fn exact(heads: Heads, s: &Sequence) -> Vec<f32> {
    let mut ops = cpu();
    let (batch, rows) = batch(std::slice::from_ref(s), 1);
    let (qkv, dout) = (cpu_tensor(&ops, rows, heads.qkv_cols(), &s.qkv), cpu_tensor(&ops, rows, heads.query * heads.dim, &s.dout));
    let mut dqkv = ops.tensor(rows, heads.qkv_cols());
    ops.attention_backward(&qkv, heads, &batch, &dout, &dout, &mut dqkv);
    cpu_values(&dqkv)
}

/// A straightforward computation in bf16: probabilities and gradients of scores are rounded, then multiplied with what they weigh.
fn straightforward(heads: Heads, s: &Sequence) -> Vec<f32> {
    let (dim, group, cols, width) = (heads.dim, heads.query / heads.kv, heads.qkv_cols(), heads.query * heads.dim);
    let scale = 1.0 / (dim as f32).sqrt();
    let round = |v: f32| bf16::from_f32(v).to_f32();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let add = |to: &mut [f32], weight: f32, from: &[f32]| to.iter_mut().zip(from).for_each(|(to, v)| *to += weight * v);
    let part = |row: usize, head: usize| &s.qkv[row * cols + head * dim..][..dim];
    let mut d = vec![0f32; s.qkv.len()];
    for p in 0..s.positions {
        for h in 0..heads.query {
            let (key, value) = (heads.query + h / group, heads.query + heads.kv + h / group);
            let (out, dout) = (&s.out[p * width + h * dim..][..dim], &s.dout[p * width + h * dim..][..dim]);
            let scores: Vec<f32> = (0..=p).map(|r| dot(part(p, h), part(r, key)) * scale).collect();
            let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|x| (x - top).exp()).collect();
            let (total, mean) = (weights.iter().sum::<f32>(), dot(out, dout));
            for (r, w) in weights.iter().enumerate() {
                let w = w / total;
                let slope = round(w * (dot(dout, part(r, value)) - mean)) * scale;
                add(&mut d[r * cols + value * dim..][..dim], round(w), dout);
                add(&mut d[r * cols + key * dim..][..dim], slope, part(p, h));
                add(&mut d[p * cols + h * dim..][..dim], slope, part(r, key));
            }
        }
    }
    rounded(&d)
}

/// Queries, keys and values apart: each has a size of its own.
fn assert_parts(what: &dyn Fn() -> String, heads: Heads, sequences: &[Sequence], got: &[Vec<f32>]) {
    let (exact, plain) = (
        sequences.iter().flat_map(|s| exact(heads, s)).collect::<Vec<f32>>(),
        sequences.iter().flat_map(|s| straightforward(heads, s)).collect::<Vec<f32>>(),
    );
    let got = got.concat();
    let ends = [0, heads.query * heads.dim, (heads.query + heads.kv) * heads.dim, heads.qkv_cols()];
    for (i, name) in ["queries", "keys", "values"].into_iter().enumerate() {
        let [got, exact, plain] = [&got, &exact, &plain].map(|all| columns(all, heads.qkv_cols(), ends[i]..ends[i + 1]));
        assert_near(&|| format!("gradients of {name}, {}", what()), &got, &exact, &plain);
    }
}

fn sizes() {
    for (i, shape) in combinations(&[&DIMS, &GROUPS]).iter().enumerate() {
        let kv = if shape[0] < 64 { 2 } else { 1 };
        let heads = Heads { query: kv * shape[1], kv, dim: shape[0] };
        let mut numbers = Numbers((shape[0] * 10 + shape[1]) as u64);
        let s = [Sequence::new(&mut numbers, heads, if full() { 150 } else { 40 }, 1.2)];
        let what = || format!("{heads:?}");
        let got = by_turns(i, &what, &|ops| on_card(ops, heads, &s, 16));
        assert_parts(&what, heads, &s, &got);
    }
}

/// Lengths of which some fill groups of 16 rows and tiles of 64, and others do not; each beside one of another length, also where sequences do not
/// start at a multiple of 16 rows.
fn edges() {
    let shapes = combinations(&[&[2, 15, 16, 17, 31, 48, 63, 64, 65, 127, 128, 129, 193], &GROUPS, &[16, 64], &[1, 16]]);
    for (i, shape) in shapes.iter().enumerate() {
        let heads = Heads { query: shape[1], kv: 1, dim: shape[2] };
        let mut numbers = Numbers((shape[0] * 100 + shape[1]) as u64);
        let sequences = [shape[0], 6].map(|n| Sequence::new(&mut numbers, heads, n, 1.2));
        let what = || format!("{heads:?}, {} positions, sequences at multiples of {}", shape[0], shape[3]);
        let got = by_turns(i, &what, &|ops| on_card(ops, heads, &sequences, shape[3]));
        assert_parts(&what, heads, &sequences, &got);
    }
}

fn derivative() {
    for (heads, positions) in [(Heads { query: 2, kv: 1, dim: 16 }, 9), (Heads { query: 3, kv: 3, dim: 16 }, 5)] {
        let s = Sequence::new(&mut Numbers(41), heads, positions, 1.2);
        let got = alike(&|| format!("{heads:?}"), &|ops| on_card(ops, heads, std::slice::from_ref(&s), 16));
        let want = differences(&|v| attention(v, heads), &s.qkv, &s.dout);
        assert_derivative(&|| format!("{heads:?}"), &got[0], &want, 0.01);
        let want: Vec<f32> = want.iter().map(|v| *v as f32).collect();
        let error = nmse(&got[0], &want);
        assert!(error < 1e-4, "{heads:?}: normalised mean square error {error:.2e}");
    }
}

fn alone() {
    let heads = Heads { query: 6, kv: 2, dim: 64 };
    let mut numbers = Numbers(42);
    let sequences = [5, 40, 100, 16].map(|n| Sequence::new(&mut numbers, heads, n, 1.2));
    let together = alike(&|| "together".into(), &|ops| on_card(ops, heads, &sequences, 16));
    let close = alike(&|| "together, closer".into(), &|ops| on_card(ops, heads, &sequences, 1));
    for (i, s) in sequences.iter().enumerate() {
        let alone = by_turns(i, &|| "alone".into(), &|ops| on_card(ops, heads, std::slice::from_ref(s), 16));
        assert_same(&|| format!("sequence {i} alone"), &alone[0], &together[i]);
        assert_same(&|| format!("sequence {i} at any row"), &close[i], &together[i]);
    }
}

/// Tokens behind the end have no gradient, and get none; the bits of the others are those of the sequence without them.
fn padded() {
    let shapes = [
        (Heads { query: 3, kv: 1, dim: 32 }, 21, 11),
        (Heads { query: 2, kv: 2, dim: 16 }, 60, 20),
        (Heads { query: 7, kv: 1, dim: 16 }, 9, 7),
    ];
    for (i, (heads, positions, padding)) in shapes.into_iter().enumerate() {
        let mut numbers = Numbers(43);
        let s = Sequence::new(&mut numbers, heads, positions, 1.2);
        let more = numbers.many(padding * heads.qkv_cols(), 1.2);
        let zeros = vec![0.0; padding * heads.query * heads.dim];
        let longer = Sequence::of(heads, [s.qkv.clone(), more].concat(), [s.dout.clone(), zeros].concat());
        let what = || format!("{heads:?}, {positions} + {padding}");
        let got = by_turns(i, &what, &|ops| on_card(ops, heads, std::slice::from_ref(&longer), 16));
        let short = by_turns(i + 1, &what, &|ops| on_card(ops, heads, std::slice::from_ref(&s), 16));
        let (own, behind) = got[0].split_at(positions * heads.qkv_cols());
        assert!(behind.iter().all(|v| *v == 0.0), "{}: tokens behind the end have a gradient", what());
        // Zero of either sign: what is compared is the numbers.
        let numbers = |values: &[f32]| values.iter().map(|v| v + 0.0).collect::<Vec<f32>>();
        assert_same(&what, &numbers(own), &numbers(&short[0]));
    }
}

/// A softmax over one position is constant: queries and keys have no gradient, and values that of the output.
fn one_position() {
    let heads = Heads { query: 3, kv: 1, dim: 16 };
    let mut numbers = Numbers(44);
    let sequences = [1, 1].map(|n| Sequence::new(&mut numbers, heads, n, 1.2));
    let got = alike(&|| "one position".into(), &|ops| on_card(ops, heads, &sequences, 16));
    for (s, got) in sequences.iter().zip(&got) {
        // What is left is the difference of two sums of 16 products in f32.
        let (scores, values) = got.split_at(4 * heads.dim);
        assert!(scores.iter().all(|v| v.abs() < 1e-4), "{scores:?}");
        let sums: Vec<f32> = (0..heads.dim).map(|d| s.dout.chunks(heads.dim).map(|head| head[d]).sum()).collect();
        assert_near(&|| "values".into(), values, &sums, &rounded(&sums));
    }
}

/// Scores that are all equal, and scores so far apart that one position takes everything.
fn extremes() {
    let (heads, positions) = (Heads { query: 2, kv: 1, dim: 32 }, 70);
    for (i, (name, scale)) in [("equal", 0.0), ("far apart", 60.0)].into_iter().enumerate() {
        let mut numbers = Numbers(13);
        let mut s = Sequence::new(&mut numbers, heads, positions, 1.0);
        for row in s.qkv.chunks_mut(heads.qkv_cols()) {
            row[..2 * heads.dim].iter_mut().for_each(|v| *v = bf16::from_f32(*v * scale).to_f32());
        }
        let s = Sequence::of(heads, s.qkv, s.dout);
        let got = by_turns(i, &|| name.into(), &|ops| on_card(ops, heads, std::slice::from_ref(&s), 16));
        assert!(got[0].iter().all(|v| v.is_finite()), "{name}: not finite");
        // Where one position takes everything, the gradients of scores are differences of equal numbers: nothing but values can be compared.
        let values = |all: &[f32]| columns(all, heads.qkv_cols(), 3 * heads.dim..4 * heads.dim);
        let (exact, plain) = (exact(heads, &s), straightforward(heads, &s));
        assert_near(&|| format!("values, {name}"), &values(&got[0]), &values(&exact), &values(&plain));
        if scale == 0.0 {
            // Queries are zero, and so are the keys' gradients; keys are not.
            let keys = |all: &[f32]| columns(all, heads.qkv_cols(), 2 * heads.dim..3 * heads.dim);
            let queries = |all: &[f32]| columns(all, heads.qkv_cols(), 0..2 * heads.dim);
            assert!(keys(&got[0]).iter().all(|v| *v == 0.0), "{name}: keys have a gradient although queries are zero");
            assert_near(&|| format!("queries, {name}"), &queries(&got[0]), &queries(&exact), &queries(&plain));
        }
    }
}
