//! Backward of causal attention. One task is one KV head of one sequence: it walks the sequence in blocks of 16 positions, computes their
//! scores and probabilities again, and adds to the gradients of all keys and values so far. Nothing is added across tasks, and the order within
//! one is fixed by the sequence alone.

use super::product::{Factor, Right, product, product_t};
use crate::ops::cpu::attention::softmax_row;
use crate::ops::cpu::isa::{Isa, per_isa};
use crate::ops::cpu::math::tree_sum;
use crate::ops::cpu::pool::Pool;
use crate::ops::cpu::tensor::{Shared, Tensor};
use crate::ops::{BLOCK_TOKENS, Batch, Heads, Segment};

/// Working memory of one thread. `dim` is padded to whole panels everywhere, positions to whole blocks.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Keys of the sequence as `[block][dim][16 positions]`, and as `[dim / 16][positions][16]`.
    keys_t: Vec<f32>,
    keys: Vec<f32>,
    /// Values as `[block][dim][16 positions]`.
    values_t: Vec<f32>,
    /// Gradients of keys and values, `[positions, dim]`.
    dkeys: Vec<f32>,
    dvalues: Vec<f32>,
    /// Queries, gradients of outputs, and gradients of queries of one block, `[16 * group, dim]`.
    queries: Vec<f32>,
    douts: Vec<f32>,
    dqueries: Vec<f32>,
    /// Probabilities and gradients of scores of one block, `[16 * group, positions so far]`.
    scores: Vec<f32>,
    dscores: Vec<f32>,
}

#[inline(always)]
fn dscore_body(p: &mut [f32], dp: &mut [f32], inverse: f32, scale: f32) {
    let mut lanes = [0f32; 16];
    for (p, dp) in p.as_chunks_mut::<16>().0.iter_mut().zip(dp.as_chunks::<16>().0) {
        for j in 0..16 {
            p[j] *= inverse;
            lanes[j] = p[j].mul_add(dp[j], lanes[j]);
        }
    }
    let mean = tree_sum(lanes);
    for (dp, p) in dp.iter_mut().zip(p) {
        *dp = (*p * scale) * (*dp - mean);
    }
}
per_isa! {
    /// `p *= inverse`, then `dp = p * scale * (dp - sum(p dp))`; the sum: 16 lanes by position and the tree.
    fn dscore_row(p: &mut [f32], dp: &mut [f32], inverse: f32, scale: f32) = dscore_body
}

/// `to` as `len` zeros.
fn zeros(to: &mut Vec<f32>, len: usize) -> &mut [f32] {
    to.clear();
    to.resize(len, 0.0);
    to
}

/// One KV head of one sequence.
struct Work<'a> {
    isa: Isa,
    qkv: &'a Tensor,
    dout: &'a Tensor,
    heads: Heads,
    segment: &'a Segment,
    head: usize,
}

impl Work<'_> {
    /// # Safety
    /// `dqkv` has the rows of the batch at `stride`; no other task writes this head's parts of this segment; the Isa was detected.
    unsafe fn run(&self, s: &mut Scratch, dqkv: *mut f32, stride: usize) {
        let Work { isa, qkv, dout, heads, segment, head } = *self;
        let (dim, group) = (heads.dim, heads.query / heads.kv);
        let wide = dim.next_multiple_of(16);
        let blocks = segment.rows.div_ceil(BLOCK_TOKENS);
        let positions = blocks * BLOCK_TOKENS;
        let (q_at, k_at, v_at) = (head * group * dim, (heads.query + head) * dim, (heads.query + heads.kv + head) * dim);
        let scale = 1.0 / (dim as f32).sqrt();

        let (keys_t, keys, values_t) =
            (zeros(&mut s.keys_t, positions * wide), zeros(&mut s.keys, positions * wide), zeros(&mut s.values_t, positions * wide));
        for t in 0..segment.rows {
            let row = qkv.row(segment.row + t);
            let base = t / BLOCK_TOKENS * wide * BLOCK_TOKENS + t % BLOCK_TOKENS;
            for (d, (k, v)) in row[k_at..][..dim].iter().zip(&row[v_at..][..dim]).enumerate() {
                keys_t[base + d * BLOCK_TOKENS] = *k;
                values_t[base + d * BLOCK_TOKENS] = *v;
            }
            for (panel, k) in row[k_at..][..dim].chunks(16).enumerate() {
                keys[(panel * positions + t) * 16..][..k.len()].copy_from_slice(k);
            }
        }
        let (dkeys, dvalues) = (zeros(&mut s.dkeys, positions * wide), zeros(&mut s.dvalues, positions * wide));

        for block in 0..blocks {
            let first = block * BLOCK_TOKENS;
            let count = BLOCK_TOKENS.min(segment.rows - first);
            let (rows, width) = (count * group, first + BLOCK_TOKENS);
            let (queries, douts) = (zeros(&mut s.queries, rows * wide), zeros(&mut s.douts, rows * wide));
            for r in 0..rows {
                let (row, h) = (segment.row + first + r / group, r % group);
                queries[r * wide..][..dim].copy_from_slice(&qkv.row(row)[q_at + h * dim..][..dim]);
                douts[r * wide..][..dim].copy_from_slice(&dout.row(row)[q_at + h * dim..][..dim]);
            }
            s.scores.resize(rows * width, 0.0);
            s.dscores.resize(rows * width, 0.0);
            let (scores, dscores) = (&mut s.scores[..rows * width], &mut s.dscores[..rows * width]);
            // SAFETY: queries and douts have `rows` rows of `wide`, of which `dim` count; scores and dscores `rows` rows of `width`; the transposed
            // keys and values have `width / 16` blocks so far.
            unsafe {
                let left = |a: &[f32]| Factor { a: a.as_ptr(), lda: wide, rows, k: dim };
                let right = |w: &[f32]| Right { w: w.as_ptr(), panel: wide * 16, step: 16, panels: width / 16 };
                product(isa, left(queries), right(keys_t), scores.as_mut_ptr(), width, true);
                product(isa, left(douts), right(values_t), dscores.as_mut_ptr(), width, true);
            }
            for (r, (p, dp)) in scores.chunks_exact_mut(width).zip(dscores.chunks_exact_mut(width)).enumerate() {
                let sum = softmax_row(isa, p, first + r / group + 1, scale);
                dscore_row(isa, p, dp, 1.0 / sum, scale);
            }
            let dqueries = zeros(&mut s.dqueries, rows * wide);
            // SAFETY: as above; the keys' panels have `positions` rows, of which `width` count; the gradients of keys and values have `positions` rows.
            unsafe {
                let left = Factor { a: dscores.as_ptr(), lda: width, rows, k: width };
                let right = Right { w: keys.as_ptr(), panel: positions * 16, step: 16, panels: wide / 16 };
                product(isa, left, right, dqueries.as_mut_ptr(), wide, true);
                let left = |a: &[f32]| Factor { a: a.as_ptr(), lda: width, rows: width, k: rows };
                let right = |w: &[f32]| Right { w: w.as_ptr(), panel: 16, step: wide, panels: wide / 16 };
                product_t(isa, left(scores), right(douts), dvalues.as_mut_ptr(), wide);
                product_t(isa, left(dscores), right(queries), dkeys.as_mut_ptr(), wide);
                for r in 0..rows {
                    let to = dqkv.add((segment.row + first + r / group) * stride + q_at + r % group * dim);
                    std::ptr::copy_nonoverlapping(dqueries[r * wide..].as_ptr(), to, dim);
                }
            }
        }
        for t in 0..segment.rows {
            // SAFETY: row `segment.row + t` holds these columns, and they are this task's.
            unsafe {
                let row = dqkv.add((segment.row + t) * stride);
                std::ptr::copy_nonoverlapping(dkeys[t * wide..].as_ptr(), row.add(k_at), dim);
                std::ptr::copy_nonoverlapping(dvalues[t * wide..].as_ptr(), row.add(v_at), dim);
            }
        }
    }
}

/// See [`crate::ops::TrainOps::attention_backward`].
pub(super) fn attention_backward(
    isa: Isa,
    pool: &mut Pool,
    scratch: &mut [Scratch],
    qkv: &Tensor,
    heads: Heads,
    batch: &Batch,
    dout: &Tensor,
    dqkv: &mut Tensor,
) {
    assert!(qkv.cols == heads.qkv_cols() && dqkv.cols == qkv.cols && dout.cols == heads.query * heads.dim, "attention: shapes do not fit");
    assert!(qkv.rows == batch.rows() && dout.rows == qkv.rows && dqkv.rows == qkv.rows);
    assert!(batch.segments.iter().all(|s| s.start == 0), "the backward of attention takes whole sequences");
    let stride = dqkv.stride;
    let (to, scratch) = (Shared(dqkv.data.as_mut_ptr()), Shared(scratch.as_mut_ptr()));
    pool.run(batch.segments.len() * heads.kv, &|task, worker| {
        let work = Work { isa, qkv, dout, heads, segment: &batch.segments[task / heads.kv], head: task % heads.kv };
        // SAFETY: one scratch per worker; tasks write disjoint columns or rows; the Isa was detected.
        unsafe { work.run(&mut *scratch.get().add(worker), to.get(), stride) }
    });
}
