//! A model of random weights on the card, its cache, and the batches that are run on it.

use crate::commands::generate::shuffle;
use crate::commands::open::products;
use crate::engine::EngineSettings;
use crate::model::forward::Forward;
use crate::model::weights::{Layer, Weights, heads};
use crate::model::{Dtype, ModelConfig, TensorView};
use crate::ops::cuda::{CudaOps, GemmChoice, KvCache, Noise, Vector};
use crate::ops::{BLOCK_TOKENS, Batch, Heads, Ops, Segment};

use super::GpuBenchError;
use super::shapes::Shape;

/// Share of the free memory that the cache may take: activations, lists and graphs need the rest.
const CACHE_SHARE: f64 = 0.9;

/// Everything that one shape is measured with.
pub(super) struct Rig {
    pub(super) ops: CudaOps,
    pub(super) config: ModelConfig,
    pub(super) heads: Heads,
    pub(super) weights: Weights<CudaOps>,
    pub(super) forward: Forward<CudaOps>,
    pub(super) cache: KvCache,
    /// Blocks of the cache.
    pub(super) blocks: usize,
    pub(super) noise: Noise,
    /// Whether the project's targets are for this shape.
    pub(super) has_targets: bool,
}

impl Rig {
    /// A model with room for steps of `rows` rows, `logit_rows` of which give logits, and for `blocks` blocks, or as many as fit.
    pub(super) fn new(
        base: &CudaOps,
        gemm: GemmChoice,
        shape: Shape,
        rows: usize,
        logit_rows: usize,
        blocks: usize,
    ) -> Result<Rig, GpuBenchError> {
        let config = shape.config()?;
        let mut ops = base.another()?;
        let heads = heads(&config);
        if let Some(reason) = ops.refuses(heads) {
            return Err(GpuBenchError::Card(reason));
        }
        let settings = EngineSettings { max_batch_tokens: rows, max_sequences: logit_rows, ..EngineSettings::default() };
        ops.prepare_products(gemm, &products(&config, &settings))?;
        // Weights of this size keep the residual stream, whose rows every norm brings back to length, far from overflow.
        let mut noise = ops.noise(0.04);
        let weights = weights(&ops, &config, &mut noise);
        let forward = Forward::new(&ops, &config, rows, logit_rows);
        check(&ops)?;
        let free = ops.free_memory().unwrap_or(0) as f64 * CACHE_SHARE;
        let blocks = blocks.min((free / ops.kv_block_bytes(config.num_layers, heads) as f64) as usize).max(1);
        let mut cache = ops.kv_cache(config.num_layers, blocks, heads);
        ops.fill_cache(&mut noise, &mut cache);
        check(&ops)?;
        Ok(Rig { ops, heads, config, weights, forward, cache, blocks, noise, has_targets: !shape.is_tiny() })
    }

    /// Whether the cache has room for such a batch.
    pub(super) fn fits(&self, sequences: usize, context: usize) -> bool {
        sequences * context.div_ceil(BLOCK_TOKENS) <= self.blocks
    }
}

/// What went wrong on the card, as an error.
pub(super) fn check(ops: &CudaOps) -> Result<(), GpuBenchError> {
    ops.failure().map_or(Ok(()), |reason| Err(GpuBenchError::Card(reason)))
}

pub(super) fn weights(ops: &CudaOps, config: &ModelConfig, noise: &mut Noise) -> Weights<CudaOps> {
    let h = heads(config);
    let (hidden, wide, vocab) = (config.hidden_size, config.intermediate_size, config.vocab_size);
    let layer = |noise: &mut Noise| Layer {
        attention_norm: ones(ops, hidden),
        qkv: ops.random_matrix(noise, h.qkv_cols(), hidden),
        qkv_bias: None,
        qk_norm: config.qk_norm.then(|| (ones(ops, h.dim), ones(ops, h.dim))),
        out: ops.random_matrix(noise, hidden, h.query * h.dim),
        mlp_norm: ones(ops, hidden),
        gate_up: ops.random_matrix(noise, 2 * wide, hidden),
        down: ops.random_matrix(noise, hidden, wide),
    };
    Weights {
        embed: ops.random_matrix(noise, vocab, hidden),
        layers: (0..config.num_layers).map(|_| layer(noise)).collect(),
        norm: ones(ops, hidden),
        head: (!config.tie_word_embeddings).then(|| ops.random_matrix(noise, vocab, hidden)),
    }
}

/// The weight of a norm.
pub(super) fn ones(ops: &CudaOps, len: usize) -> Vector {
    let bytes: Vec<u8> = std::iter::repeat_n(half::bf16::ONE.to_le_bytes(), len).flatten().collect();
    ops.vector(&[TensorView { name: "ones", dtype: Dtype::Bf16, shape: vec![len], bytes: &bytes }])
}

/// Made-up token ids.
pub(super) fn tokens(n: usize, vocab: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729 + 3) % vocab) as u32).collect()
}

/// Blocks in the order in which a cache that has been used for a while gives them out: any.
fn block_ids(blocks: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..blocks as u32).collect();
    shuffle(&mut ids, 1);
    ids
}

/// A decode step: each sequence computes its last position of `context`.
pub(super) fn decode_batch(sequences: usize, context: usize, vocab: usize) -> Batch {
    let blocks = context.div_ceil(BLOCK_TOKENS);
    let tables = block_ids(sequences * blocks);
    let last = context - 1;
    let slot = |s: usize| tables[s * blocks + last / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (last % BLOCK_TOKENS) as u32;
    Batch {
        tokens: tokens(sequences, vocab, 1),
        positions: vec![last as u32; sequences],
        slots: (0..sequences).map(slot).collect(),
        segments: (0..sequences).map(|s| Segment { row: s, rows: 1, start: last, table: s * blocks }).collect(),
        logit_rows: (0..sequences as u32).collect(),
        tables,
    }
}

/// A prefill step: whole prompts of `length` tokens, each of which gives the logits of its last row.
pub(super) fn prefill_batch(sequences: usize, length: usize, vocab: usize) -> Batch {
    let blocks = length.div_ceil(BLOCK_TOKENS);
    let tables = block_ids(sequences * blocks);
    let slot = |s: usize, p: usize| tables[s * blocks + p / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (p % BLOCK_TOKENS) as u32;
    Batch {
        tokens: tokens(sequences * length, vocab, 2),
        positions: (0..sequences).flat_map(|_| 0..length as u32).collect(),
        slots: (0..sequences).flat_map(|s| (0..length).map(move |p| (s, p))).map(|(s, p)| slot(s, p)).collect(),
        segments: (0..sequences).map(|s| Segment { row: s * length, rows: length, start: 0, table: s * blocks }).collect(),
        logit_rows: (1..=sequences as u32).map(|s| s * length as u32 - 1).collect(),
        tables,
    }
}
