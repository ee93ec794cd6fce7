//! The backward entries of the table, and the optimizer's, on a card.
//!
//! Activation gradients are bf16 like activations; gradients of weights, masters and moments are f32 in the checkpoint's own layout ([`Flat`]). Rows are
//! summed in groups of 16 ([`ROW_GROUP`]), the depth of one matrix instruction, and the groups are added in ascending order to what the gradient holds.

use std::ops::Range;

use super::CudaOps;
use super::flat::{Flat, Home};
use super::gemm::{self, BackwardProduct, Product};
use super::gemm_choice::WeightShape;
use super::launch::Arg;
use super::tensor::{Matrix, Tensor, Vector, stride_of};
use super::{HEAD_DIMS, norm_threads};
use crate::model::weights::heads;
use crate::model::{Dtype, ModelConfig, TensorView};
use crate::ops::backward::{AdamwFactors, AdamwStep, Adapter, Scored, Slab, Slope, TrainOps};
use crate::ops::{Batch, Heads, NonFinite};

/// Rows that are summed together.
pub(super) const ROW_GROUP: usize = 16;
/// Query rows and keys of a tile of attention's way back.
const TILE: usize = 64;
/// Numbers of a moment on the host that visit the card together.
const VISIT: usize = 4 << 20;
/// Numbers of a gradient that are brought together from all ranks at a time.
const GATHER: usize = 16 << 20;
/// Logits of a tile of `score.cu`, and bytes of what a tile and a row say.
const SCORE_TILE: usize = 4096;
const SCORE_PART_BYTES: usize = 32;
const SCORE_ANSWER_WORDS: usize = 8;
/// Rows that a launch takes in y at most.
const MOST_GRID_Y: usize = 65_535;
/// Elements of a piece of `squares`.
const SQUARES_PIECE: usize = 1 << 14;

/// Memory that operations use between two of their kernels. Each grows to the largest use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scratch {
    /// Sums of groups of rows.
    Partials,
    /// What the two kernels of attention's way back tell each other.
    AttentionStats,
    /// States of tiles of logits.
    ScoreParts,
    /// What rows of logits come to.
    Answers,
    /// A slice of columns, moved to where rows start on 16 bytes.
    Columns,
    /// Squares of pieces and of tensors.
    Squares,
    /// Moments on a visit.
    Visit,
    /// Rounded parameters on their way to the host.
    Rounded,
    /// A piece of a gradient, of every rank.
    Ranks,
}

/// Number of [`Scratch`] buffers.
pub(super) const SCRATCHES: usize = 9;

/// The kernels of attention's way back, of both kinds.
const ATTENTION_BACKWARD: [[&str; 7]; 2] = [
    ["attention_dq_16", "attention_dq_32", "attention_dq_64", "attention_dq_80", "attention_dq_96", "attention_dq_128", "attention_dq_256"],
    [
        "attention_dkdv_16",
        "attention_dkdv_32",
        "attention_dkdv_64",
        "attention_dkdv_80",
        "attention_dkdv_96",
        "attention_dkdv_128",
        "attention_dkdv_256",
    ],
];

/// Every kernel of the way back and of the optimizer, as [`super::entries`] lists them.
pub(super) fn entries() -> impl Iterator<Item = (&'static str, &'static str, u32)> {
    let plain = [
        ("norm_backward", "rmsnorm_backward", 640),
        ("norm_backward", "bias_backward", 0),
        ("norm_backward", "qk_norm_backward", 32_768),
        ("norm_backward", "add_groups", 0),
        ("rope_backward", "rope_backward", 0),
        ("act_backward", "swiglu_backward", 0),
        ("act_backward", "copy_columns", 0),
        ("embed_backward", "embed_backward", 0),
        ("embed_backward", "scatter_rows", 0),
        ("score", "score_tiles", 320),
        ("score", "score_finish", 0),
        ("score", "score_backward", 0),
        ("optimizer", "adamw", 0),
        ("optimizer", "scale_values", 0),
        ("optimizer", "add_values", 0),
        ("optimizer", "sum_parts", 0),
        ("optimizer", "squares", 64),
        ("optimizer", "squares_finish", 64),
        ("optimizer", "round_rows", 0),
        ("optimizer", "lora_merge", 0),
        ("optimizer", "lora_da", 8192),
        ("optimizer", "lora_db", 0),
        ("optimizer", "hash_rows", 0),
    ];
    let products = gemm::BACKWARD_VARIANTS.iter().flat_map(|v| v.kernels.map(|kernel| ("gemm_backward", kernel, v.shared)));
    let attention = (0..2).flat_map(|kind| {
        HEAD_DIMS.iter().enumerate().map(move |(i, dim)| ("attention_backward", ATTENTION_BACKWARD[kind][i], attention_shared(kind, *dim)))
    });
    plain.into_iter().chain(products).chain(attention)
}

/// Dynamic shared memory of a kernel of attention's way back: the formulas of `attention_backward.cu`.
fn attention_shared(kind: usize, dim: usize) -> u32 {
    let (rows, stats) = match (kind, dim) {
        (0, 256) => (768, 0),
        (0, _) => (512, 0),
        (_, 128 | 256) => (640, 512),
        _ => (384, 512),
    };
    (rows * (dim + 8) + stats) as u32
}

impl CudaOps {
    /// Offloads what the optimizer keeps of each parameter to the host's memory.
    pub fn offload_moments(&mut self) {
        self.offload = true;
    }

    /// Bytes that operations need between two of their kernels, for batches of so many rows.
    pub fn training_scratch_bytes(&self, config: &ModelConfig, rows: usize, offload: bool) -> u64 {
        let heads = heads(config);
        let widest = config.hidden_size.max(2 * config.intermediate_size).max(heads.qkv_cols());
        let partials = rows.div_ceil(ROW_GROUP) * widest * 4;
        let stats = rows * heads.query * 8;
        let scores = rows * (config.vocab_size.div_ceil(SCORE_TILE) * SCORE_PART_BYTES + 4 * SCORE_ANSWER_WORDS);
        let visit = if offload { 8 * VISIT } else { 0 };
        let rounded = config.vocab_size * stride_of(config.hidden_size) * 2;
        let longest = config.tensors().iter().map(|(_, shape)| shape.iter().product()).max().unwrap_or(0);
        let gathered = self.communicator.as_ref().map_or(0, |c| 4 * c.ranks() * GATHER.min(longest));
        // And the last chunks of the arenas, which are not full.
        (partials + stats + scores + visit + rounded + gathered + 2 * self.settings.chunk_bytes) as u64
    }

    /// Memory of a purpose, at least `bytes` of it.
    fn scratch(&mut self, which: Scratch, bytes: usize) -> u64 {
        let slot = which as usize;
        if self.scratches[slot].as_ref().is_none_or(|b| b.bytes < bytes) {
            // Kernels that are under way may still use the old one.
            self.queue.wait();
            self.scratches[slot] = None;
            self.scratches[slot] = Some(self.training.take(bytes, &self.queue.failure));
        }
        self.scratches[slot].as_ref().map_or(0, |b| b.ptr)
    }

    /// Adds sums of groups to a gradient of as many columns.
    fn add_groups(&mut self, to: u64, partials: u64, group_stride: usize, groups: usize, cols: usize) {
        let args: [Arg; 5] = [to.into(), partials.into(), (group_stride as u64).into(), groups.into(), cols.into()];
        // SAFETY: as the kernel takes them; the partial sums of all groups were written before.
        unsafe { self.queue.launch("add_groups", (cols.div_ceil(ADD_GROUPS_COLUMNS), 1, 1), ADD_GROUPS_COLUMNS as u32, args) };
    }

    /// A kernel over `n` numbers, a block for each [`BLOCK_VALUES`].
    ///
    /// # Safety
    /// As [`super::launch::Queue::launch`].
    unsafe fn over<const N: usize>(&self, kernel: &'static str, n: usize, args: [Arg; N]) {
        // SAFETY: the caller's.
        unsafe { self.queue.launch(kernel, (n.div_ceil(BLOCK_VALUES), 1, 1), 256, args) };
    }

    /// Rounds a slab into rows of the card.
    fn round_slab(&self, slab: Slab<'_, Flat>, inputs: usize, to: u64, stride: usize) -> usize {
        let outputs = slab.base.len / inputs.max(1);
        assert!(outputs * inputs == slab.base.len, "a slab of another width");
        match slab.adapter {
            None => {
                let args: [Arg; 4] = [to.into(), stride.into(), slab.base.card().into(), inputs.into()];
                // SAFETY: as the kernel takes them; the caller has room for the rows.
                unsafe { self.rows("round_rows", outputs, 128, args) };
            }
            Some(Adapter { a, b, rank, scale }) => {
                assert!(a.len == rank * inputs && b.len == outputs * rank, "an adapter of another weight");
                let args: [Arg; 8] = [
                    to.into(),
                    stride.into(),
                    slab.base.card().into(),
                    a.card().into(),
                    b.card().into(),
                    rank.into(),
                    inputs.into(),
                    scale.into(),
                ];
                // SAFETY: as above.
                unsafe { self.rows("lora_merge", outputs, 128, args) };
            }
        }
        outputs
    }
}

/// Numbers of a block of an elementwise kernel.
const BLOCK_VALUES: usize = 1024;
/// Columns of a block of `add_groups`.
const ADD_GROUPS_COLUMNS: usize = 32;

impl TrainOps for CudaOps {
    type Flat = Flat;

    fn row_group(&self) -> usize {
        ROW_GROUP
    }

    fn chunk_logits(&self) -> usize {
        1 << 26
    }

    fn flat(&self, values: &[f32]) -> Flat {
        let flat = Flat::on_card(self.training.take(4 * values.len(), &self.queue.failure), values.len());
        flat.write(&self.queue, values);
        flat
    }

    fn zeros(&self, len: usize) -> Flat {
        let flat = Flat::on_card(self.training.take(4 * len, &self.queue.failure), len);
        // SAFETY: the buffer has this size.
        unsafe { self.queue.clear(flat.card(), 4 * len) };
        flat
    }

    fn parked_zeros(&self, len: usize) -> Flat {
        match self.offload {
            true => Flat::on_host(&self.device, len, &self.queue.failure),
            false => self.zeros(len),
        }
    }

    fn read_flat(&self, values: &Flat) -> Vec<f32> {
        values.read(&self.queue)
    }

    fn write_flat(&mut self, values: &mut Flat, from: &[f32]) {
        values.rewrite(&self.queue, from);
    }

    fn clear_flat(&mut self, values: &mut Flat) {
        // SAFETY: the buffer has this size.
        unsafe { self.queue.clear(values.card(), 4 * values.len) };
    }

    fn add_flat(&mut self, to: &mut Flat, from: &Flat) {
        assert!(to.len == from.len, "add: {} numbers to {}", from.len, to.len);
        // SAFETY: as the kernel takes them.
        unsafe { self.over("add_values", to.len, [to.card().into(), from.card().into(), (to.len as u64).into()]) };
    }

    fn sum_over_ranks(&mut self, values: &mut Flat) {
        let Some(communicator) = self.communicator.clone() else { return };
        let ranks = communicator.ranks();
        let all = self.scratch(Scratch::Ranks, 4 * ranks * GATHER.min(values.len));
        for first in (0..values.len).step_by(GATHER) {
            let len = GATHER.min(values.len - first);
            let own = values.card() + 4 * first as u64;
            let args: [Arg; 5] = [own.into(), all.into(), (len as u64).into(), (ranks as u32).into(), (len as u64).into()];
            // SAFETY: the scratch has room for `len` numbers of each rank; as the kernel takes them.
            unsafe {
                communicator.all_gather(&self.queue, own, all, len);
                self.over("sum_parts", len, args);
            }
        }
    }

    fn round_matrix(&mut self, slabs: &[Slab<'_, Flat>], _: Dtype, matrix: &mut Matrix) {
        let mut first = 0;
        for slab in slabs {
            let to = matrix.buffer.ptr + (first * matrix.stride * 2) as u64;
            first += self.round_slab(*slab, matrix.inputs, to, matrix.stride);
            assert!(first <= matrix.outputs, "slabs of another matrix");
        }
        assert!(first == matrix.outputs, "slabs of another matrix");
    }

    fn round_vector(&mut self, parts: &[&Flat], _: Dtype, vector: &mut Vector) {
        let mut first = 0;
        for part in parts {
            assert!(first + part.len <= vector.len, "parts of another vector");
            self.round_slab(Slab::plain(part), part.len, vector.buffer.ptr + 2 * first as u64, part.len);
            first += part.len;
        }
        assert!(first == vector.len, "parts of another vector");
    }

    fn rounded(&mut self, slab: Slab<'_, Flat>, inputs: usize, _: Dtype) -> Vec<u8> {
        let (len, stride) = (slab.base.len, stride_of(inputs));
        let rows = len / inputs.max(1);
        let at = self.scratch(Scratch::Rounded, rows * stride * 2);
        self.round_slab(slab, inputs, at, stride);
        let mut padded = vec![0u8; rows * stride * 2];
        // SAFETY: the scratch has this size.
        unsafe { self.queue.download_now(&mut padded, at) };
        match stride == inputs {
            true => padded,
            false => padded.chunks_exact(2 * stride).flat_map(|row| &row[..2 * inputs]).copied().collect(),
        }
    }

    fn adapter_backward(&mut self, adapter: Adapter<'_, Flat>, inputs: usize, dw: &Flat, da: &mut Flat, db: &mut Flat) {
        let Adapter { a, b, rank, scale } = adapter;
        let outputs = dw.len / inputs.max(1);
        assert!(a.len == rank * inputs && da.len == a.len && b.len == outputs * rank && db.len == b.len, "an adapter of another weight");
        let args = |to: &Flat, other: &Flat| -> [Arg; 7] {
            [to.card().into(), other.card().into(), dw.card().into(), rank.into(), outputs.into(), inputs.into(), scale.into()]
        };
        // SAFETY: as the kernels take them.
        unsafe {
            self.queue.launch("lora_da", (inputs.div_ceil(32), rank.div_ceil(8), 1), 256, args(da, b));
            self.queue.launch("lora_db", (outputs.div_ceil(8), 1, 1), 256, args(db, a));
        }
    }

    fn repack(&mut self, matrix: &mut Matrix, slabs: &[TensorView<'_>]) {
        self.pack_into(matrix, slabs);
    }

    fn copy(&mut self, x: &Tensor, out: &mut Tensor) {
        assert!(x.cols == out.cols && x.rows == out.rows && x.wide == out.wide);
        // SAFETY: both have rows of this stride.
        unsafe { self.queue.copy(out.buffer.ptr, x.buffer.ptr, Tensor::bytes(x.rows, x.cols, x.wide)) };
    }

    fn clear(&mut self, x: &mut Tensor) {
        // SAFETY: the tensor has these rows.
        unsafe { self.queue.clear(x.buffer.ptr, Tensor::bytes(x.rows, x.cols, x.wide)) };
    }

    fn scatter_rows(&mut self, x: &Tensor, rows: &[u32], out: &mut Tensor) {
        assert!(x.rows == rows.len() && out.cols == x.cols);
        let list = self.list(rows);
        let args: [Arg; 6] = [out.narrow().into(), out.stride.into(), x.narrow().into(), x.stride.into(), list.into(), x.cols.into()];
        // SAFETY: as the kernel takes them; the rows are of `out`.
        unsafe { self.rows("scatter_rows", x.rows, 128, args) };
    }

    fn linear_dx(&mut self, dy: &Tensor, w: &Matrix, dx: &mut Tensor) {
        assert!(dy.cols == w.outputs && dx.cols == w.inputs && dx.rows == dy.rows);
        let shape = WeightShape { outputs: w.outputs, inputs: w.inputs, wide: dy.narrowed, back: true };
        assert!(dy.stride == shape.x_stride(), "gradients in rows of another distance");
        let product = Product { shape, rows: dy.rows, out: dx.narrow(), x: dy.narrow(), w: w.buffer.ptr };
        // SAFETY: the three have these shapes, and rows lie as the shape says.
        unsafe { self.multiply(&product) };
    }

    fn linear_dw(&mut self, dy: &Tensor, rows: Range<usize>, columns: Range<usize>, x: &Tensor, x_row: usize, dw: &mut Flat) {
        assert!(rows.end <= dy.rows && columns.end <= dy.cols && x_row + rows.len() <= x.rows && dw.len == columns.len() * x.cols);
        let (n, outputs) = (rows.len(), columns.len());
        let from = dy.narrow() + 2 * (rows.start * dy.stride + columns.start) as u64;
        let mut product = BackwardProduct { rows: n, outputs, inputs: x.cols, dy: from, dy_stride: dy.stride };
        if !columns.start.is_multiple_of(8) {
            let stride = stride_of(outputs);
            let to = self.scratch(Scratch::Columns, n * stride * 2);
            let args: [Arg; 5] = [to.into(), stride.into(), from.into(), dy.stride.into(), outputs.into()];
            // SAFETY: as the kernel takes them.
            unsafe { self.rows("copy_columns", n, 128, args) };
            (product.dy, product.dy_stride) = (to, stride);
        }
        let x_at = x.narrow() + 2 * (x_row * x.stride) as u64;
        // SAFETY: the three have these shapes.
        unsafe { gemm::multiply_dw(&self.queue, self.device.multiprocessors, &product, x_at, x.stride, dw.card()) };
    }

    fn bias_backward(&mut self, dy: &Tensor, columns: Range<usize>, db: &mut Flat) {
        assert!(columns.end <= dy.cols && db.len == columns.len());
        let (groups, cols) = (dy.rows.div_ceil(ROW_GROUP), columns.len());
        let partials = self.scratch(Scratch::Partials, groups * cols * 4);
        let from = dy.narrow() + 2 * columns.start as u64;
        let args: [Arg; 5] = [partials.into(), from.into(), dy.stride.into(), dy.rows.into(), cols.into()];
        // SAFETY: as the kernel takes them.
        unsafe { self.queue.launch("bias_backward", (groups, cols.div_ceil(128), 1), 128, args) };
        self.add_groups(db.card(), partials, cols, groups, cols);
    }

    fn rmsnorm_backward(&mut self, x: &Tensor, weight: &Vector, eps: f32, dy: &Tensor, dx: &mut Tensor, dweight: &mut Flat) {
        assert!(weight.len == x.cols && dy.cols == x.cols && dx.cols == x.cols && dweight.len == x.cols);
        assert!(dy.rows == x.rows && dx.rows == x.rows);
        let (groups, cols) = (x.rows.div_ceil(ROW_GROUP), x.cols);
        let partials = self.scratch(Scratch::Partials, groups * cols * 4);
        let args: [Arg; 11] = [
            dx.narrow().into(),
            dx.stride.into(),
            partials.into(),
            x.narrow().into(),
            x.stride.into(),
            weight.buffer.ptr.into(),
            dy.narrow().into(),
            dy.stride.into(),
            eps.into(),
            x.rows.into(),
            cols.into(),
        ];
        // SAFETY: as the kernel takes them.
        unsafe { self.rows("rmsnorm_backward", groups, norm_threads(cols), args) };
        self.add_groups(dweight.card(), partials, cols, groups, cols);
    }

    fn qk_norm_backward(
        &mut self,
        raw: &Tensor,
        heads: Heads,
        q: &Vector,
        k: &Vector,
        eps: f32,
        dqkv: &mut Tensor,
        dq: &mut Flat,
        dk: &mut Flat,
    ) {
        let dim = heads.dim;
        assert!(raw.cols == heads.qkv_cols() && dqkv.cols == raw.cols && dqkv.rows == raw.rows);
        assert!([q.len, k.len, dq.len, dk.len] == [dim; 4]);
        let groups = raw.rows.div_ceil(ROW_GROUP);
        let partials = self.scratch(Scratch::Partials, groups * 2 * dim * 4);
        let args: [Arg; 12] = [
            dqkv.narrow().into(),
            dqkv.stride.into(),
            raw.narrow().into(),
            raw.stride.into(),
            q.buffer.ptr.into(),
            k.buffer.ptr.into(),
            partials.into(),
            eps.into(),
            raw.rows.into(),
            heads.query.into(),
            heads.kv.into(),
            dim.into(),
        ];
        // SAFETY: as the kernel takes them.
        unsafe { self.queue.launch("qk_norm_backward", (groups, 1, 1), 512, args) };
        self.add_groups(dq.card(), partials, 2 * dim, groups, dim);
        self.add_groups(dk.card(), partials + 4 * dim as u64, 2 * dim, groups, dim);
    }

    fn rope_backward(&mut self, dqkv: &mut Tensor, heads: Heads, angles: &Tensor) {
        assert!(dqkv.cols == heads.qkv_cols() && angles.cols == heads.dim && angles.rows == dqkv.rows);
        let args: [Arg; 7] = [
            dqkv.narrow().into(),
            dqkv.stride.into(),
            angles.wide().into(),
            angles.stride.into(),
            heads.query.into(),
            heads.kv.into(),
            heads.dim.into(),
        ];
        // SAFETY: as the kernel takes them.
        unsafe { self.queue.launch("rope_backward", (dqkv.rows, (heads.query + heads.kv).div_ceil(4), 1), 128, args) };
    }

    fn attention_backward(&mut self, qkv: &Tensor, heads: Heads, batch: &Batch, out: &Tensor, dout: &Tensor, dqkv: &mut Tensor) {
        assert!(qkv.cols == heads.qkv_cols() && dqkv.cols == qkv.cols && dqkv.rows == qkv.rows);
        assert!([out, dout].iter().all(|t| t.cols == heads.query * heads.dim && t.rows == qkv.rows));
        let group = heads.query / heads.kv;
        let lists = [tiles(batch, |rows| rows * group, |first| first), tiles(batch, |rows| rows, |first| usize::MAX - first)];
        let counts = lists.each_ref().map(|list| list.len() / 4);
        let at = self.loose.put(&self.queue, &lists.concat());
        let stats = self.scratch(Scratch::AttentionStats, qkv.rows * heads.query * 8);
        let dim =
            HEAD_DIMS.iter().position(|d| *d == heads.dim).unwrap_or_else(|| panic!("no attention for heads of {} values", heads.dim));
        let scale = 1.0 / (heads.dim as f32).sqrt();
        let dq: [Arg; 13] = [
            dqkv.narrow().into(),
            dqkv.stride.into(),
            stats.into(),
            qkv.narrow().into(),
            qkv.stride.into(),
            out.narrow().into(),
            out.stride.into(),
            dout.narrow().into(),
            dout.stride.into(),
            at.into(),
            heads.query.into(),
            heads.kv.into(),
            scale.into(),
        ];
        let dkdv: [Arg; 11] = [
            dqkv.narrow().into(),
            dqkv.stride.into(),
            stats.into(),
            qkv.narrow().into(),
            qkv.stride.into(),
            dout.narrow().into(),
            dout.stride.into(),
            (at + 4 * lists[0].len() as u64).into(),
            heads.query.into(),
            heads.kv.into(),
            scale.into(),
        ];
        let threads = if heads.dim == 256 { 256 } else { 128 };
        // SAFETY: as the kernels take them; tiles name rows of all the tensors, and the second reads what the first wrote to `stats`.
        unsafe {
            self.queue.launch(ATTENTION_BACKWARD[0][dim], (counts[0], heads.kv, 1), 128, dq);
            self.queue.launch(ATTENTION_BACKWARD[1][dim], (counts[1], heads.kv, 1), threads, dkdv);
        }
    }

    fn swiglu_backward(&mut self, gate_up: &mut Tensor, dact: &mut Tensor) {
        assert!(gate_up.cols == 2 * dact.cols && gate_up.rows == dact.rows);
        let args: [Arg; 5] = [gate_up.narrow().into(), gate_up.stride.into(), dact.narrow().into(), dact.stride.into(), dact.cols.into()];
        // SAFETY: as the kernel takes them.
        unsafe { self.rows("swiglu_backward", dact.rows, 128, args) };
    }

    fn embed_backward(&mut self, ids: &[u32], dx: &Tensor, first: usize, dtable: &mut Flat) {
        assert!(first + ids.len() <= dx.rows && ids.iter().all(|&id| (id as usize + 1) * dx.cols <= dtable.len));
        // The rows of each token, ascending.
        let mut order: Vec<u32> = (0..ids.len() as u32).collect();
        order.sort_by_key(|&i| ids[i as usize]);
        let mut words: Vec<u32> = Vec::new();
        for (i, bucket) in order.chunk_by(|a, b| ids[*a as usize] == ids[*b as usize]).scan(0, |at, b| {
            *at += b.len();
            Some((*at - b.len(), b))
        }) {
            words.extend([ids[bucket[0] as usize], i as u32, bucket.len() as u32]);
        }
        let buckets = words.len() / 3;
        words.extend(order.iter().map(|i| first as u32 + i));
        let at = self.loose.put(&self.queue, &words);
        let args: [Arg; 6] =
            [dtable.card().into(), dx.narrow().into(), dx.stride.into(), at.into(), (at + 12 * buckets as u64).into(), dx.cols.into()];
        // SAFETY: as the kernel takes them; every token has one bucket.
        unsafe { self.queue.launch("embed_backward", (buckets, dx.cols.div_ceil(128), 1), 128, args) };
    }

    fn score(&mut self, logits: &Tensor, targets: &[u32], temperature: f32, out: &mut Vec<Result<Scored, NonFinite>>) {
        assert!(targets.len() == logits.rows && targets.iter().all(|&t| (t as usize) < logits.cols), "score: a target for each row");
        out.clear();
        let (rows, tiles) = (logits.rows, logits.cols.div_ceil(SCORE_TILE));
        let parts = self.scratch(Scratch::ScoreParts, rows * tiles * SCORE_PART_BYTES);
        let answers = self.scratch(Scratch::Answers, rows * SCORE_ANSWER_WORDS * 4);
        let list = self.list(targets);
        let first: [Arg; 5] = [parts.into(), logits.wide().into(), logits.stride.into(), temperature.into(), logits.cols.into()];
        let second: [Arg; 7] =
            [answers.into(), parts.into(), tiles.into(), logits.wide().into(), logits.stride.into(), list.into(), temperature.into()];
        let mut bytes = vec![0u8; rows * SCORE_ANSWER_WORDS * 4];
        // SAFETY: as the kernels take them; the scratch buffers have these sizes.
        unsafe {
            for row in (0..rows).step_by(MOST_GRID_Y) {
                let mut args = first;
                args[0] = (parts + (row * tiles * SCORE_PART_BYTES) as u64).into();
                args[1] = (logits.wide() + (row * logits.stride * 4) as u64).into();
                self.queue.launch("score_tiles", (tiles, MOST_GRID_Y.min(rows - row), 1), 256, args);
            }
            self.queue.launch("score_finish", (rows, 1, 1), 32, second);
            self.queue.download_now(&mut bytes, answers);
        }
        out.extend(bytes.as_chunks::<{ 4 * SCORE_ANSWER_WORDS }>().0.iter().map(|answer| {
            let word = |i: usize| u32::from_le_bytes([answer[4 * i], answer[4 * i + 1], answer[4 * i + 2], answer[4 * i + 3]]);
            let [logprob, entropy, max, ln_sum] = [0, 1, 2, 3].map(|i| f32::from_bits(word(i)));
            if word(4) == 1 { Ok(Scored { logprob, entropy, max, ln_sum }) } else { Err(NonFinite) }
        }));
    }

    fn score_backward(&mut self, logits: &mut Tensor, targets: &[u32], temperature: f32, scored: &[Scored], slopes: &[Slope]) {
        let rows = logits.rows;
        assert!(targets.len() == rows && scored.len() == rows && slopes.len() == rows, "score_backward: one of each for each row");
        let mut words = Vec::with_capacity((SCORE_ANSWER_WORDS + 3) * rows);
        words.extend(scored.iter().flat_map(|s| {
            let [a, b, c, d] = [s.logprob, s.entropy, s.max, s.ln_sum].map(f32::to_bits);
            [a, b, c, d, 1, 0, 0, 0]
        }));
        words.extend(slopes.iter().flat_map(|s| [s.logprob.to_bits(), s.entropy.to_bits()]));
        words.extend(targets);
        let answers = self.loose.put(&self.queue, &words);
        let slopes = answers + (4 * SCORE_ANSWER_WORDS * rows) as u64;
        let args: [Arg; 7] = [
            logits.wide().into(),
            logits.stride.into(),
            (slopes + 8 * rows as u64).into(),
            slopes.into(),
            answers.into(),
            temperature.into(),
            logits.cols.into(),
        ];
        // SAFETY: as the kernel takes them.
        unsafe { self.rows("score_backward", rows, 1024, args) };
        logits.narrow_in_place();
    }

    fn adamw(&mut self, step: &AdamwStep, values: &mut Flat, gradient: &Flat, m: &mut Flat, v: &mut Flat) {
        let n = values.len;
        assert!(gradient.len == n && m.len == n && v.len == n, "adamw: shapes do not fit");
        let f = AdamwFactors::of(step);
        let piece = |ops: &CudaOps, first: usize, len: usize, m: u64, v: u64| {
            let [p, g] = [values.card(), gradient.card()].map(|at| at + 4 * first as u64);
            let args: [Arg; 13] = [
                p.into(),
                g.into(),
                m.into(),
                v.into(),
                (len as u64).into(),
                1.0f32.into(),
                f.keep.into(),
                f.one_minus_beta1.into(),
                f.beta2.into(),
                f.one_minus_beta2.into(),
                f.root_correction.into(),
                f.eps.into(),
                f.step_size.into(),
            ];
            // SAFETY: as the kernel takes them.
            unsafe { ops.over("adamw", len, args) };
        };
        let (m, v) = match (&mut m.home, &mut v.home) {
            (Home::Card(m), Home::Card(v)) => return piece(self, 0, n, m.ptr, v.ptr),
            (Home::Host(m), Home::Host(v)) => (m, v),
            _ => panic!("adamw: one moment is on the card and one on the host"),
        };
        // Both start on 16 bytes.
        let room = VISIT.min(n).next_multiple_of(4);
        let visit = self.scratch(Scratch::Visit, 8 * room);
        for first in (0..n).step_by(VISIT) {
            let len = VISIT.min(n - first);
            let bytes = 4 * first..4 * (first + len);
            let [m_at, v_at] = [visit, visit + 4 * room as u64];
            // SAFETY: the visit has room for both; the host's memory stays, and is touched again only after a wait.
            unsafe {
                self.queue.upload(m_at, &m.bytes()[bytes.clone()]);
                self.queue.upload(v_at, &v.bytes()[bytes.clone()]);
            }
            piece(self, first, len, m_at, v_at);
            // SAFETY: as above.
            unsafe {
                self.queue.download(&mut m.bytes_mut()[bytes.clone()], m_at);
                self.queue.download(&mut v.bytes_mut()[bytes], v_at);
            }
        }
    }

    fn sums_of_squares(&mut self, values: &[&Flat]) -> Vec<f64> {
        let pieces = |flat: &Flat| flat.len.div_ceil(SQUARES_PIECE);
        let most = values.iter().map(|v| pieces(v)).max().unwrap_or(0);
        let totals = self.scratch(Scratch::Squares, 8 * (values.len() + most));
        let sums = totals + 8 * values.len() as u64;
        for (i, flat) in values.iter().enumerate() {
            let n = pieces(flat);
            // SAFETY: as the kernels take them; the stream keeps the tensors apart, which share the room for pieces.
            unsafe {
                let args: [Arg; 3] = [sums.into(), flat.card().into(), (flat.len as u64).into()];
                self.queue.launch("squares", (n, 1, 1), 256, args);
                let args: [Arg; 3] = [(totals + 8 * i as u64).into(), sums.into(), n.into()];
                self.queue.launch("squares_finish", (1, 1, 1), 256, args);
            }
        }
        let mut bytes = vec![0u8; 8 * values.len()];
        // SAFETY: the totals have this size.
        unsafe { self.queue.download_now(&mut bytes, totals) };
        bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect()
    }

    fn scale(&mut self, values: &mut Flat, factor: f32) {
        // SAFETY: as the kernel takes them.
        unsafe { self.over("scale_values", values.len, [values.card().into(), (values.len as u64).into(), factor.into()]) };
    }
}

/// Tiles of attention's way back: `[row, rows, first, 0]` for every [`TILE`] of the `len(rows)` items of each sequence, those with the most work first.
fn tiles(batch: &Batch, len: impl Fn(usize) -> usize, work: impl Fn(usize) -> usize) -> Vec<u32> {
    let mut tiles: Vec<[usize; 3]> = Vec::new();
    for s in &batch.segments {
        assert!(s.start == 0, "attention's way back takes whole sequences");
        tiles.extend((0..len(s.rows)).step_by(TILE).map(|first| [s.row, s.rows, first]));
    }
    tiles.sort_by_key(|[_, _, first]| std::cmp::Reverse(work(*first)));
    tiles.into_iter().flat_map(|[row, rows, first]| [row as u32, rows as u32, first as u32, 0]).collect()
}
