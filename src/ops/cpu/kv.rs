//! Paged keys and values, f32. A block holds 16 tokens of one KV head of one layer, as panels: keys `[dim][16 tokens]`, so that sixteen
//! scores are one vector; values `[dim / 16][16 tokens][16]`, so that sixteen outputs are one.

use super::tensor::{Aligned, Tensor};
use crate::ops::{BLOCK_TOKENS, Heads};

/// Keys and values of all layers.
pub struct KvCache {
    pub(super) keys: Aligned<f32>,
    pub(super) values: Aligned<f32>,
    pub(super) heads: Heads,
    blocks: usize,
    layers: usize,
}

impl KvCache {
    pub(super) fn new(layers: usize, blocks: usize, heads: Heads) -> Self {
        let n = layers * blocks * heads.kv;
        let cache = |size: usize| Aligned::zeroed(n * size);
        KvCache { keys: cache(key_block(heads)), values: cache(value_block(heads)), heads, blocks, layers }
    }

    /// Bytes that one block takes in all layers.
    pub fn block_bytes(layers: usize, heads: Heads) -> usize {
        layers * heads.kv * (key_block(heads) + value_block(heads)) * size_of::<f32>()
    }

    /// Index of a (layer, block, head) in units of blocks.
    pub(super) fn index(&self, layer: usize, block: usize, head: usize) -> usize {
        debug_assert!(layer < self.layers && block < self.blocks && head < self.heads.kv);
        (layer * self.blocks + block) * self.heads.kv + head
    }

    pub(super) fn write(&mut self, qkv: &Tensor, layer: usize, slots: &[u32]) {
        let heads = self.heads;
        for (r, &slot) in slots.iter().enumerate() {
            let (block, offset) = (slot as usize / BLOCK_TOKENS, slot as usize % BLOCK_TOKENS);
            assert!(block < self.blocks, "slot {slot} is outside the cache");
            let row = qkv.row(r);
            for head in 0..heads.kv {
                let at = self.index(layer, block, head);
                let k = &row[(heads.query + head) * heads.dim..][..heads.dim];
                let v = &row[(heads.query + heads.kv + head) * heads.dim..][..heads.dim];
                let keys = &mut self.keys[at * key_block(heads)..][..key_block(heads)];
                for (d, x) in k.iter().enumerate() {
                    keys[d * BLOCK_TOKENS + offset] = *x;
                }
                let values = &mut self.values[at * value_block(heads)..][..value_block(heads)];
                for (chunk, xs) in v.chunks(16).enumerate() {
                    values[(chunk * BLOCK_TOKENS + offset) * 16..][..xs.len()].copy_from_slice(xs);
                }
            }
        }
    }

    pub(super) fn copy(&mut self, from: u32, to: u32) {
        for layer in 0..self.layers {
            let (a, b) = (self.index(layer, from as usize, 0), self.index(layer, to as usize, 0));
            let n = self.heads.kv;
            let (k, v) = (key_block(self.heads), value_block(self.heads));
            self.keys.copy_within(a * k..(a + n) * k, b * k);
            self.values.copy_within(a * v..(a + n) * v, b * v);
        }
    }
}

/// Values of one head's keys in a block.
pub(super) fn key_block(heads: Heads) -> usize {
    heads.dim * BLOCK_TOKENS
}

/// Values of one head's values in a block, padded to whole panels.
pub(super) fn value_block(heads: Heads) -> usize {
    heads.dim.next_multiple_of(16) * BLOCK_TOKENS
}
