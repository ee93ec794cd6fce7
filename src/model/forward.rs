//! The forward pass: one flat list of calls for every architecture and every use (prefill, decode, scoring, training).

use std::sync::atomic::{AtomicU64, Ordering};

use super::config::{ModelConfig, RopeConfig};
use super::weights::{Layer, Weights, heads};
use crate::ops::{Batch, Heads, Ops, Place};

/// Activations of one step, allocated once for the largest step.
pub struct Forward<O: Ops> {
    /// Tells apart the buffers of several forwards.
    id: u64,
    heads: Heads,
    eps: f32,
    /// Rotary frequencies, `[head_dim / 2]`.
    frequencies: Vec<f32>,
    /// Residual stream, `[rows, hidden]`.
    x: O::Tensor,
    /// Input of a block, `[rows, hidden]`.
    h: O::Tensor,
    /// Output of a block, added to `x` by the next norm, `[rows, hidden]`.
    y: O::Tensor,
    /// `[rows, (heads + 2 kv_heads) * head_dim]`.
    qkv: O::Tensor,
    /// Cosines and sines, `[rows, head_dim]`.
    angles: O::Tensor,
    /// `[rows, heads * head_dim]`.
    attended: O::Tensor,
    /// `[rows, 2 * intermediate]`.
    gate_up: O::Tensor,
    /// `[rows, intermediate]`.
    act: O::Tensor,
    /// Rows whose logits are wanted, `[logit rows, hidden]`.
    last: O::Tensor,
    /// The same, normed.
    normed: O::Tensor,
    /// `[logit rows, vocab]`.
    logits: O::Tensor,
}

impl<O: Ops> Forward<O> {
    /// Room for steps of `rows` rows, `logit_rows` of which give logits.
    pub fn new(ops: &O, config: &ModelConfig, rows: usize, logit_rows: usize) -> Self {
        Forward::with_frequencies(ops, config, rope_frequencies(&config.rope, config.head_dim), rows, logit_rows)
    }

    /// The same with other rotary frequencies, `[head_dim / 2]`: for comparisons with references that used others.
    pub fn with_frequencies(ops: &O, config: &ModelConfig, frequencies: Vec<f32>, rows: usize, logit_rows: usize) -> Self {
        let heads = heads(config);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Forward {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            heads,
            eps: config.rms_norm_eps,
            frequencies,
            x: ops.tensor(rows, config.hidden_size),
            h: ops.tensor(rows, config.hidden_size),
            y: ops.tensor(rows, config.hidden_size),
            qkv: ops.tensor(rows, heads.qkv_cols()),
            angles: ops.wide_tensor(rows, heads.dim),
            attended: ops.tensor(rows, heads.query * heads.dim),
            gate_up: ops.tensor(rows, 2 * config.intermediate_size),
            act: ops.tensor(rows, config.intermediate_size),
            last: ops.tensor(logit_rows, config.hidden_size),
            normed: ops.tensor(logit_rows, config.hidden_size),
            logits: ops.wide_tensor(logit_rows, config.vocab_size),
        }
    }

    /// Runs one step: writes the keys and values of every row to `cache` and returns the logits of `batch.logit_rows`.
    pub fn run<'a>(&'a mut self, ops: &mut O, w: &Weights<O>, batch: &Batch, cache: &mut O::KvCache) -> &'a O::Tensor {
        let place = Place { forward: self.id, memory: ops.memory_id(&w.embed, cache), heads: self.heads };
        ops.step(place, batch, &mut |ops, rows| self.calls(ops, w, batch, rows, cache));
        &self.logits
    }

    /// The calls of a step, in order.
    fn calls(&mut self, ops: &mut O, w: &Weights<O>, batch: &Batch, rows: usize, cache: &mut O::KvCache) {
        self.resize(ops, rows, batch.logit_rows.len() + rows - batch.rows());
        let Forward { id: _, heads, eps, frequencies, x, h, y, qkv, angles, attended, gate_up, act, last, normed, logits } = self;
        let (heads, eps) = (*heads, *eps);
        ops.rope_angles(&batch.positions, frequencies, angles);
        ops.embed(&w.embed, &batch.tokens, x);
        for (i, layer) in w.layers.iter().enumerate() {
            let step = Step { heads, eps, angles, batch, first: i == 0, cached: i };
            attend(ops, layer, &step, Attend { x, y, h, qkv, attended }, cache, |_, _| {});
            feed_forward(ops, layer, &step, FeedForward { x, y, h, gate_up, act });
        }
        ops.add(x, y);
        ops.gather_rows(x, &batch.logit_rows, last);
        ops.rmsnorm(last, &w.norm, eps, normed);
        ops.linear(normed, w.head.as_ref().unwrap_or(&w.embed), logits);
    }

    fn resize(&mut self, ops: &O, rows: usize, logit_rows: usize) {
        for t in
            [&mut self.x, &mut self.h, &mut self.y, &mut self.qkv, &mut self.angles, &mut self.attended, &mut self.gate_up, &mut self.act]
        {
            ops.set_rows(t, rows);
        }
        for t in [&mut self.last, &mut self.normed, &mut self.logits] {
            ops.set_rows(t, logit_rows);
        }
    }

    /// The logits of the last step, `[logit rows, vocab]`.
    pub fn logits(&self) -> &O::Tensor {
        &self.logits
    }
}

/// What the calls of a layer share.
pub(super) struct Step<'a, O: Ops> {
    pub(super) heads: Heads,
    pub(super) eps: f32,
    /// Cosines and sines of the rows, `[rows, head_dim]`.
    pub(super) angles: &'a O::Tensor,
    pub(super) batch: &'a Batch,
    /// No layer stands before this one.
    pub(super) first: bool,
    /// Layer of the cache that holds this layer's keys and values.
    pub(super) cached: usize,
}

/// Buffers of a layer's attention. The residual stream `x` still lacks `y`, the output of the block before, when the first norm adds it;
/// afterwards `y` is the output of this block.
pub(super) struct Attend<'a, O: Ops> {
    pub(super) x: &'a mut O::Tensor,
    pub(super) y: &'a mut O::Tensor,
    pub(super) h: &'a mut O::Tensor,
    pub(super) qkv: &'a mut O::Tensor,
    pub(super) attended: &'a mut O::Tensor,
}

/// Buffers of a layer's feed-forward part; `x` and `y` as in [`Attend`].
pub(super) struct FeedForward<'a, O: Ops> {
    pub(super) x: &'a mut O::Tensor,
    pub(super) y: &'a mut O::Tensor,
    pub(super) h: &'a mut O::Tensor,
    pub(super) gate_up: &'a mut O::Tensor,
    pub(super) act: &'a mut O::Tensor,
}

/// Attention of one layer: the one list of calls for sampling, scoring and training. `raw` is shown the projections before their norms
/// replace them, in models that norm heads.
pub(super) fn attend<O: Ops>(
    ops: &mut O,
    layer: &Layer<O>,
    step: &Step<'_, O>,
    buffers: Attend<'_, O>,
    cache: &mut O::KvCache,
    raw: impl FnOnce(&mut O, &O::Tensor),
) {
    let Step { heads, eps, angles, batch, first, cached } = *step;
    let Attend { x, y, h, qkv, attended } = buffers;
    match first {
        true => ops.rmsnorm(x, &layer.attention_norm, eps, h),
        false => ops.add_rmsnorm(x, y, &layer.attention_norm, eps, h),
    }
    ops.linear(h, &layer.qkv, qkv);
    if let Some(bias) = &layer.qkv_bias {
        ops.add_bias(qkv, bias);
    }
    if layer.qk_norm.is_some() {
        raw(ops, qkv);
    }
    let norm = layer.qk_norm.as_ref().map(|(q, k)| (q, k));
    ops.rope_kv(qkv, heads, norm, eps, angles, cached, &batch.slots, cache);
    ops.attention(qkv, heads, cached, batch, cache, attended);
    ops.linear(attended, &layer.out, y);
}

/// The feed-forward part of one layer.
pub(super) fn feed_forward<O: Ops>(ops: &mut O, layer: &Layer<O>, step: &Step<'_, O>, buffers: FeedForward<'_, O>) {
    let FeedForward { x, y, h, gate_up, act } = buffers;
    ops.add_rmsnorm(x, y, &layer.mlp_norm, step.eps, h);
    ops.linear(h, &layer.gate_up, gate_up);
    ops.swiglu(gate_up, act);
    ops.linear(act, &layer.down, y);
}

/// Frequencies of the pairs of a head, in f32 and in the order in which Hugging Face computes them (`ROPE_INIT_FUNCTIONS`, default and llama3).
pub fn rope_frequencies(rope: &RopeConfig, head_dim: usize) -> Vec<f32> {
    let plain = (0..head_dim / 2).map(|i| {
        let exponent = (2 * i) as f32 / head_dim as f32;
        1.0 / libm::pow(rope.theta, f64::from(exponent)) as f32
    });
    let Some(s) = &rope.scaling else { return plain.collect() };
    let (factor, low, high) = (s.factor as f32, s.low_freq_factor as f32, s.high_freq_factor as f32);
    let context = s.original_context as f32;
    plain
        .map(|f| {
            let wavelength = 2.0 * std::f32::consts::PI / f;
            if wavelength > context / low {
                f / factor
            } else if wavelength < context / high {
                f
            } else {
                let smooth = (context / wavelength - low) / (high - low);
                (1.0 - smooth) * f / factor + smooth * f
            }
        })
        .collect()
}
