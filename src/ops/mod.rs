//! The table of operations that a model is made of. Each backend implements the same table; the model's forward pass is written
//! once, over [`Ops`].
//!
//! What every backend promises: the bits of a row depend on that row alone (its inputs and its length), never on the number of
//! rows beside it, on how a sequence was cut into chunks, or on the number of threads. Each entry says how it reduces.

pub mod backward;
pub mod cpu;
pub mod cuda;
pub mod handover;
pub mod philox;

use crate::model::TensorView;
pub use backward::TrainOps;
pub use handover::Handover;

/// Tokens in one KV block.
pub const BLOCK_TOKENS: usize = 16;

/// Marks a token of a [`Batch`] that the host does not know yet: `PROMISED | i` is what ask `i` of the step before drew (see [`Late`]).
pub const PROMISED: u32 = 1 << 31;

/// A run of consecutive rows of a [`Batch`] that belong to one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First row in the batch.
    pub row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row within its sequence; the rows before it are in the KV cache.
    pub start: usize,
    /// First entry of this sequence's block table within [`Batch::tables`].
    pub table: usize,
}

/// The rows of one step: every row is one token of one sequence.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Token ids, `[rows]`.
    pub tokens: Vec<u32>,
    /// Position of each row within its sequence, `[rows]`.
    pub positions: Vec<u32>,
    /// Where each row's keys and values go: `block * BLOCK_TOKENS + offset`, `[rows]`.
    pub slots: Vec<u32>,
    /// Sequences, in row order; together they cover all rows.
    pub segments: Vec<Segment>,
    /// Block tables of all segments, one after the other; entry `i` of a table holds positions `16 i .. 16 i + 16`.
    pub tables: Vec<u32>,
    /// Rows whose logits are wanted, ascending.
    pub logit_rows: Vec<u32>,
}

impl Batch {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.segments.clear();
        self.tables.clear();
        self.logit_rows.clear();
    }
}

/// How the heads lie in the fused projection: a row is `[q heads | k heads | v heads]`, each of `head_dim` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads; `query` is a multiple of it.
    pub kv: usize,
    /// Values in a head.
    pub dim: usize,
}

impl Heads {
    /// Columns of the fused projection.
    pub fn qkv_cols(&self) -> usize {
        (self.query + 2 * self.kv) * self.dim
    }
}

/// The filters of one draw. See [`Ops::sample`] for their order and meaning.
#[derive(Clone, Debug, PartialEq)]
pub struct Filters<'a> {
    /// 0 draws the most likely token.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// Added to the logits of these token ids.
    pub bias: &'a [(u32, f32)],
    /// These token ids cannot be drawn.
    pub banned: &'a [u32],
}

impl Filters<'_> {
    /// Temperature `t` and nothing else.
    pub fn plain(t: f32) -> Self {
        Filters { temperature: t, top_k: 0, top_p: 1.0, min_p: 0.0, bias: &[], banned: &[] }
    }
}

/// One draw from one row of logits. Several draws may read the same row.
#[derive(Clone, Debug)]
pub struct Draw<'a> {
    /// Row of the logits.
    pub row: usize,
    /// Filters.
    pub filters: Filters<'a>,
    /// Random stream: Philox key.
    pub key: [u32; 2],
    /// Position of the token among the generated ones, from 0.
    pub position: u32,
    /// Index of the sample within its prompt.
    pub sample: u32,
}

/// What a step asks of its logits.
#[derive(Clone, Debug)]
pub enum Ask<'a> {
    /// A new token.
    Draw(Draw<'a>),
    /// The log-probabilities of a token that is already there, as [`Ops::logprobs_of`] gives them.
    Token {
        /// Row of the logits.
        row: usize,
        /// The token.
        token: u32,
        /// Temperature of the log-probability that is not the raw one.
        temperature: f32,
    },
}

/// What a draw gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// The token.
    pub token: u32,
    /// Log-probability under the filtered distribution (the raw one at temperature 0).
    pub logprob: f32,
    /// Log-probability under softmax of the untouched logits.
    pub logprob_raw: f32,
}

/// The logits of a row hold a NaN or an infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonFinite;

/// The memory that a step runs on: steps of one place may be recorded once and replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Whose activations.
    pub forward: u64,
    /// Whose weights and cache: [`Ops::memory_id`].
    pub memory: u64,
    /// The model's heads.
    pub heads: Heads,
}

/// Answers that come one step late, so that the host prepares a step while the device computes the one before. At most two steps are open:
/// `start`, `start`, `finish`, `start`, `finish` ... Within a step that follows `start`, a token [`PROMISED`] `| i` stands for what ask `i` drew.
pub trait Late<T> {
    /// Has the asks of this step answered, and returns at once.
    fn start(&mut self, logits: &T, asks: &[Ask<'_>]);
    /// Waits for the answers of the oldest step that is open, in the order of its asks.
    fn finish(&mut self, out: &mut Vec<Result<Drawn, NonFinite>>);
}

/// The table of operations. Shapes are `[rows, columns]`, row-major; activations are f32 on the CPU and bf16 on a GPU.
///
/// A backend whose device fails remembers it and does nothing more; [`Ops::failure`] says so after any number of calls.
pub trait Ops: Send {
    /// Activations `[rows, cols]` with room for a fixed number of rows.
    type Tensor: Send;
    /// Packed weights of a linear map `[outputs, inputs]`.
    type Matrix: Send + Sync;
    /// A vector of weights (norm weights, biases).
    type Vector: Send + Sync;
    /// Paged keys and values of all layers.
    type KvCache: Send;

    /// Backend, instruction set and kernel revision, recorded with every job.
    fn numerics_id(&self) -> String;
    /// The device in words.
    fn device_name(&self) -> String {
        "cpu".into()
    }
    /// What went wrong on the device since this was last asked, in a sentence.
    fn failure(&self) -> Option<String> {
        None
    }
    /// Memory that the weights of a model take on a device of its own.
    fn weight_bytes(&self, _config: &crate::model::ModelConfig) -> u64 {
        0
    }
    /// Memory of the device that is free for a cache, where it is not the host's.
    fn free_memory(&self) -> Option<u64> {
        None
    }
    /// Activations with room for `rows` rows.
    fn tensor(&self, rows: usize, cols: usize) -> Self::Tensor;
    /// The same in f32 on every backend: logits, cosines and sines.
    fn wide_tensor(&self, rows: usize, cols: usize) -> Self::Tensor {
        self.tensor(rows, cols)
    }
    /// Bytes of such a tensor.
    fn tensor_bytes(&self, rows: usize, cols: usize, _wide: bool) -> u64 {
        (rows * cols * 4) as u64
    }
    /// Sets the number of rows in use.
    fn set_rows(&self, tensor: &mut Self::Tensor, rows: usize);
    /// Packs the rows of several tensors `[outputs_i, inputs]`, one below the other, as one matrix.
    fn matrix(&self, slabs: &[TensorView<'_>]) -> Self::Matrix;
    /// Widens and joins vectors.
    fn vector(&self, parts: &[TensorView<'_>]) -> Self::Vector;
    /// Puts staged weights in the place of the live ones, which may move to where the staged ones were.
    fn adopt_matrix(&mut self, live: &mut Self::Matrix, staged: &mut Self::Matrix) {
        std::mem::swap(live, staged);
    }
    /// The same for a vector.
    fn adopt_vector(&mut self, live: &mut Self::Vector, staged: &mut Self::Vector) {
        std::mem::swap(live, staged);
    }
    /// Waits until the device has done everything it was given.
    fn settle(&mut self) {}
    /// For backends whose weights can go to another process within the device's memory.
    fn handover(&self) -> Option<&dyn Handover<Self>>
    where
        Self: Sized,
    {
        None
    }
    /// Bytes of one KV block over all layers.
    fn kv_block_bytes(&self, layers: usize, heads: Heads) -> usize;
    /// A cache of `blocks` blocks.
    fn kv_cache(&self, layers: usize, blocks: usize, heads: Heads) -> Self::KvCache;

    /// Identifies the memory of these weights and this cache for a [`Place`].
    fn memory_id(&self, _embed: &Self::Matrix, _cache: &Self::KvCache) -> u64 {
        0
    }
    /// Runs the calls of one step, `run(self, rows)`. A device may compute more rows than the batch has (the others go nowhere), and may
    /// replay a step of the same place and shape instead of calling `run`.
    fn step(&mut self, _place: Place, batch: &Batch, run: &mut dyn FnMut(&mut Self, usize))
    where
        Self: Sized,
    {
        run(self, batch.rows());
    }
    /// For backends whose answers come one step late.
    fn late(&mut self) -> Option<&mut dyn Late<Self::Tensor>> {
        None
    }

    /// `out[r] = table[ids[r]]`.
    fn embed(&mut self, table: &Self::Matrix, ids: &[u32], out: &mut Self::Tensor);
    /// `out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight`. The mean: 16 lanes (element i in lane i mod 16), FMA in ascending
    /// order, then a tree (8, 4, 2, 1). Source: Zhang and Sennrich 2019, as Hugging Face rounds it in f32.
    fn rmsnorm(&mut self, x: &Self::Tensor, weight: &Self::Vector, eps: f32, out: &mut Self::Tensor);
    /// `residual += delta`, then [`Ops::rmsnorm`] of the sum.
    fn add_rmsnorm(&mut self, residual: &mut Self::Tensor, delta: &Self::Tensor, weight: &Self::Vector, eps: f32, out: &mut Self::Tensor);
    /// `x += delta`.
    fn add(&mut self, x: &mut Self::Tensor, delta: &Self::Tensor);
    /// `out = x W^T`: every element is one chain of f32 FMA over ascending inputs, starting at +0.
    fn linear(&mut self, x: &Self::Tensor, w: &Self::Matrix, out: &mut Self::Tensor);
    /// `x[r] += bias`.
    fn add_bias(&mut self, x: &mut Self::Tensor, bias: &Self::Vector);
    /// RMSNorm of each query head (weight `q`) and each key head (weight `k`) in place (Qwen3).
    fn qk_norm(&mut self, qkv: &mut Self::Tensor, heads: Heads, q: &Self::Vector, k: &Self::Vector, eps: f32);
    /// `angles[r] = [cos(p f_0) .. | sin(p f_0) ..]` for position p of row r; the angle is rounded to f32 first, as the reference does.
    fn rope_angles(&mut self, positions: &[u32], frequencies: &[f32], angles: &mut Self::Tensor);
    /// Rotates query and key heads in place, halves paired (element i with i + dim/2).
    fn rope(&mut self, qkv: &mut Self::Tensor, heads: Heads, angles: &Self::Tensor);
    /// Writes the keys and values of each row to its slot in `layer`.
    fn kv_write(&mut self, qkv: &Self::Tensor, heads: Heads, layer: usize, slots: &[u32], cache: &mut Self::KvCache);
    /// [`Ops::qk_norm`] with the weights in `norm` where there are any, then [`Ops::rope`], then [`Ops::kv_write`]: one pass over the rows on a GPU.
    fn rope_kv(
        &mut self,
        qkv: &mut Self::Tensor,
        heads: Heads,
        norm: Option<(&Self::Vector, &Self::Vector)>,
        eps: f32,
        angles: &Self::Tensor,
        layer: usize,
        slots: &[u32],
        cache: &mut Self::KvCache,
    ) {
        if let Some((q, k)) = norm {
            self.qk_norm(qkv, heads, q, k, eps);
        }
        self.rope(qkv, heads, angles);
        self.kv_write(qkv, heads, layer, slots, cache);
    }
    /// Causal attention of each row over its sequence's cached keys and values up to its own position; `out` is
    /// `[rows, query heads * dim]`. Scores: one FMA chain over the head's elements, times `1/sqrt(dim)`; softmax: exact maximum,
    /// own `exp`, 16 lanes by position and a tree; output: one FMA chain over ascending positions, divided by the sum at the end.
    fn attention(&mut self, qkv: &Self::Tensor, heads: Heads, layer: usize, batch: &Batch, cache: &Self::KvCache, out: &mut Self::Tensor);
    /// `out = silu(gate) * up` where a row of `gate_up` is `[gate | up]`.
    fn swiglu(&mut self, gate_up: &Self::Tensor, out: &mut Self::Tensor);
    /// `out[i] = x[rows[i]]`.
    fn gather_rows(&mut self, x: &Self::Tensor, rows: &[u32], out: &mut Self::Tensor);
    /// Copies whole blocks `(from, to)` in every layer.
    fn copy_blocks(&mut self, cache: &mut Self::KvCache, pairs: &[(u32, u32)]);

    /// Draws one token for each entry of `draws`. Order: bias, banned, temperature, top-k (ties: lower ids), top-p (the most likely
    /// tokens, ties by lower id, until their share of the mass, counted in units of 2^-40 of the largest, reaches `top_p`), min-p.
    /// The token is the argmax of logit / temperature + Gumbel noise over the kept set (see [`philox`]); ties: the lower id.
    fn sample(&mut self, logits: &Self::Tensor, draws: &[Draw<'_>], out: &mut Vec<Result<Drawn, NonFinite>>);
    /// For each (row, token): log-probability at `temperature` without filters, and the raw one. The same lines as [`Ops::sample`].
    fn logprobs_of(&mut self, logits: &Self::Tensor, rows: &[(usize, u32)], temperature: f32, out: &mut Vec<Result<Drawn, NonFinite>>);
    /// Copies a row to the host.
    fn read_row(&self, x: &Self::Tensor, row: usize) -> Vec<f32>;
}
