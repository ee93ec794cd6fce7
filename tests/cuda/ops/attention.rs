//! Attention over paged keys and values: decode, chunks and whole prompts are one function, to the bit.

use adaroll::ops::cuda::CudaOps;
use adaroll::ops::{BLOCK_TOKENS, Batch, Heads, Ops, Segment};
use half::bf16;
use libtest_mimic::Trial;

use crate::kit::{
    Numbers, assert_near, assert_same, assert_well, card_tensor, combinations, cpu, cpu_tensor, cpu_values, cuda, full, trial_in_orders,
};

const DIMS: [usize; 7] = [16, 32, 64, 80, 96, 128, 256];
const GROUPS: [usize; 5] = [1, 3, 4, 7, 8];

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial_in_orders("attention::contexts_across_page_and_tile_edges", edges),
        trial_in_orders("attention::several_sequences_in_one_step", several),
        trial_in_orders("attention::a_context_of_4100", long),
        trial_in_orders("attention::very_large_and_equal_scores", extremes),
    ];
    for dim in DIMS {
        trials.push(trial_in_orders(&format!("attention::heads_of_{dim}_are_right_in_chunks_of_any_size"), move || sizes(dim)));
    }
    trials
}

/// A sequence: its projections `[positions, qkv]`, and its blocks.
struct Sequence {
    qkv: Vec<f32>,
    positions: usize,
    table: Vec<u32>,
}

fn sequence(numbers: &mut Numbers, heads: Heads, positions: usize, free: &mut Vec<u32>, scale: f32) -> Sequence {
    let table = free.split_off(free.len() - positions.div_ceil(BLOCK_TOKENS));
    Sequence { qkv: numbers.many(positions * heads.qkv_cols(), scale), positions, table }
}

fn shuffled(numbers: &mut Numbers, n: usize) -> Vec<u32> {
    let mut free: Vec<u32> = (0..n as u32).collect();
    (1..n).rev().for_each(|i| free.swap(i, numbers.below(i + 1)));
    free
}

/// The parts of sequences as the rows of one step.
fn batch(heads: Heads, parts: &[(&Sequence, std::ops::Range<usize>)]) -> (Batch, Vec<f32>) {
    let (mut batch, mut rows) = (Batch::default(), Vec::new());
    for (s, range) in parts {
        batch.segments.push(Segment { row: batch.tokens.len(), rows: range.len(), start: range.start, table: batch.tables.len() });
        batch.tables.extend(&s.table[..range.end.div_ceil(BLOCK_TOKENS)]);
        for p in range.clone() {
            batch.tokens.push(0);
            batch.positions.push(p as u32);
            batch.slots.push(s.table[p / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (p % BLOCK_TOKENS) as u32);
        }
        rows.extend(&s.qkv[range.start * heads.qkv_cols()..range.end * heads.qkv_cols()]);
    }
    (batch, rows)
}

fn on<O: Ops>(
    ops: &mut O,
    heads: Heads,
    cache: &mut O::KvCache,
    parts: &[(&Sequence, std::ops::Range<usize>)],
    tensor: impl Fn(&O, usize, usize, &[f32]) -> O::Tensor,
    read: impl Fn(&O, &O::Tensor) -> Vec<f32>,
) -> Vec<f32> {
    let (batch, rows) = batch(heads, parts);
    let qkv = tensor(ops, batch.rows(), heads.qkv_cols(), &rows);
    ops.kv_write(&qkv, heads, 1, &batch.slots, cache);
    let mut out = ops.tensor(batch.rows(), heads.query * heads.dim);
    ops.attention(&qkv, heads, 1, &batch, cache, &mut out);
    read(ops, &out)
}

/// One step on the card. Memory of the cache that nobody wrote holds NaN.
fn step(
    ops: &mut CudaOps,
    heads: Heads,
    cache: &mut adaroll::ops::cuda::KvCache,
    parts: &[(&Sequence, std::ops::Range<usize>)],
) -> Vec<f32> {
    on(ops, heads, cache, parts, card_tensor, |ops, t| ops.read(t))
}

/// A sequence in chunks, in a cache of its own.
fn chunked(ops: &mut CudaOps, heads: Heads, s: &Sequence, blocks: usize, chunk: usize) -> Vec<f32> {
    let mut cache = ops.kv_cache(2, blocks, heads);
    let starts = (0..s.positions).step_by(chunk);
    starts.flat_map(|a| step(ops, heads, &mut cache, &[(s, a..(a + chunk).min(s.positions))])).collect()
}

/// The CPU's operation on the same numbers.
fn exact(heads: Heads, s: &Sequence, blocks: usize) -> Vec<f32> {
    let mut ops = cpu();
    let mut cache = ops.kv_cache(2, blocks, heads);
    on(&mut ops, heads, &mut cache, &[(s, 0..s.positions)], cpu_tensor, |_, t| cpu_values(t))
}

/// A straightforward computation in bf16: weights of the softmax are rounded, then their product with the values.
fn straightforward(heads: Heads, s: &Sequence) -> Vec<f32> {
    let (group, dim, cols) = (heads.query / heads.kv, heads.dim, heads.qkv_cols());
    let round = |v: f32| bf16::from_f32(v).to_f32();
    let mut out = Vec::new();
    for p in 0..s.positions {
        for h in 0..heads.query {
            let part = |row: usize, head: usize| &s.qkv[row * cols + head * dim..][..dim];
            let dot = |k: &[f32]| part(p, h).iter().zip(k).map(|(a, b)| a * b).sum::<f32>();
            let scores: Vec<f32> = (0..=p).map(|r| dot(part(r, heads.query + h / group)) / (dim as f32).sqrt()).collect();
            let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|x| (x - top).exp()).collect();
            let total: f32 = weights.iter().sum();
            let mut sums = vec![0f32; dim];
            for (r, w) in weights.iter().enumerate() {
                let w = round(w / total);
                sums.iter_mut().zip(part(r, heads.query + heads.kv + h / group)).for_each(|(x, v)| *x += w * v);
            }
            out.extend(sums.iter().map(|v| round(*v)));
        }
    }
    out
}

/// A head size with every group size: right, and the same bits in chunks of any size, one position at a time included.
fn sizes(dim: usize) {
    for group in GROUPS {
        let heads = Heads { query: 2 * group, kv: 2, dim };
        let positions = if full() { 150 } else { 70 };
        let mut numbers = Numbers((dim * 10 + group) as u64);
        let blocks = positions / BLOCK_TOKENS + 3;
        let mut free = shuffled(&mut numbers, blocks);
        let s = sequence(&mut numbers, heads, positions, &mut free, 1.5);
        let mut ops = cuda();
        let whole = chunked(&mut ops, heads, &s, blocks, positions);
        let what = || format!("{heads:?}");
        assert_near(&what, &whole, &exact(heads, &s, blocks), &straightforward(heads, &s));
        for chunk in if full() { vec![1, 2, 3, 7, 16, 17, 64, 65] } else { vec![1, 3, 33] } {
            assert_same(&|| format!("{heads:?} in chunks of {chunk}"), &chunked(&mut ops, heads, &s, blocks, chunk), &whole);
        }
        assert_well(&ops);
    }
}

/// Contexts around the edges of pages (16) and tiles (64).
fn edges() {
    let lengths = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 193];
    for shape in combinations(&[&lengths, &[16, 64, 128], &GROUPS]) {
        let heads = Heads { query: shape[2], kv: 1, dim: shape[1] };
        let mut numbers = Numbers(shape[0] as u64);
        let blocks = shape[0].div_ceil(BLOCK_TOKENS) + 1;
        let mut free = shuffled(&mut numbers, blocks);
        let s = sequence(&mut numbers, heads, shape[0], &mut free, 1.5);
        let mut ops = cuda();
        let whole = chunked(&mut ops, heads, &s, blocks, shape[0]);
        assert_near(&|| format!("{heads:?}, {} positions", shape[0]), &whole, &exact(heads, &s, blocks), &straightforward(heads, &s));
        // The last position alone, after the others.
        let mut cache = ops.kv_cache(2, blocks, heads);
        if s.positions > 1 {
            step(&mut ops, heads, &mut cache, &[(&s, 0..s.positions - 1)]);
        }
        let last = step(&mut ops, heads, &mut cache, &[(&s, s.positions - 1..s.positions)]);
        assert_same(&|| format!("{heads:?}, position {}", s.positions - 1), &last, &whole[whole.len() - last.len()..]);
        assert_well(&ops);
    }
}

/// Decode and prefill of several sequences beside each other: each as if alone.
fn several() {
    let heads = Heads { query: 6, kv: 2, dim: 64 };
    let mut numbers = Numbers(77);
    let lengths = [5usize, 40, 90, 17, 64];
    let blocks = lengths.iter().map(|n| n.div_ceil(BLOCK_TOKENS)).sum::<usize>() + 1;
    let mut free = shuffled(&mut numbers, blocks);
    let all: Vec<Sequence> = lengths.iter().map(|&n| sequence(&mut numbers, heads, n, &mut free, 1.5)).collect();
    let mut ops = cuda();
    let alone: Vec<Vec<f32>> = all.iter().map(|s| chunked(&mut ops, heads, s, blocks, s.positions)).collect();
    let mut cache = ops.kv_cache(2, blocks, heads);
    let before: Vec<_> = all.iter().enumerate().map(|(i, s)| (s, 0..[4, 10, 89, 16, 1][i])).collect();
    let after: Vec<_> = all.iter().enumerate().map(|(i, s)| (s, [4, 10, 89, 16, 1][i]..s.positions)).collect();
    let (first, second) = (step(&mut ops, heads, &mut cache, &before), step(&mut ops, heads, &mut cache, &after));
    let width = heads.query * heads.dim;
    let (mut a, mut b) = (first.as_slice(), second.as_slice());
    for (i, s) in all.iter().enumerate() {
        let (x, y) = (before[i].1.len() * width, after[i].1.len() * width);
        assert_same(&|| format!("sequence {i} of {}", s.positions), &[&a[..x], &b[..y]].concat(), &alone[i]);
        (a, b) = (&a[x..], &b[y..]);
    }
    assert_well(&ops);
}

/// The last position of a long context, written in chunks.
fn long() {
    let heads = Heads { query: 4, kv: 1, dim: 64 };
    let positions = 4100;
    let mut numbers = Numbers(9);
    let blocks = positions / BLOCK_TOKENS + 2;
    let mut free = shuffled(&mut numbers, blocks);
    let s = sequence(&mut numbers, heads, positions, &mut free, 1.2);
    let mut ops = cuda();
    let mut cache = ops.kv_cache(2, blocks, heads);
    let (batch, rows) = batch(heads, &[(&s, 0..positions - 1)]);
    let qkv = card_tensor(&ops, batch.rows(), heads.qkv_cols(), &rows);
    ops.kv_write(&qkv, heads, 1, &batch.slots, &mut cache);
    let got = step(&mut ops, heads, &mut cache, &[(&s, positions - 1..positions)]);
    let mut plain = cpu();
    let mut cpu_cache = plain.kv_cache(2, blocks, heads);
    let qkv = cpu_tensor(&plain, batch.rows(), heads.qkv_cols(), &rows);
    plain.kv_write(&qkv, heads, 1, &batch.slots, &mut cpu_cache);
    let last = [(&s, positions - 1..positions)];
    let want = on(&mut plain, heads, &mut cpu_cache, &last, cpu_tensor, |_, t| cpu_values(t));
    let error = crate::kit::nmse(&got, &want);
    assert!(error < 5e-5, "normalised mean square error {error:.2e}");
    assert_well(&ops);
}

/// Scores that are all equal, and scores so far apart that one position takes everything.
fn extremes() {
    let heads = Heads { query: 2, kv: 1, dim: 32 };
    let positions = 80;
    for (name, scale) in [("equal", 0.0), ("far apart", 60.0)] {
        let mut numbers = Numbers(13);
        let blocks = positions / BLOCK_TOKENS + 1;
        let mut free = shuffled(&mut numbers, blocks);
        let mut s = sequence(&mut numbers, heads, positions, &mut free, 1.0);
        for row in s.qkv.chunks_mut(heads.qkv_cols()) {
            row[..2 * heads.dim].iter_mut().for_each(|v| *v = bf16::from_f32(*v * scale).to_f32());
        }
        let mut ops = cuda();
        let whole = chunked(&mut ops, heads, &s, blocks, positions);
        assert_near(&|| name.into(), &whole, &exact(heads, &s, blocks), &straightforward(heads, &s));
        assert_same(&|| name.into(), &chunked(&mut ops, heads, &s, blocks, 1), &whole);
        assert_well(&ops);
    }
}
