//! What the card holds: activations, weights, keys and values. Rows start on 16-byte boundaries; what lies between a row's width and the next row is
//! never read as a value.

use super::memory::Buffer;
use crate::ops::{BLOCK_TOKENS, Heads};

/// Rows start at multiples of this many values, so that 16 bytes are read at a time.
const ROW_VALUES: usize = 8;

pub(super) fn stride_of(cols: usize) -> usize {
    cols.next_multiple_of(ROW_VALUES)
}

/// Activations `[rows, cols]`: bf16, or f32 where `wide`.
pub struct Tensor {
    pub(super) buffer: Buffer,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) stride: usize,
    pub(super) wide: bool,
    pub(super) capacity: usize,
    /// f32 rows that hold bf16 in their first half for now.
    pub(super) narrowed: bool,
}

impl Tensor {
    pub(super) fn bytes(rows: usize, cols: usize, wide: bool) -> usize {
        rows * stride_of(cols) * if wide { 4 } else { 2 }
    }

    /// Rows in use and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    pub(super) fn value_bytes(&self) -> usize {
        if self.wide { 4 } else { 2 }
    }

    /// f32 rows now hold bf16 in their first half.
    pub(super) fn narrow_in_place(&mut self) {
        assert!(self.wide, "rows that hold f32 can hold bf16");
        (self.wide, self.narrowed, self.stride) = (false, true, 2 * self.stride);
    }

    /// They hold f32 again.
    pub(super) fn widen(&mut self) {
        if self.narrowed {
            (self.wide, self.narrowed, self.stride) = (true, false, self.stride / 2);
        }
    }

    /// The address, of a tensor of bf16.
    pub(super) fn narrow(&self) -> u64 {
        assert!(!self.wide, "this operation takes bf16");
        self.buffer.ptr
    }

    /// The address, of a tensor of f32.
    pub(super) fn wide(&self) -> u64 {
        assert!(self.wide, "this operation takes f32");
        self.buffer.ptr
    }
}

/// Weights of a linear map `[outputs, inputs]`, bf16, as in the checkpoint.
pub struct Matrix {
    pub(super) buffer: Buffer,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) stride: usize,
}

/// A vector of weights, bf16.
pub struct Vector {
    pub(super) buffer: Buffer,
    pub(super) len: usize,
}

/// Paged keys and values of all layers, bf16: `[layer][block][kv head][16 tokens][dim]` each.
pub struct KvCache {
    pub(super) keys: Buffer,
    pub(super) values: Buffer,
    pub(super) heads: Heads,
    pub(super) layers: usize,
    pub(super) blocks: usize,
}

impl KvCache {
    /// Values of one block of one layer, keys or values.
    pub(super) fn block_values(heads: Heads) -> usize {
        heads.kv * BLOCK_TOKENS * heads.dim
    }

    /// Addresses of a layer's keys and values.
    pub(super) fn layer(&self, layer: usize) -> (u64, u64) {
        assert!(layer < self.layers);
        let at = (layer * self.blocks * Self::block_values(self.heads) * 2) as u64;
        (self.keys.ptr + at, self.values.ptr + at)
    }
}
