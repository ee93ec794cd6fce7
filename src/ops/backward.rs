//! The backward entries of the table of operations, and the optimizer's.
//!
//! Gradients of weights are plain f32 slices in the checkpoint's own layout (`[outputs, inputs]`, row-major), so that a trainer can clip,
//! step, save and compare them without unpacking anything. Every gradient of a weight is *continued*: each of its elements is one chain over
//! ascending rows that goes on from the value already there, so that a batch cut into micro-batches between sequences gives the same bits
//! as the whole batch. Gradients of activations depend on their own row (in attention: on their own sequence) alone, like the forward's rows.

use std::ops::Range;

use super::{Batch, Heads, NonFinite, Ops};
use crate::model::TensorView;

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

/// Operations that a trainer needs beside [`Ops`]. Shapes are `[rows, columns]`, row-major.
pub trait TrainOps: Ops {
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
    fn linear_dw(&mut self, dy: &Self::Tensor, rows: Range<usize>, columns: Range<usize>, x: &Self::Tensor, x_row: usize, dw: &mut [f32]);
    /// `db += dy[.., columns]` summed over ascending rows, one chain of additions an element.
    fn bias_backward(&mut self, dy: &Self::Tensor, columns: Range<usize>, db: &mut [f32]);
    /// Backward of [`Ops::rmsnorm`]: `dx += s (g - x s^2 mean(g x))` with `g = dy * weight` and `s = 1 / sqrt(mean(x^2) + eps)`; the mean: 16 lanes
    /// and the tree. `dweight += dy * (x s)` over ascending rows, one FMA chain an element.
    fn rmsnorm_backward(
        &mut self,
        x: &Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
        dy: &Self::Tensor,
        dx: &mut Self::Tensor,
        dweight: &mut [f32],
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
        dq: &mut [f32],
        dk: &mut [f32],
    );
    /// Backward of [`Ops::rope`] in place: rotates query and key heads back.
    fn rope_backward(&mut self, dqkv: &mut Self::Tensor, heads: Heads, angles: &Self::Tensor);
    /// Backward of [`Ops::attention`] over whole sequences: every segment of `batch` starts at position 0. Scores and probabilities are
    /// computed again from `qkv` (after the rotation). `dout [rows, query heads * dim]`; `dqkv` is written in full. Sums over keys: one FMA chain
    /// an element over ascending positions; sums over queries: one over ascending (position, query head of the KV head).
    fn attention_backward(&mut self, qkv: &Self::Tensor, heads: Heads, batch: &Batch, dout: &Self::Tensor, dqkv: &mut Self::Tensor);
    /// Backward of [`Ops::swiglu`] in place: `gate_up` becomes its gradient, and `dact`, the gradient of the output, becomes the output itself
    /// (its bits are those of the forward), which the gradient of the next product needs.
    fn swiglu_backward(&mut self, gate_up: &mut Self::Tensor, dact: &mut Self::Tensor);
    /// `dtable[ids[i]] += dx[first + i]`, rows ascending. `dtable [vocab, cols]`.
    fn embed_backward(&mut self, ids: &[u32], dx: &Self::Tensor, first: usize, dtable: &mut [f32]);

    /// Log-probability of `targets[r]` under `softmax(logits[r] / temperature)`, by the lines of [`Ops::logprobs_of`], and the entropy. Sums over
    /// the vocabulary: 16 lanes in f64 and the tree.
    fn score(&mut self, logits: &Self::Tensor, targets: &[u32], temperature: f32, out: &mut Vec<Result<Scored, NonFinite>>);
    /// Replaces logits by the gradient of the loss: with z = logit / T and p = softmax(z),
    /// `(slope.logprob (onehot - p) - slope.entropy p (ln p + H)) / T`.
    fn score_backward(&mut self, logits: &mut Self::Tensor, targets: &[u32], temperature: f32, scored: &[Scored], slopes: &[Slope]);

    /// One AdamW step on f32 master weights: `p -= lr wd p; m += (1 - b1)(g - m); v = b2 v + (1 - b2) g g; p -= lr / (1 - b1^t) m / (sqrt(v) /
    /// sqrt(1 - b2^t) + eps)`; every operation rounded to f32, elementwise.
    fn adamw(&mut self, step: &AdamwStep, values: &mut [f32], gradient: &[f32], m: &mut [f32], v: &mut [f32]);
    /// Sum of squares in f64: pieces of 2^14 elements, each 16 lanes (ascending) and the tree, then the pieces in ascending order.
    fn sum_of_squares(&mut self, values: &[f32]) -> f64;
    /// `values *= factor`.
    fn scale(&mut self, values: &mut [f32], factor: f32);
}
