//! Activations of a training step. They grow with the largest batch so far.

use std::ops::Range;

use super::Recompute;
use crate::model::ModelConfig;
use crate::model::weights::heads;
use crate::ops::{BLOCK_TOKENS, Batch, Heads, TrainOps};

/// Most logits that stand at a time, if nothing else is said: half a gigabyte of f32.
const MOST_LOGITS: usize = 1 << 27;

/// Activations of one layer that its way back needs, beside its input.
pub(super) struct Kept<O: TrainOps> {
    /// Queries, keys and values after the rotation.
    pub(super) qkv: O::Tensor,
    /// And before the norms of heads, in models that have them.
    pub(super) raw: Option<O::Tensor>,
    /// Output of attention.
    pub(super) attended: O::Tensor,
    /// Input of the feed-forward part, before its norm.
    pub(super) x_mid: O::Tensor,
    /// Gate and up projections.
    pub(super) gate_up: O::Tensor,
}

/// All of them. `rows` are the batch's, `scored` those that predict a scored token, `chunk` those whose logits stand.
pub(super) struct Buffers<O: TrainOps> {
    sizes: Sizes,
    /// Room.
    rows: usize,
    scored: usize,
    chunk: usize,
    blocks: usize,
    positions: usize,
    /// A batch whose logits are no more keeps them for the way back; a larger one computes them in chunks, and again.
    most_logits: usize,
    /// Scored rows of this batch.
    scored_rows: usize,
    /// Angles of positions 0, 1, ..: each is computed once.
    table: O::Tensor,
    pub(super) cache: O::KvCache,
    /// `[rows, head_dim]`
    pub(super) angles: O::Tensor,
    /// `[rows, hidden]`: residual stream, output and input of a block, and the gradients of the first and the last.
    pub(super) x: O::Tensor,
    pub(super) y: O::Tensor,
    pub(super) h: O::Tensor,
    pub(super) dx: O::Tensor,
    pub(super) dh: O::Tensor,
    /// `[rows, intermediate]`
    pub(super) act: O::Tensor,
    pub(super) dqkv: O::Tensor,
    pub(super) dattended: O::Tensor,
    /// Residual stream at the start of each layer, `[rows, hidden]`.
    pub(super) inputs: Vec<O::Tensor>,
    /// One for each layer, or one for all.
    pub(super) kept: Vec<Kept<O>>,
    /// `[scored, hidden]`
    pub(super) last: O::Tensor,
    /// `[chunk, hidden]`: rows of `last`, the same normed, and their gradients.
    pub(super) part: O::Tensor,
    pub(super) normed: O::Tensor,
    pub(super) dpart: O::Tensor,
    pub(super) dnormed: O::Tensor,
    /// `[chunk, vocab]`
    pub(super) logits: O::Tensor,
}

#[derive(Clone, Copy)]
struct Sizes {
    heads: Heads,
    hidden: usize,
    wide: usize,
    vocab: usize,
    layers: usize,
    kept: usize,
    raw: bool,
    /// Rows that are summed together, and the most logits of a chunk: the backend's.
    group: usize,
    chunk_logits: usize,
}

impl Sizes {
    fn of(ops: &impl TrainOps, config: &ModelConfig, recompute: Recompute) -> Sizes {
        Sizes {
            heads: heads(config),
            hidden: config.hidden_size,
            wide: config.intermediate_size,
            vocab: config.vocab_size,
            layers: config.num_layers,
            kept: if recompute == Recompute::None { config.num_layers } else { 1 },
            raw: config.qk_norm,
            group: ops.row_group(),
            chunk_logits: ops.chunk_logits(),
        }
    }
}

impl<O: TrainOps> Buffers<O> {
    /// Without room for any row.
    pub(super) fn new(ops: &O, config: &ModelConfig, recompute: Recompute) -> Self {
        Buffers::with_room(ops, Sizes::of(ops, config, recompute), 0, 0, 0, 0, ops.wide_tensor(0, config.head_dim), 0)
    }

    fn with_room(
        ops: &O,
        sizes: Sizes,
        rows: usize,
        scored: usize,
        chunk: usize,
        blocks: usize,
        table: O::Tensor,
        positions: usize,
    ) -> Self {
        let Sizes { heads, hidden, wide, vocab, layers, kept: kept_layers, raw, .. } = sizes;
        let kept = |_| Kept {
            qkv: ops.tensor(rows, heads.qkv_cols()),
            raw: raw.then(|| ops.tensor(rows, heads.qkv_cols())),
            attended: ops.tensor(rows, heads.query * heads.dim),
            x_mid: ops.tensor(rows, hidden),
            gate_up: ops.tensor(rows, 2 * wide),
        };
        Buffers {
            sizes,
            rows,
            scored,
            chunk,
            blocks,
            positions,
            most_logits: MOST_LOGITS,
            scored_rows: 0,
            table,
            cache: ops.kv_cache(1, blocks, heads),
            angles: ops.wide_tensor(rows, heads.dim),
            x: ops.tensor(rows, hidden),
            y: ops.tensor(rows, hidden),
            h: ops.tensor(rows, hidden),
            dx: ops.tensor(rows, hidden),
            dh: ops.tensor(rows, hidden),
            act: ops.tensor(rows, wide),
            dqkv: ops.tensor(rows, heads.qkv_cols()),
            dattended: ops.tensor(rows, heads.query * heads.dim),
            inputs: (0..layers).map(|_| ops.tensor(rows, hidden)).collect(),
            kept: (0..kept_layers).map(kept).collect(),
            last: ops.tensor(scored, hidden),
            part: ops.tensor(chunk, hidden),
            normed: ops.tensor(chunk, hidden),
            dpart: ops.tensor(chunk, hidden),
            dnormed: ops.tensor(chunk, hidden),
            logits: ops.wide_tensor(chunk, vocab),
        }
    }

    /// Makes room for a batch and sets the numbers of rows.
    pub(super) fn fit(&mut self, ops: &O, batch: &Batch) {
        let (rows, scored) = (batch.rows(), batch.logit_rows.len());
        let blocks: usize = batch.segments.iter().map(|s| s.rows.div_ceil(BLOCK_TOKENS)).sum();
        let chunk = self.chunk_rows(scored).min(scored);
        // Batches of nearly the same size should not each make everything anew.
        let room = |now: usize, wanted: usize| if wanted > now { wanted + wanted / 8 } else { now };
        if rows > self.rows || scored > self.scored || chunk > self.chunk || blocks > self.blocks {
            self.grow(ops, room(self.rows, rows), room(self.scored, scored), self.chunk.max(chunk), room(self.blocks, blocks));
        }
        self.scored_rows = scored;
        let Buffers { angles, x, y, h, dx, dh, act, dqkv, dattended, inputs, kept, last, .. } = self;
        for t in [angles, x, y, h, dx, dh, act, dqkv, dattended].into_iter().chain(inputs) {
            ops.set_rows(t, rows);
        }
        for Kept { qkv, raw, attended, gate_up, x_mid } in kept {
            for t in [qkv, attended, gate_up, x_mid].into_iter().chain(raw) {
                ops.set_rows(t, rows);
            }
        }
        ops.set_rows(last, scored);
    }

    /// Makes room for batches of so many rows, all of them scored, in whole blocks.
    pub(super) fn reserve(&mut self, ops: &O, rows: usize) {
        let blocks = rows.div_ceil(BLOCK_TOKENS);
        let chunk = self.chunk_rows(rows).min(rows);
        if rows > self.rows || rows > self.scored || chunk > self.chunk || blocks > self.blocks {
            self.grow(ops, rows.max(self.rows), rows.max(self.scored), chunk.max(self.chunk), blocks.max(self.blocks));
        }
    }

    fn grow(&mut self, ops: &O, rows: usize, scored: usize, chunk: usize, blocks: usize) {
        let empty = || ops.wide_tensor(0, self.sizes.heads.dim);
        let (sizes, positions, most_logits) = (self.sizes, self.positions, self.most_logits);
        let (nothing, none) = (empty(), empty());
        let table = std::mem::replace(&mut self.table, nothing);
        // The old ones go first.
        *self = Buffers::with_room(ops, sizes, 0, 0, 0, 0, none, 0);
        *self = Buffers::with_room(ops, sizes, rows, scored, chunk, blocks, table, positions);
        self.most_logits = most_logits;
    }

    /// Bytes of the buffers that [`Buffers::reserve`] makes for so many rows.
    pub(super) fn bytes(ops: &O, config: &ModelConfig, recompute: Recompute, rows: usize) -> u64 {
        let s = Sizes::of(ops, config, recompute);
        let chunk = s.chunk_rows(rows, MOST_LOGITS).min(rows);
        let narrow = |rows: usize, cols: usize| ops.tensor_bytes(rows, cols, false);
        let (qkv, attended) = (narrow(rows, s.heads.qkv_cols()), narrow(rows, s.heads.query * s.heads.dim));
        let (hidden, wide) = (narrow(rows, s.hidden), narrow(rows, s.wide));
        let raw = if s.raw { qkv } else { 0 };
        let kept = qkv + raw + attended + hidden + narrow(rows, 2 * s.wide);
        let shared = 5 * hidden + wide + qkv + attended + ops.tensor_bytes(rows, s.heads.dim, true);
        let cache = (rows.div_ceil(BLOCK_TOKENS) * ops.kv_block_bytes(1, s.heads)) as u64;
        let head = hidden + 4 * narrow(chunk, s.hidden) + ops.tensor_bytes(chunk, s.vocab, true);
        shared + s.layers as u64 * hidden + s.kept as u64 * kept + cache + head
    }

    /// Cosines and sines of the rows' positions.
    pub(super) fn set_angles(&mut self, ops: &mut O, positions: &[u32], frequencies: &[f32]) {
        let wanted = positions.iter().max().map_or(0, |&p| p as usize + 1);
        if wanted > self.positions {
            self.positions = wanted.next_power_of_two();
            self.table = ops.wide_tensor(self.positions, self.sizes.heads.dim);
            let all: Vec<u32> = (0..self.positions as u32).collect();
            ops.rope_angles(&all, frequencies, &mut self.table);
        }
        ops.gather_rows(&self.table, positions, &mut self.angles);
    }

    /// Cuts scored rows into the chunks whose logits stand together. The chunks of all rows are one where everything fits.
    pub(super) fn chunks(&self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<O> {
        // As for the whole batch, whatever part of it is asked for.
        let size = self.chunk_rows(self.scored_rows);
        let end = rows.end;
        rows.step_by(size).map(move |first| first..(first + size).min(end))
    }

    /// Sets the buffers of a chunk to these scored rows, gathers them and norms them.
    pub(super) fn chunk(&mut self, ops: &mut O, rows: Range<usize>, norm: &O::Vector, eps: f32) {
        for t in [&mut self.part, &mut self.normed, &mut self.dpart, &mut self.dnormed, &mut self.logits] {
            ops.set_rows(t, rows.len());
        }
        let rows: Vec<u32> = rows.map(|r| r as u32).collect();
        ops.gather_rows(&self.last, &rows, &mut self.part);
        ops.rmsnorm(&self.part, norm, eps, &mut self.normed);
    }

    /// See [`super::Training::limit_logits`].
    pub(super) fn limit_logits(&mut self, most: usize) {
        self.most_logits = most;
    }

    /// Rows of a chunk, at least 1.
    fn chunk_rows(&self, scored: usize) -> usize {
        self.sizes.chunk_rows(scored, self.most_logits)
    }
}

impl Sizes {
    /// Rows of a chunk: whole groups, at least one.
    fn chunk_rows(&self, scored: usize, most_logits: usize) -> usize {
        if scored.saturating_mul(self.vocab) <= most_logits {
            return scored.max(1);
        }
        let rows = self.chunk_logits.min(most_logits) / self.vocab;
        (rows / self.group * self.group).max(self.group)
    }
}
