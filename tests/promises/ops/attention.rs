//! `kv_write`, `attention` and `copy_blocks`: causal attention over paged keys and values.

use adaroll::ops::cpu::{CpuOps, Isa, KvCache};
use adaroll::ops::{BLOCK_TOKENS, Batch, Heads, Ops, Segment};

use crate::numbers::{Numbers, assert_same_bits, backends, instruction_sets, rows_of, same_bits, tensor_of, unwritten};

const LAYERS: usize = 2;
/// The layer under test; the other one is full of NaN.
const LAYER: usize = 1;

const DIMS: [usize; 6] = [16, 20, 40, 64, 80, 128];
const GROUPS: [usize; 6] = [1, 2, 3, 4, 7, 8];

/// A sequence: the fused projections of all its positions, and its blocks.
struct Sequence {
    qkv: Vec<Vec<f32>>,
    table: Vec<u32>,
}

impl Sequence {
    fn slot(&self, position: usize) -> u32 {
        self.table[position / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (position % BLOCK_TOKENS) as u32
    }
}

/// Sequences of these lengths over the blocks of one cache, all tables shuffled into each other; and the number of blocks.
fn sequences(numbers: &mut Numbers, heads: Heads, lengths: &[usize]) -> (Vec<Sequence>, usize) {
    let blocks = lengths.iter().map(|n| n.div_ceil(BLOCK_TOKENS)).sum::<usize>() + 2;
    let mut free: Vec<u32> = (0..blocks as u32).collect();
    numbers.shuffle(&mut free);
    let mut sequence = |&n: &usize| {
        let table = free.split_off(free.len() - n.div_ceil(BLOCK_TOKENS));
        Sequence { qkv: numbers.rows(n, heads.qkv_cols(), 1.2), table }
    };
    (lengths.iter().map(&mut sequence).collect(), blocks)
}

/// A cache in which every slot of every layer once held `stale`, as blocks of earlier sequences do.
fn used_cache(ops: &mut CpuOps, heads: Heads, blocks: usize, stale: f32) -> KvCache {
    let mut cache = ops.kv_cache(LAYERS, blocks, heads);
    let rows = tensor_of(ops, &vec![vec![stale; heads.qkv_cols()]; blocks * BLOCK_TOKENS]);
    let slots: Vec<u32> = (0..(blocks * BLOCK_TOKENS) as u32).collect();
    for layer in 0..LAYERS {
        ops.kv_write(&rows, heads, layer, &slots, &mut cache);
    }
    cache
}

/// One step: of each sequence the positions `range`, in one batch. Writes their keys and values and gives back the rows of attention.
fn step(ops: &mut CpuOps, heads: Heads, cache: &mut KvCache, parts: &[(&Sequence, std::ops::Range<usize>)]) -> Vec<Vec<f32>> {
    let mut batch = Batch::default();
    let mut rows = Vec::new();
    for (sequence, range) in parts {
        batch.segments.push(Segment { row: rows.len(), rows: range.len(), start: range.start, table: batch.tables.len() });
        batch.tables.extend(&sequence.table);
        for position in range.clone() {
            batch.tokens.push(0);
            batch.positions.push(position as u32);
            batch.slots.push(sequence.slot(position));
            rows.push(sequence.qkv[position].clone());
        }
    }
    let qkv = tensor_of(ops, &rows);
    ops.kv_write(&qkv, heads, LAYER, &batch.slots, cache);
    let mut out = unwritten(ops, rows.len(), heads.query * heads.dim);
    ops.attention(&qkv, heads, LAYER, &batch, cache, &mut out);
    rows_of(ops, &out, rows.len())
}

/// Attention of all positions of a sequence, computed in chunks of at most `chunk`, in a cache that was used before.
fn in_chunks(ops: &mut CpuOps, heads: Heads, sequence: &Sequence, blocks: usize, chunk: usize) -> Vec<Vec<f32>> {
    let mut cache = used_cache(ops, heads, blocks, f32::NAN);
    let n = sequence.qkv.len();
    let starts = (0..n).step_by(chunk);
    starts.flat_map(|start| step(ops, heads, &mut cache, &[(sequence, start..(start + chunk).min(n))])).collect()
}

/// The formula in f64, for position `p`.
fn exact(heads: Heads, qkv: &[Vec<f32>], p: usize) -> Vec<f64> {
    let (group, dim) = (heads.query / heads.kv, heads.dim);
    let mut out = Vec::new();
    for h in 0..heads.query {
        let part = |row: &[f32], head: usize| row[head * dim..][..dim].to_vec();
        let q = part(&qkv[p], h);
        let dot = |k: Vec<f32>| q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(b)).sum::<f64>();
        let scores: Vec<f64> = qkv[..=p].iter().map(|r| dot(part(r, heads.query + h / group)) / (dim as f64).sqrt()).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut sums = vec![0.0; dim];
        for (w, row) in weights.iter().zip(qkv) {
            for (s, v) in sums.iter_mut().zip(part(row, heads.query + heads.kv + h / group)) {
                *s += w / total * f64::from(v);
            }
        }
        out.extend(sums);
    }
    out
}

/// Elementwise, and as a mean square error beside the mean square of the formula.
fn assert_close(got: &[Vec<f32>], heads: Heads, qkv: &[Vec<f32>], first: usize) {
    let (mut error, mut size) = (0.0, 0.0);
    for (i, got) in got.iter().enumerate() {
        for (d, (g, w)) in got.iter().zip(exact(heads, qkv, first + i)).enumerate() {
            let e = f64::from(*g) - w;
            assert!(e.abs() < 1e-5, "{heads:?}, position {}, element {d}: {g} and not {w}", first + i);
            error += e * e;
            size += w * w;
        }
    }
    assert!(error / size < 1e-12, "{heads:?}: normalised mean square error {}", error / size);
}

/// For every head size and group size, contexts 1 to 70: attention follows its formula, and has the same bits on every backend and in
/// chunks of any size, over shuffled blocks that held NaN before.
fn check(dim: usize) {
    let mut numbers = Numbers(dim as u64);
    let mut backends = backends();
    for group in GROUPS {
        let heads = Heads { query: 2 * group, kv: 2, dim };
        let (all, blocks) = sequences(&mut numbers, heads, &[70]);
        let sequence = &all[0];
        let want = in_chunks(&mut backends.last_mut().unwrap().1, heads, sequence, blocks, 70);
        assert_close(&want, heads, &sequence.qkv, 0);
        for (i, (name, ops)) in backends.iter_mut().enumerate() {
            let chunks: &[usize] = match (i % 3, ops.isa()) {
                // Software FMA is slow, and threads only take whole tiles.
                (0, Isa::Scalar) => &[3, 70],
                (0, _) => &[1, 2, 3, 5, 16, 17, 70],
                (_, Isa::Scalar) => &[70],
                _ => &[1, 3, 16, 70],
            };
            for &chunk in chunks {
                let got = in_chunks(ops, heads, sequence, blocks, chunk);
                assert_same_bits(&got, &want, &|| format!("{heads:?} in chunks of {chunk}, {name}"));
            }
        }
    }
}

#[test]
fn attention_with_heads_of_16_is_right_and_the_same_everywhere() {
    check(DIMS[0]);
}

#[test]
fn attention_with_heads_of_20_is_right_and_the_same_everywhere() {
    check(DIMS[1]);
}

#[test]
fn attention_with_heads_of_40_is_right_and_the_same_everywhere() {
    check(DIMS[2]);
}

#[test]
fn attention_with_heads_of_64_is_right_and_the_same_everywhere() {
    check(DIMS[3]);
}

#[test]
fn attention_with_heads_of_80_is_right_and_the_same_everywhere() {
    check(DIMS[4]);
}

#[test]
fn attention_with_heads_of_128_is_right_and_the_same_everywhere() {
    check(DIMS[5]);
}

/// A long context: the last positions of 1100, as one chunk and one by one.
#[test]
fn attention_over_a_long_context_is_right_and_the_same_everywhere() {
    let mut numbers = Numbers(7);
    let heads = Heads { query: 3, kv: 1, dim: 64 };
    let (all, blocks) = sequences(&mut numbers, heads, &[1100]);
    let (sequence, first) = (&all[0], 1080);
    let mut want: Option<Vec<Vec<f32>>> = None;
    for (name, mut ops) in backends() {
        for chunk in [20, 7, 1] {
            let mut cache = used_cache(&mut ops, heads, blocks, f32::NAN);
            let slots: Vec<u32> = (0..first).map(|p| sequence.slot(p)).collect();
            let before = tensor_of(&ops, &sequence.qkv[..first]);
            ops.kv_write(&before, heads, LAYER, &slots, &mut cache);
            let starts = (first..1100).step_by(chunk);
            let got: Vec<_> = starts.flat_map(|s| step(&mut ops, heads, &mut cache, &[(sequence, s..(s + chunk).min(1100))])).collect();
            let want = want.get_or_insert_with(|| got.clone());
            assert_same_bits(&got, want, &|| format!("chunks of {chunk}, {name}"));
        }
    }
    assert_close(&want.unwrap(), heads, &sequence.qkv, first);
}

/// Sequences in one batch, some decoding and some at their prompt, get the bits that each gets alone.
#[test]
fn attention_does_not_depend_on_the_sequences_beside() {
    let mut numbers = Numbers(8);
    for (query, kv, dim) in [(4, 4, 20), (6, 2, 64), (9, 3, 40), (7, 1, 16)] {
        let heads = Heads { query, kv, dim };
        let (all, blocks) = sequences(&mut numbers, heads, &[1, 16, 17, 33, 64, 5]);
        for (name, mut ops) in backends() {
            let alone: Vec<_> = all.iter().map(|s| in_chunks(&mut ops, heads, s, blocks, 1000)).collect();
            let mut cache = used_cache(&mut ops, heads, blocks, f32::NAN);
            let mut done = vec![0; all.len()];
            let mut got: Vec<Vec<Vec<f32>>> = vec![Vec::new(); all.len()];
            // Each step takes another number of positions of each sequence, in another order.
            for round in 0.. {
                let mut order: Vec<usize> = (0..all.len()).filter(|&s| done[s] < all[s].qkv.len()).collect();
                if order.is_empty() {
                    break;
                }
                numbers.shuffle(&mut order);
                let sizes: Vec<usize> =
                    order.iter().map(|&s| ([1, 14, 3, 1, 30, 2][(s + round) % 6]).min(all[s].qkv.len() - done[s])).collect();
                let parts: Vec<_> = order.iter().zip(&sizes).map(|(&s, n)| (&all[s], done[s]..done[s] + n)).collect();
                let mut rows = step(&mut ops, heads, &mut cache, &parts).into_iter();
                for (&s, &n) in order.iter().zip(&sizes) {
                    got[s].extend(rows.by_ref().take(n));
                    done[s] += n;
                }
            }
            for (s, (got, want)) in got.iter().zip(&alone).enumerate() {
                assert_same_bits(got, want, &|| format!("sequence {s}, {heads:?}, {name}"));
            }
        }
    }
}

/// What a freed block held does not matter: NaN, infinities and huge numbers of an earlier sequence leave no trace in a shorter one.
#[test]
fn attention_is_not_touched_by_what_freed_blocks_hold() {
    let mut numbers = Numbers(9);
    for (query, kv, dim) in [(2, 1, 20), (8, 2, 64), (3, 3, 128)] {
        let heads = Heads { query, kv, dim };
        for (name, mut ops) in instruction_sets() {
            for n in [1, 2, 15, 16, 17, 31, 40] {
                let (all, blocks) = sequences(&mut numbers, heads, &[n]);
                let mut fresh = ops.kv_cache(LAYERS, blocks, heads);
                let want = step(&mut ops, heads, &mut fresh, &[(&all[0], 0..n)]);
                for stale in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38] {
                    let mut cache = used_cache(&mut ops, heads, blocks, stale);
                    let got = step(&mut ops, heads, &mut cache, &[(&all[0], 0..n)]);
                    assert!(got.iter().flatten().all(|v| v.is_finite()));
                    assert_same_bits(&got, &want, &|| format!("{n} positions over {stale}, {heads:?}, {name}"));
                }
            }
        }
    }
}

/// The twin: an attention that goes over whole blocks and gives positions past the end a weight of zero lets a stale NaN through.
#[test]
fn an_attention_that_weighs_stale_values_with_zero_would_leak() {
    let (weights, mut values) = ([0.5f32, 0.5, 0.0, 0.0], [1.0f32, 3.0, 0.0, 0.0]);
    let naive = |values: &[f32]| weights.iter().zip(values).fold(0f32, |sum, (w, v)| w.mul_add(*v, sum));
    assert_eq!(naive(&values), 2.0);
    values[3] = f32::NAN;
    assert!(naive(&values).is_nan());
}

/// The twin: an attention that sums the cached positions and the chunk's own apart, as split kernels do, changes bits with the chunk.
#[test]
fn an_attention_split_at_the_chunk_would_change_bits() {
    let split_at = |start: usize, q: &[f32], keys: &[Vec<f32>], values: &[f32]| {
        let scores: Vec<f32> = keys.iter().map(|k| q.iter().zip(k).fold(0f32, |s, (a, b)| a.mul_add(*b, s)) / 4.0).collect();
        let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let part = |range: std::ops::Range<usize>| {
            range.fold((0f32, 0f32), |(sum, out), t| {
                let w = (scores[t] - top).exp();
                (sum + w, w.mul_add(values[t], out))
            })
        };
        let ((a, x), (b, y)) = (part(0..start), part(start..keys.len()));
        (x + y) / (a + b)
    };
    let mut numbers = Numbers(10);
    let changed = (0..100).filter(|_| {
        let (q, keys, values) = (numbers.row(16, 1.2), numbers.rows(60, 16, 1.2), numbers.row(60, 1.2));
        split_at(0, &q, &keys, &values).to_bits() != split_at(48, &q, &keys, &values).to_bits()
    });
    assert!(changed.count() > 10);
}

/// A NaN in a query reaches that row alone; a NaN in a key or value reaches the rows that see it, shows in all of them, and no other,
/// even within one tile.
#[test]
fn a_nan_reaches_exactly_the_rows_that_see_it() {
    let mut numbers = Numbers(11);
    let heads = Heads { query: 4, kv: 2, dim: 20 };
    let group = heads.query / heads.kv;
    let (mut all, blocks) = sequences(&mut numbers, heads, &[40]);
    for (name, mut ops) in instruction_sets() {
        for chunk in [40, 7, 1] {
            let want = in_chunks(&mut ops, heads, &all[0], blocks, chunk);
            for p in [0, 1, 5, 15, 16, 17, 38, 39] {
                for (head, what) in [(1, "query"), (heads.query, "key"), (heads.query + heads.kv + 1, "value")] {
                    let at = head * heads.dim + numbers.below(heads.dim);
                    let clean = std::mem::replace(&mut all[0].qkv[p][at], f32::NAN);
                    let got = in_chunks(&mut ops, heads, &all[0], blocks, chunk);
                    all[0].qkv[p][at] = clean;
                    for (r, (got, want)) in got.iter().zip(&want).enumerate() {
                        for h in 0..heads.query {
                            let reached = match what {
                                "query" => r == p && h == 1,
                                "key" => r >= p && h / group == 0,
                                _ => r >= p && h / group == 1,
                            };
                            let (g, w) = (&got[h * heads.dim..][..heads.dim], &want[h * heads.dim..][..heads.dim]);
                            if reached && what == "value" {
                                assert!(g[at % heads.dim].is_nan(), "{what} at {p}, row {r}, head {h}, {name}");
                            } else if reached {
                                assert!(g.iter().all(|v| v.is_nan()), "{what} at {p}, row {r}, head {h}, {name}");
                            } else {
                                assert!(same_bits(g, w), "{what} at {p}, row {r}, head {h} changed, chunks of {chunk}, {name}");
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A copied block holds what the first one held, in every layer; writing to the copy leaves the first one alone.
#[test]
fn copied_blocks_are_equal_and_apart() {
    let mut numbers = Numbers(12);
    for (query, kv, dim) in [(2, 1, 20), (6, 3, 64)] {
        let heads = Heads { query, kv, dim };
        let (mut all, blocks) = sequences(&mut numbers, heads, &[37, 37]);
        let mut fork = all.pop().unwrap();
        let first = all.pop().unwrap();
        // The fork shares 34 positions and then goes its own way.
        fork.qkv[..34].clone_from_slice(&first.qkv[..34]);
        for (name, mut ops) in instruction_sets() {
            let want = [in_chunks(&mut ops, heads, &first, blocks, 37), in_chunks(&mut ops, heads, &fork, blocks, 37)];
            let mut cache = used_cache(&mut ops, heads, blocks, f32::NAN);
            step(&mut ops, heads, &mut cache, &[(&first, 0..36)]);
            let pairs: Vec<(u32, u32)> = first.table.iter().copied().zip(fork.table.iter().copied()).collect();
            ops.copy_blocks(&mut cache, &pairs);
            let fork_rows = step(&mut ops, heads, &mut cache, &[(&fork, 34..37)]);
            let first_rows = step(&mut ops, heads, &mut cache, &[(&first, 36..37)]);
            assert_same_bits(&fork_rows, &want[1][34..], &|| format!("the fork, {heads:?}, {name}"));
            assert_same_bits(&first_rows, &want[0][36..], &|| format!("the first, {heads:?}, {name}"));
        }
    }
}

/// Copying takes every layer along, not only the first.
#[test]
fn copied_blocks_are_equal_in_every_layer() {
    let mut numbers = Numbers(13);
    let heads = Heads { query: 2, kv: 2, dim: 16 };
    for (name, mut ops) in instruction_sets() {
        let mut cache = used_cache(&mut ops, heads, 3, f32::NAN);
        let rows = numbers.rows(16, heads.qkv_cols(), 1.0);
        let qkv = tensor_of(&ops, &rows);
        let slots: Vec<u32> = (16..32).collect();
        for layer in 0..LAYERS {
            ops.kv_write(&qkv, heads, layer, &slots, &mut cache);
        }
        ops.copy_blocks(&mut cache, &[(1, 2), (2, 0)]);
        let batch = |block: u32| Batch {
            tokens: vec![0; 16],
            positions: (0..16).collect(),
            slots: vec![0; 16],
            segments: vec![Segment { row: 0, rows: 16, start: 0, table: 0 }],
            tables: vec![block],
            logit_rows: vec![],
        };
        for layer in 0..LAYERS {
            let mut attend = |block| {
                let mut out = unwritten(&ops, 16, heads.query * heads.dim);
                ops.attention(&qkv, heads, layer, &batch(block), &cache, &mut out);
                rows_of(&ops, &out, 16)
            };
            let want = attend(1);
            assert!(want.iter().flatten().all(|v| v.is_finite()));
            for block in [2, 0] {
                assert_same_bits(&attend(block), &want, &|| format!("layer {layer}, block {block}, {name}"));
            }
        }
    }
}
