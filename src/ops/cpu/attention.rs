//! Causal attention over paged keys and values. The query heads of one KV head are rows of one small product, so each key and value is
//! read once for all of them; decode, chunked prefill and scoring run the same lines.
//!
//! A row's bits depend on its query and on positions 0 to its own: scores are chains over the head's elements, the maximum is exact, the
//! sum of exponentials runs in 16 lanes by position and a tree, and outputs are chains over ascending positions. Rows of a tile share the
//! positions that all of them see; what only the later rows see is added row by row, so no masked value ever touches a chain.

use super::gemm::tile;
use super::isa::{Isa, per_isa};
use super::kv::{KvCache, key_block, value_block};
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Lanes, Plain};
use super::math::{exp, tree_sum};
use super::pool::Pool;
use super::tensor::{Shared, Tensor};
use crate::ops::{BLOCK_TOKENS, Batch, Heads};

/// Rows (positions x query heads of a KV head) that one tile aims at.
const TILE_ROWS: usize = 12;

/// Consecutive positions of one segment.
#[derive(Clone, Copy)]
struct Tile {
    row: usize,
    positions: usize,
    start: usize,
    table: usize,
}

/// Working memory of one thread.
#[derive(Default)]
pub(super) struct Scratch {
    query: Vec<f32>,
    scores: Vec<f32>,
    out: Vec<f32>,
}

#[inline(always)]
fn softmax_body(scores: &mut [f32], len: usize, scale: f32) -> f32 {
    let (whole, rest) = scores.split_at_mut(len);
    rest.fill(f32::NEG_INFINITY);
    let mut top = [f32::NEG_INFINITY; 16];
    for chunk in whole.chunks_mut(16) {
        for (t, s) in top.iter_mut().zip(chunk) {
            *s *= scale;
            *t = if *s > *t { *s } else { *t };
        }
    }
    let mut max = top[0];
    for t in top {
        max = if t > max { t } else { max };
    }
    let mut sums = [0f32; 16];
    for chunk in scores.as_chunks_mut::<16>().0 {
        for j in 0..16 {
            chunk[j] = exp(chunk[j] - max);
            sums[j] += chunk[j];
        }
    }
    tree_sum(sums)
}
per_isa! {
    /// Replaces `scores[..len]` by `exp(scale * score - max)` and the rest (up to a multiple of 16) by 0; returns the sum.
    pub(super) fn softmax_row(scores: &mut [f32], len: usize, scale: f32) -> f32 = softmax_body
}

/// One tile and one KV head.
struct Work<'a> {
    isa: Isa,
    qkv: &'a Tensor,
    heads: Heads,
    layer: usize,
    cache: &'a KvCache,
    table: &'a [u32],
    tile: Tile,
    head: usize,
}

impl Work<'_> {
    /// # Safety
    /// The machine has the features of `L`.
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, scratch: &mut Scratch, out: *mut f32, stride: usize) {
        let (heads, tile_) = (self.heads, self.tile);
        let group = heads.query / heads.kv;
        let dim = heads.dim;
        let padded = dim.next_multiple_of(16);
        let rows = tile_.positions * group;
        let last = tile_.start + tile_.positions;
        let blocks = last.div_ceil(BLOCK_TOKENS);
        let width = blocks * BLOCK_TOKENS;
        scratch.query.resize(rows * dim, 0.0);
        scratch.scores.resize(rows * width, 0.0);
        scratch.out.clear();
        scratch.out.resize(rows * padded, 0.0);
        for p in 0..tile_.positions {
            let row = self.qkv.row(tile_.row + p);
            let from = &row[self.head * group * dim..][..group * dim];
            scratch.query[p * group * dim..][..group * dim].copy_from_slice(from);
        }
        let key = |b: usize| self.cache.keys[self.cache.index(self.layer, self.table[b] as usize, self.head) * key_block(heads)..].as_ptr();
        let value =
            |b: usize| self.cache.values[self.cache.index(self.layer, self.table[b] as usize, self.head) * value_block(heads)..].as_ptr();
        // SAFETY: query has `rows` rows of `dim`, scores `rows` rows of `width`, out `rows` rows of `padded`; each key block has 16 dim values
        // and each value block padded / 16 panels of 256 values; L's features are the caller's promise.
        unsafe {
            let mut row = 0;
            while row < rows {
                let height = tile_height(rows - row);
                let (q, s) = (scratch.query.as_ptr().add(row * dim), scratch.scores.as_mut_ptr().add(row * width));
                let mut b = 0;
                macro_rules! scores {
                    ($n:literal, $np:literal) => {
                        tile::<L, f32, $n, $np>(q, dim, std::array::from_fn(|i| key(b + i)), dim, s.add(b * BLOCK_TOKENS), width, true)
                    };
                }
                while b + 4 <= blocks && height <= 3 {
                    match height {
                        1 => scores!(1, 4),
                        2 => scores!(2, 4),
                        _ => scores!(3, 4),
                    }
                    b += 4;
                }
                while b < blocks {
                    match height {
                        1 => scores!(1, 1),
                        2 => scores!(2, 1),
                        3 => scores!(3, 1),
                        _ => scores!(6, 1),
                    }
                    b += 1;
                }
                row += height;
            }
        }
        let scale = 1.0 / (dim as f32).sqrt();
        let mut inverse = [0f32; 64];
        for (r, inv) in inverse.iter_mut().enumerate().take(rows) {
            let len = tile_.start + r / group + 1;
            *inv = 1.0 / softmax_row(self.isa, &mut scratch.scores[r * width..][..width], len, scale);
        }
        // SAFETY: as above; the positions below `common` are seen by every row of the tile.
        unsafe {
            let common = tile_.start + 1;
            let (o, p) = (scratch.out.as_mut_ptr(), scratch.scores.as_ptr());
            for panel in 0..padded / 16 {
                let mut row = 0;
                while row < rows {
                    let height = tile_height(rows - row);
                    let (c, a) = (o.add(row * padded + panel * 16), p.add(row * width));
                    let v = |b: usize| value(b).add(panel * BLOCK_TOKENS * 16);
                    match height {
                        1 => values::<L, 1>(a, width, v, 0, common, c, padded),
                        2 => values::<L, 2>(a, width, v, 0, common, c, padded),
                        3 => values::<L, 3>(a, width, v, 0, common, c, padded),
                        _ => values::<L, 6>(a, width, v, 0, common, c, padded),
                    }
                    for r in row..row + height {
                        let own = tile_.start + r / group + 1;
                        values::<L, 1>(p.add(r * width), width, v, common, own, o.add(r * padded + panel * 16), padded);
                    }
                    row += height;
                }
            }
            for (r, inv) in inverse.iter().enumerate().take(rows) {
                let to = out.add((tile_.row + r / group) * stride + (self.head * group + r % group) * dim);
                for d in 0..dim {
                    *to.add(d) = scratch.out[r * padded + d] * inv;
                }
            }
        }
    }
}

/// Heights for which the small products are instantiated.
fn tile_height(rows: usize) -> usize {
    match rows {
        1..=3 => rows,
        4 | 5 => 3,
        _ => 6,
    }
}

/// `c[m][16] += sum over positions from..to of p[m][t] * v[t]`, in ascending order; chains go on from `c`.
///
/// # Safety
/// `p` has MR rows at stride `ldp` with `to` values; `v(b)` points at 256 values of block b; `c` has MR rows of 16 at stride `ldc`; the machine has
/// the features of `L`.
#[inline(always)]
unsafe fn values<L: Lanes, const MR: usize>(
    p: *const f32,
    ldp: usize,
    v: impl Fn(usize) -> *const f32,
    from: usize,
    to: usize,
    c: *mut f32,
    ldc: usize,
) {
    // SAFETY: all accesses are within what the caller guarantees.
    unsafe {
        let mut acc: [L; MR] = std::array::from_fn(|m| L::load(c.add(m * ldc)));
        let mut t = from;
        while t < to {
            let block = v(t / BLOCK_TOKENS);
            let end = to.min((t / BLOCK_TOKENS + 1) * BLOCK_TOKENS);
            while t < end {
                let x = L::load(block.add(t % BLOCK_TOKENS * 16));
                for (m, a) in acc.iter_mut().enumerate() {
                    *a = a.fma(*p.add(m * ldp + t), x);
                }
                t += 1;
            }
        }
        for (m, a) in acc.iter().enumerate() {
            a.store(c.add(m * ldc));
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn run_avx512(work: &Work<'_>, scratch: &mut Scratch, out: *mut f32, stride: usize) {
    // SAFETY: the features are enabled.
    unsafe { work.run::<Avx512>(scratch, out, stride) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2(work: &Work<'_>, scratch: &mut Scratch, out: *mut f32, stride: usize) {
    // SAFETY: the features are enabled.
    unsafe { work.run::<Avx2>(scratch, out, stride) }
}

/// See [`crate::ops::Ops::attention`].
pub(super) fn attention(
    isa: Isa,
    pool: &mut Pool,
    scratch: &mut [Scratch],
    qkv: &Tensor,
    heads: Heads,
    layer: usize,
    batch: &Batch,
    cache: &KvCache,
    out: &mut Tensor,
) {
    assert!(qkv.cols == heads.qkv_cols() && out.cols == heads.query * heads.dim && heads == cache.heads, "attention: shapes do not fit");
    assert!(qkv.rows == batch.rows() && out.rows == batch.rows());
    let group = heads.query / heads.kv;
    assert!(group <= 64, "attention: at most 64 query heads to a KV head");
    let per_tile = (TILE_ROWS / group).max(1);
    let mut tiles = Vec::with_capacity(batch.segments.len());
    for s in &batch.segments {
        let mut done = 0;
        while done < s.rows {
            let positions = per_tile.min(s.rows - done);
            tiles.push(Tile { row: s.row + done, positions, start: s.start + done, table: s.table });
            done += positions;
        }
    }
    let stride = out.stride;
    let to = Shared(out.data.as_mut_ptr());
    let scratch = Shared(scratch.as_mut_ptr());
    pool.run(tiles.len() * heads.kv, &|task, worker| {
        let (tile, head) = (tiles[task / heads.kv], task % heads.kv);
        let blocks = (tile.start + tile.positions).div_ceil(BLOCK_TOKENS);
        let work = Work { isa, qkv, heads, layer, cache, table: &batch.tables[tile.table..][..blocks], tile, head };
        // SAFETY: one scratch per worker; tiles and heads write disjoint parts of `out`; the Isa was detected.
        unsafe {
            let scratch = &mut *scratch.get().add(worker);
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => run_avx512(&work, scratch, to.get(), stride),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => run_avx2(&work, scratch, to.get(), stride),
                _ => work.run::<Plain>(scratch, to.get(), stride),
            }
        }
    });
}
