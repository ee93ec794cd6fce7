//! The backward entries of the table of operations, and the optimizer's.
//!
//! Gradients of weights, master parameters and moments are plain f32 numbers in the checkpoint's own layout (`[outputs, inputs]`, row-major),
//! where the backend computes ([`TrainOps::Flat`]), so that a trainer can clip, step, save and compare them without unpacking anything. Every
//! gradient of a weight is *continued*: each of its elements is one chain over ascending groups of [`TrainOps::row_group`] rows that goes on from
//! the value already there, so that a batch cut into micro-batches between sequences gives the same bits as the whole batch. Gradients of
//! activations depend on their own row (in attention: on their own sequence) alone, like the forward's rows.

use std::ops::Range;

use super::{Batch, Heads, NonFinite, Ops};
use crate::model::{Dtype, TensorView};

/// What the head says of one target token at the temperature, and what its gradient needs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scored {
    /// Log-probability of the target, with the bits of [`Ops::logprobs_of`].
    pub logprob: f32,
    /// Entropy of the distribution in nats.
    pub entropy: f32,
    /// Largest logit over temperature.
    pub max: f32,
    /// ln of the sum of `exp(logit / temperature - max)`.
    pub ln_sum: f32,
}

/// Derivative of the loss with respect to one scored token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slope {
    /// d loss / d log-probability.
    pub logprob: f32,
    /// d loss / d entropy.
    pub entropy: f32,
}

/// One AdamW step's numbers. Source: Loshchilov and Hutter 2019, in the order in which PyTorch computes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamwStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Number of this step, from 1.
    pub step: u64,
}

/// An AdamW step's numbers as they enter the f32 arithmetic of every backend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamwFactors {
    /// `1 - lr wd`.
    pub keep: f32,
    /// `1 - b1`.
    pub one_minus_beta1: f32,
    /// `b2`.
    pub beta2: f32,
    /// `1 - b2`.
    pub one_minus_beta2: f32,
    /// `sqrt(1 - b2^t)`.
    pub root_correction: f32,
    /// `eps`.
    pub eps: f32,
    /// `lr / (1 - b1^t)`.
    pub step_size: f32,
}

impl AdamwFactors {
    /// Computed in f64, rounded once.
    pub fn of(s: &AdamwStep) -> AdamwFactors {
        let t = s.step as f64;
        AdamwFactors {
            keep: (1.0 - s.lr * s.weight_decay) as f32,
            one_minus_beta1: (1.0 - s.beta1) as f32,
            beta2: s.beta2 as f32,
            one_minus_beta2: (1.0 - s.beta2) as f32,
            root_correction: (1.0 - libm::pow(s.beta2, t)).sqrt() as f32,
            eps: s.eps as f32,
            step_size: (s.lr / (1.0 - libm::pow(s.beta1, t))) as f32,
        }
    }
}

/// Low-rank adapters of one weight `[outputs, inputs]`: it counts as `base + scale B A`, with `A [rank, inputs]` and `B [outputs, rank]`.
#[derive(Debug)]
pub struct Adapter<'a, F> {
    /// `A`.
    pub a: &'a F,
    /// `B`.
    pub b: &'a F,
    /// Rank.
    pub rank: usize,
    /// Alpha over rank.
    pub scale: f32,
}

/// Master parameters that become serving weights.
#[derive(Debug)]
pub struct Slab<'a, F> {
    /// The parameters, or the base under an adapter.
    pub base: &'a F,
    /// Low-rank adapters.
    pub adapter: Option<Adapter<'a, F>>,
}

// Derived, both would ask for an `F` that can be copied.
impl<F> Clone for Adapter<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<F> Copy for Adapter<'_, F> {}
impl<F> Clone for Slab<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<F> Copy for Slab<'_, F> {}

impl<'a, F> Slab<'a, F> {
    /// Parameters as they are.
    pub fn plain(base: &'a F) -> Self {
        Slab { base, adapter: None }
    }
}

/// Operations that a trainer needs beside [`Ops`]. Shapes are `[rows, columns]`, row-major.
pub trait TrainOps: Ops {
    /// f32 numbers in the checkpoint's layout, where the backend computes with them.
    type Flat: Send;

    /// Rows of a batch that are summed together, always in the same way: a trainer starts every sequence at a multiple of so many rows.
    fn row_group(&self) -> usize {
        1
    }
    /// Most logits of a chunk, where not all of a batch stand at a time.
    fn chunk_logits(&self) -> usize {
        1 << 24
    }
    /// Numbers that are there.
    fn flat(&self, values: &[f32]) -> Self::Flat;
    /// So many zeros.
    fn zeros(&self, len: usize) -> Self::Flat;
    /// So many zeros that are needed at updates alone: a backend may keep them where memory is plenty.
    fn parked_zeros(&self, len: usize) -> Self::Flat {
        self.zeros(len)
    }
    /// Copies them to the host.
    fn read_flat(&self, values: &Self::Flat) -> Vec<f32>;
    /// Replaces them, as many as they are.
    fn write_flat(&mut self, values: &mut Self::Flat, from: &[f32]);
    /// Sets them to zero.
    fn clear_flat(&mut self, values: &mut Self::Flat);
    /// `to += from`.
    fn add_flat(&mut self, to: &mut Self::Flat, from: &Self::Flat);
    /// Replaces them by the sum over the processes that train together, added in the order of their ranks. A backend that works alone is the whole sum.
    fn sum_over_ranks(&mut self, _values: &mut Self::Flat) {}

    /// Rounds master parameters once, to `dtype` (F32 keeps every bit), one slab below the other, into a matrix of their shape.
    fn round_matrix(&mut self, slabs: &[Slab<'_, Self::Flat>], dtype: Dtype, matrix: &mut Self::Matrix);
    /// The same for joined vectors.
    fn round_vector(&mut self, parts: &[&Self::Flat], dtype: Dtype, vector: &mut Self::Vector);
    /// The bytes of parameters after rounding, little-endian: what a server is given. `inputs` are the columns of an adapted weight.
    fn rounded(&mut self, slab: Slab<'_, Self::Flat>, inputs: usize, dtype: Dtype) -> Vec<u8>;
    /// Gradients of an adapter from the gradient `dw [outputs, inputs]` of its weight: `da = scale B^T dw`, `db = scale dw A^T`.
    fn adapter_backward(
        &mut self,
        adapter: Adapter<'_, Self::Flat>,
        inputs: usize,
        dw: &Self::Flat,
        da: &mut Self::Flat,
        db: &mut Self::Flat,
    );

    /// Packs new values of the same shape into a matrix made by [`Ops::matrix`]; memory is used again where the type allows it.
    fn repack(&mut self, matrix: &mut Self::Matrix, slabs: &[TensorView<'_>]);
    /// `out = x`.
    fn copy(&mut self, x: &Self::Tensor, out: &mut Self::Tensor);
    /// Sets every value to zero.
    fn clear(&mut self, x: &mut Self::Tensor);
    /// `out[rows[i]] = x[i]`, other rows stay: the backward of [`Ops::gather_rows`] for distinct rows of a cleared tensor.
    fn scatter_rows(&mut self, x: &Self::Tensor, rows: &[u32], out: &mut Self::Tensor);

    /// `dx = dy W`, `dy [rows, outputs]`, `W [outputs, inputs]`: every element is one chain of f32 FMA over ascending outputs, starting at +0.
    fn linear_dx(&mut self, dy: &Self::Tensor, w: &Self::Matrix, dx: &mut Self::Tensor);
    /// `dw += dy[rows, columns]^T x[rows from x_row]`, `dw [columns, inputs]`: every element is one chain of f32 FMA over ascending rows that
    /// goes on from `dw`.
    fn linear_dw(
        &mut self,
        dy: &Self::Tensor,
        rows: Range<usize>,
        columns: Range<usize>,
        x: &Self::Tensor,
        x_row: usize,
        dw: &mut Self::Flat,
    );
    /// `db += dy[.., columns]` summed over ascending rows, one chain of additions an element.
    fn bias_backward(&mut self, dy: &Self::Tensor, columns: Range<usize>, db: &mut Self::Flat);
    /// Backward of [`Ops::rmsnorm`]: `dx += s (g - x s^2 mean(g x))` with `g = dy * weight` and `s = 1 / sqrt(mean(x^2) + eps)`; the mean: 16 lanes
    /// and the tree. `dweight += dy * (x s)` over ascending rows, one FMA chain an element.
    fn rmsnorm_backward(
        &mut self,
        x: &Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
        dy: &Self::Tensor,
        dx: &mut Self::Tensor,
        dweight: &mut Self::Flat,
    );
    /// Backward of [`Ops::qk_norm`] in place on `dqkv`; `raw` holds the heads before the norm. The weights' gradients run over ascending rows,
    /// and within a row over ascending heads.
    fn qk_norm_backward(
        &mut self,
        raw: &Self::Tensor,
        heads: Heads,
        q: &Self::Vector,
        k: &Self::Vector,
        eps: f32,
        dqkv: &mut Self::Tensor,
        dq: &mut Self::Flat,
        dk: &mut Self::Flat,
    );
    /// Backward of [`Ops::rope`] in place: rotates query and key heads back.
    fn rope_backward(&mut self, dqkv: &mut Self::Tensor, heads: Heads, angles: &Self::Tensor);
    /// Backward of [`Ops::attention`] over whole sequences: every segment of `batch` starts at position 0. Scores and probabilities are
    /// computed again from `qkv` (after the rotation); `out` is what the forward gave. `dout [rows, query heads * dim]`; `dqkv` is written in full.
    /// Sums over keys: one FMA chain an element over ascending positions; sums over queries: one over ascending (position, query head of the KV
    /// head).
    fn attention_backward(
        &mut self,
        qkv: &Self::Tensor,
        heads: Heads,
        batch: &Batch,
        out: &Self::Tensor,
        dout: &Self::Tensor,
        dqkv: &mut Self::Tensor,
    );
    /// Backward of [`Ops::swiglu`] in place: `gate_up` becomes its gradient, and `dact`, the gradient of the output, becomes the output itself
    /// (its bits are those of the forward), which the gradient of the next product needs.
    fn swiglu_backward(&mut self, gate_up: &mut Self::Tensor, dact: &mut Self::Tensor);
    /// `dtable[ids[i]] += dx[first + i]`, rows ascending. `dtable [vocab, cols]`.
    fn embed_backward(&mut self, ids: &[u32], dx: &Self::Tensor, first: usize, dtable: &mut Self::Flat);

    /// Log-probability of `targets[r]` under `softmax(logits[r] / temperature)`, by the lines of [`Ops::logprobs_of`], and the entropy. Sums over
    /// the vocabulary: 16 lanes in f64 and the tree.
    fn score(&mut self, logits: &Self::Tensor, targets: &[u32], temperature: f32, out: &mut Vec<Result<Scored, NonFinite>>);
    /// Replaces logits by the gradient of the loss, on a GPU in bf16 until the tensor's rows are set again: with z = logit / T and p = softmax(z),
    /// `(slope.logprob (onehot - p) - slope.entropy p (ln p + H)) / T`.
    fn score_backward(&mut self, logits: &mut Self::Tensor, targets: &[u32], temperature: f32, scored: &[Scored], slopes: &[Slope]);

    /// One AdamW step on f32 master weights: `p -= lr wd p; m += (1 - b1)(g - m); v = b2 v + (1 - b2) g g; p -= lr / (1 - b1^t) m / (sqrt(v) /
    /// sqrt(1 - b2^t) + eps)`; every operation rounded to f32, elementwise.
    fn adamw(&mut self, step: &AdamwStep, values: &mut Self::Flat, gradient: &Self::Flat, m: &mut Self::Flat, v: &mut Self::Flat);
    /// Sum of squares in f64: pieces of 2^14 elements, each 16 lanes (ascending) and the tree, then the pieces in ascending order.
    fn sum_of_squares(&mut self, values: &Self::Flat) -> f64 {
        self.sums_of_squares(&[values]).first().copied().unwrap_or_default()
    }
    /// The same of several.
    fn sums_of_squares(&mut self, values: &[&Self::Flat]) -> Vec<f64>;
    /// `values *= factor`.
    fn scale(&mut self, values: &mut Self::Flat, factor: f32);
}
